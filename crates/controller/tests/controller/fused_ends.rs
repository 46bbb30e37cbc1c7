//! Fused operations beside a write cache, an erasure and the loss of a queue.

use crate::fused::{Pair, statuses, submit};
use crate::host::{Host, MS, PAGE, entry, io};
use crate::model::Model;
use sluice_command::Operation;
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{FeatureId, Status, SubmissionEntry};

const BLOCKS: usize = 64;

/// Checks when the write of a pair is durable at its end: its host requests that, or has disabled the cache.
#[test]
fn the_write_of_a_pair_is_written_through_if_the_host_says_so() {
    const FUA: u32 = 1 << 30;
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let pair = Pair::new(&mut host);
    for (cache, fua, expected) in [(1, 0, false), (1, FUA, true), (0, 0, true), (0, FUA, true), (1, 0, false)]
    {
        assert_eq!(host.set_feature(FeatureId::VOLATILE_WRITE_CACHE, cache), Ok(0));
        model.take_seen();
        let [first, second] = pair.entries(8, 8);
        submit(&mut host, 1, &[first, SubmissionEntry { cdw12: second.cdw12 | fua, ..second }]);
        assert_eq!(statuses(&mut host, 1), [Status::SUCCESS; 2]);
        let seen: Vec<_> = model.take_seen().iter().map(|it| (it.operation, it.fua)).collect();
        assert_eq!(seen, [(Operation::Read, false), (Operation::Write, expected)]);
    }
}

/// Checks that an erasure of the namespace waits for a pair that has begun.
#[test]
fn a_pair_that_has_begun_ends_before_an_erasure() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let pair = Pair::new(&mut host);
    pair.fill(&host, 0, 7);
    model.disk().hold = true;
    for parked in [Operation::Read, Operation::Write] {
        model.take_seen();
        submit(&mut host, 1, &pair.entries(8, 8));
        host.run();
        if parked == Operation::Write {
            host.answer(1, &model, 1);
            host.run();
        }
        host.submit(0, SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) });
        for _ in 0..10 {
            host.now_ns += MS;
            host.run();
        }
        let seen = model.take_seen();
        assert_eq!(seen.last().map(|it| it.operation), Some(parked), "nothing is erased");
        model.disk().hold = false;
        host.answer(1, &model, 1);
        for _ in 0..10 {
            host.now_ns += MS;
            host.run();
        }
        assert_eq!(host.reap(0).map(|it| it.status()), Some(Status::SUCCESS));
        assert_eq!(host.reap_all(1).len(), 2);
        assert!(model.disk().bytes.iter().all(|byte| *byte == 0));
        model.disk().hold = true;
    }
}

/// Checks that a lost queue takes its own pairs and held commands with it, and no others.
#[test]
fn a_lost_queue_ends_what_waits_of_it() {
    for (lost, left) in [(1, [0, 1, 1]), (3, [2, 0, 1]), (4, [2, 1, 0])] {
        let model = Model::new(BLOCKS);
        let mut host = Host::with_io(&model);
        (2..=4).for_each(|queue| host.create_pair(queue, 16));
        let pair = Pair::new(&mut host);
        let buffer = host.allocate(PAGE);
        pair.wait_for_a_write(&mut host, &model, buffer);
        for queue in [3, 4] {
            submit(&mut host, queue, &[io(opcode::READ, 8, 1, buffer)]);
        }
        host.run();
        let now_ns = host.now_ns;
        host.controller.controller.abandon_queue(&mut host.controller.subsystem, lost, now_ns);
        model.disk().hold = false;
        host.answer(1, &model, 1);
        host.run();
        let done = [1, 3, 4].map(|queue| {
            let done = host.reap_all(queue);
            done.iter().filter(|it| it.status().is_success()).count()
        });
        assert_eq!(done, left, "queue {lost}");
    }
}
