//! Commands that end early: those of one queue, of one controller, or of one identifier, and no others.

use crate::host::{Host, MS, PAGE, delete, entry};
use crate::model::Model;
use crate::shared::Pair;
use sluice_controller::{DoorbellMode, QueuePair};
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{Status, SubmissionEntry};

/// Returns the completions of both hosts: number of the host, queue and status, in this order.
fn ended(pair: &mut Pair) -> Vec<(usize, u16, Status)> {
    let mut ended = Vec::new();
    for number in 0..2 {
        for queue in 1..=2 {
            let completions = pair.host(number).reap_all(queue);
            ended.extend(completions.iter().map(|it| (number, queue, it.status())));
        }
    }
    ended
}

/// Returns two hosts with two queue pairs each. Each queue has two commands that stay in the layer until they
/// are aborted.
fn busy(model: &Model) -> Pair {
    let mut pair = Pair::enabled(model);
    (0..2).for_each(|number| pair.host(number).create_pair(2, 16));
    (model.disk().hold, model.disk().aborts) = (true, true);
    for number in 0..2 {
        let host = pair.host(number);
        for sq in [1, 1, 2, 2] {
            host.submit(sq, SubmissionEntry { nsid: 1, ..entry(opcode::FLUSH) });
        }
    }
    pair.run();
    assert_eq!((ended(&mut pair), model.disk().parked.len()), (Vec::new(), 8));
    pair
}

fn abort(host: &mut Host, sq: u16, cid: u16) -> Result<u32, Status> {
    host.dw0(SubmissionEntry { cdw10: u32::from(cid) << 16 | u32::from(sq), ..entry(admin::ABORT) })
}

/// Conformance: Base 5.7, the deletion of a queue ends the commands of this queue alone.
#[test]
fn a_deletion_ends_the_commands_of_its_queue() {
    for number in 0..2 {
        let model = Model::new(64);
        let mut pair = busy(&model);
        pair.host(number).submit(0, delete(admin::DELETE_IO_SQ, 1));
        pair.run();
        assert_eq!(ended(&mut pair), [(number, 1, Status::ABORTED_SQ_DELETION); 2]);
        assert_eq!(pair.host(number).reap(0).map(|it| it.status()), Some(Status::SUCCESS));
        assert_eq!(model.disk().parked.len(), 6);
    }
}

/// Abandons a queue as a front-end does whose connection is lost.
#[test]
fn a_lost_connection_ends_the_commands_of_its_queue() {
    for number in 0..2 {
        let model = Model::new(64);
        let mut pair = busy(&model);
        let host = pair.host(number);
        // The admin queue and a queue that is not there have no connection that is lost alone.
        for id in [0, 3, 1, 1] {
            let now_ns = host.now_ns;
            host.controller.controller.abandon_queue(&mut host.controller.subsystem, id, now_ns);
        }
        assert!(!host.controller.controller.delete_queue_pair(1), "its commands are on their way");
        pair.run();
        assert!(pair.host(number).controller.controller.delete_queue_pair(1));
        assert_eq!(model.disk().parked.len(), 6);
        let host = pair.host(number);
        assert!(host.identify(sluice_nvme::Cns::CONTROLLER, 0).is_ok(), "the admin queue goes on");
    }
}

/// Conformance: Base 5.1, an Abort ends the command of this queue with this identifier, and no other.
#[test]
fn an_abort_ends_one_command() {
    for number in 0..2 {
        let model = Model::new(64);
        let mut pair = busy(&model);
        let host = pair.host(number);
        host.submit(2, SubmissionEntry { nsid: 1, ..entry(opcode::FLUSH) });
        let cid = host.submit(1, SubmissionEntry { nsid: 1, ..entry(opcode::FLUSH) });
        pair.run();
        assert_eq!(abort(pair.host(number), 2, cid), Ok(1), "it is in another queue");
        assert_eq!((ended(&mut pair), model.disk().parked.len()), (Vec::new(), 10));
        assert_eq!(abort(pair.host(number), 1, cid), Ok(0));
        pair.run();
        assert_eq!(ended(&mut pair), [(number, 1, Status::ABORT_REQUESTED)]);
        assert_eq!(model.disk().parked.len(), 9);
        assert_eq!(abort(pair.host(number), 1, cid), Ok(1), "it has ended");
        assert_eq!(abort(pair.host(number), 3, cid), Err(Status::INVALID_FIELD), "there is no such queue");
    }
}

/// Checks that a command that waits for too long ends alone, on whichever controller it is.
#[test]
fn patience_ends_the_commands_that_wait_for_too_long() {
    for number in 0..2 {
        let model = Model::new(64);
        let mut pair = Pair::enabled(&model);
        (model.disk().hold, model.disk().aborts) = (true, true);
        let flush = SubmissionEntry { nsid: 1, ..entry(opcode::FLUSH) };
        pair.host(number).submit(1, flush);
        pair.run();
        for _ in 0..30 {
            pair.hosts_wait(500 * MS);
        }
        pair.host(number).submit(1, flush);
        pair.host(1 - number).submit(1, flush);
        pair.run();
        for _ in 0..22 {
            pair.hosts_wait(500 * MS);
        }
        let statuses = [0, 1]
            .map(|number| pair.host(number).reap_all(1).iter().map(|it| it.status()).collect::<Vec<_>>());
        assert_eq!(statuses[number], [Status::COMMAND_INTERRUPTED]);
        assert_eq!((statuses[1 - number].len(), model.disk().parked.len()), (0, 2));
    }
}

#[test]
fn a_reset_ends_the_commands_of_its_controller() {
    // Commands that wait for room end, too.
    for (number, full) in [(0, false), (1, false), (0, true), (1, true)] {
        let model = Model::new(64);
        let mut pair = busy(&model);
        (model.disk().full, model.disk().aborts) = (full, !full);
        pair.host(number).controller.reset();
        pair.run();
        assert!(pair.host(number).controller.is_quiescent());
        assert_eq!(model.disk().parked.len(), 4);
        assert_eq!(pair.host(1 - number).controller.in_flight(), 4);
        // The other host has no entry of any of them.
        let other = pair.host(1 - number);
        assert!((1..=2).all(|queue| other.reap(queue).is_none()));
    }
}

/// Checks the queue pairs that a front-end creates for connections: their identifiers, their memory, and the states of
/// the controller.
#[test]
fn a_connection_has_a_queue_pair_of_its_own_while_the_controller_is_ready() {
    let mut host = Host::new(vec![Model::new(64).namespace(1)]);
    host.controller.controller.set_doorbell_mode(DoorbellMode::Capsules);
    // Queues begin with a page.
    let end = host.nowhere() - PAGE as u64;
    let create = |host: &mut Host, id: u16, entries: u32| {
        let pair = QueuePair { id, sq: end - PAGE as u64, cq: end - PAGE as u64, entries };
        host.controller.controller.create_queue_pair(&pair, &host.space)
    };
    let narrow = |host: &mut Host, entries: u32| {
        let pair = QueuePair { id: 1, sq: end - 8 * PAGE as u64, cq: end - PAGE as u64, entries };
        host.controller.controller.create_queue_pair(&pair, &host.space)
    };
    assert_eq!(create(&mut host, 1, 32), Err(Status::COMMAND_SEQUENCE_ERROR), "it is not enabled");
    host.enable();
    for id in [0, 129] {
        assert_eq!(create(&mut host, id, 32), Err(Status::INVALID_QUEUE_IDENTIFIER), "{id}");
    }
    assert_eq!(create(&mut host, 1, 64), Ok(()));
    assert!(host.controller.controller.delete_queue_pair(1));
    assert!(create(&mut host, 1, 65).is_err(), "its memory ends before");
    assert!(narrow(&mut host, 257).is_err(), "that of its completions ends before");
    for id in [1, 128] {
        assert_eq!(create(&mut host, id, 32), Ok(()));
        assert_eq!(create(&mut host, id, 32), Err(Status::INVALID_QUEUE_IDENTIFIER), "it is in use");
        assert!(host.controller.controller.delete_queue_pair(id));
        assert_eq!(create(&mut host, id, 32), Ok(()));
    }
    host.controller.controller.start_keep_alive(1000, host.now_ns);
    for _ in 0..2 {
        host.now_ns += 1500 * MS;
        host.run();
    }
    assert!(host.controller.controller.is_ready() && host.controller.controller.is_fatal());
    assert_eq!(create(&mut host, 2, 32), Err(Status::COMMAND_SEQUENCE_ERROR), "it is in fatal status");
}

/// Conformance: Base 3.9, traffic of a host over a fabric restarts its Keep Alive Timer: the start and the end of its commands.
#[test]
fn commands_keep_a_host_on_a_fabric_alive() {
    const SGL: u8 = 1 << 6;
    let model = Model::new(2048);
    let mut host = Host::new(vec![model.namespace(1)]);
    host.controller.controller.set_doorbell_mode(DoorbellMode::Capsules);
    host.enable();
    let (sq, cq) = (host.lay_out_sq(1, 16, 1), host.lay_out_cq(1, 16));
    let pair = QueuePair { id: 1, sq, cq, entries: 16 };
    host.controller.controller.create_queue_pair(&pair, &host.space).expect("it is ready");
    host.controller.controller.start_keep_alive(1000, host.now_ns);
    model.disk().hold = true;
    host.now_ns += 800 * MS;
    host.submit(1, SubmissionEntry { nsid: 1, ..entry(opcode::FLUSH) });
    host.run();
    assert_eq!(host.controller.deadline_ns(), Some(host.now_ns + 1000 * MS), "it has begun");
    host.now_ns += 800 * MS;
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.controller.deadline_ns(), Some(host.now_ns + 1000 * MS), "it has ended");
    // The reads of a self-test prove nothing about the host.
    model.disk().hold = false;
    let test = SubmissionEntry { nsid: 1, cdw10: 2, flags: SGL, ..entry(admin::DEVICE_SELF_TEST) };
    assert!(host.admin(test).status().is_success());
    model.take_seen();
    let until_ns = host.now_ns + 1000 * MS;
    while host.now_ns < until_ns - MS {
        host.now_ns += MS;
        host.run();
    }
    assert!(!model.take_seen().is_empty() && host.controller.controller.is_ready());
    assert!(!host.controller.controller.is_fatal());
    for _ in 0..2 {
        host.now_ns += 500 * MS;
        host.run();
    }
    assert!(host.controller.controller.is_fatal(), "the host has been silent");
}
