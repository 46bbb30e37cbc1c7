//! Stages of traced commands.

use crate::host::{Host, entry, io as io_entry};
use crate::model::Model;
use sluice_controller::{
    CannotMigrate, LatencyCells, LatencyClock, TRACE_LEASE_NS, TraceChoice, TraceRing, TracedCommand,
};
use sluice_nvme::opcode::io;
use sluice_nvme::{Status, SubmissionEntry};
use std::sync::Arc;

const ALL: TraceChoice = TraceChoice { every: 1, slow_ns: 0 };

/// Begins a trace.
fn begin(host: &mut Host, clock: &LatencyClock, choice: TraceChoice) -> Arc<TraceRing> {
    let ring = Arc::new(TraceRing::new(clock.clone(), choice));
    host.controller.subsystem.begin_trace(Arc::clone(&ring));
    ring
}

/// Returns the commands that wait in a ring.
fn taken(ring: &TraceRing) -> Vec<TracedCommand> {
    std::iter::from_fn(|| ring.take()).collect()
}

#[test]
fn a_traced_command_has_its_stages_and_its_blocks() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let (clock, time) = LatencyClock::mock();
    time.increment(1000_u64);
    let ring = begin(&mut host, &clock, ALL);
    model.disk().hold = true;
    let buffer = host.allocate(8192);
    time.increment(7_u64);
    host.submit(1, io_entry(io::READ, 8, 3, buffer));
    host.run();
    assert_eq!(taken(&ring), [], "it is in flight");
    time.increment(300_u64);
    model.disk().hold = false;
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.reap_all(1).len(), 1);
    let [read] = taken(&ring)[..] else { panic!("one command") };
    assert_eq!((read.opcode, read.nsid, read.slba, read.blocks), (io::READ, 1, 8, 3));
    assert_eq!((read.sq, read.status, read.path), (1, Status::SUCCESS, 0));
    assert_eq!((read.fetched_ns, read.classified_ns), (7, None));
    assert_eq!((read.sent_ns, read.returned_ns, read.completed_ns), (Some(0), Some(300), 300));
    assert_eq!(ring.dropped(), 0);
}

#[test]
fn commands_that_fail_or_have_several_steps_are_traced() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let (clock, time) = LatencyClock::mock();
    time.increment(1000_u64);
    let ring = begin(&mut host, &clock, ALL);
    let buffer = host.allocate(4096);
    let flush = SubmissionEntry { nsid: 1, ..entry(io::FLUSH) };
    let expected = [
        (io_entry(io::WRITE, 0, 1, buffer), true),
        (io_entry(io::COMPARE, 0, 1, buffer), true),
        (io_entry(io::VERIFY, 0, 1, 0), true),
        (flush, true),
        (io_entry(io::READ, 64, 1, buffer), false),
        (SubmissionEntry { nsid: 9, ..io_entry(io::READ, 0, 1, buffer) }, false),
    ];
    for (entry, is_sent) in expected {
        let status = host.io(entry);
        let [found] = taken(&ring)[..] else { panic!("{entry:?}") };
        assert_eq!(
            (found.opcode, found.status.is_success()),
            (entry.opcode, status.is_success()),
            "{found:?}"
        );
        assert_eq!(found.sent_ns.is_some(), is_sent, "{found:?}");
        assert_eq!(found.returned_ns.is_some(), is_sent, "{found:?}");
    }
}

#[test]
fn histograms_count_traced_commands_like_all_others() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let (clock, time) = LatencyClock::mock();
    time.increment(1000_u64);
    let cells = Arc::new(LatencyCells::default());
    host.controller.subsystem.measure_latency(clock.clone(), Arc::clone(&cells));
    for every in [1, 16] {
        let ring = begin(&mut host, &clock, TraceChoice { every, ..ALL });
        let buffer = host.allocate(4096);
        for _ in 0..40 {
            host.submit(1, io_entry(io::READ, 0, 1, buffer));
        }
        host.run();
        assert_eq!(host.reap_all(1).len(), 40);
        let (found, all) = (taken(&ring).len() as u64, ring.dropped());
        assert_eq!(found + all, if every == 1 { 40 } else { 3 }, "{found} and {all}");
    }
    let counted = LatencyCells::sums([&*cells])[0].counts.iter().sum::<u64>();
    assert!((80 - 15..=80).contains(&counted), "{counted}");
}

#[test]
fn a_trace_whose_client_is_gone_ends_by_itself() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let (clock, time) = LatencyClock::mock();
    let ring = begin(&mut host, &clock, ALL);
    let buffer = host.allocate(4096);
    let read = io_entry(io::READ, 0, 1, buffer);
    assert!(host.io(read).is_success());
    assert_eq!(taken(&ring).len(), 1);
    time.increment(TRACE_LEASE_NS);
    assert!(host.io(read).is_success() && host.io(read).is_success());
    assert_eq!(taken(&ring), []);
    assert_eq!(Arc::strong_count(&ring), 1, "the subsystem holds nothing of it");
    let ring = begin(&mut host, &clock, ALL);
    assert!(host.io(read).is_success());
    assert_eq!(taken(&ring).len(), 1);
}

#[test]
fn fast_commands_are_left_out_of_a_trace_of_slow_ones() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let (clock, time) = LatencyClock::mock();
    let ring = begin(&mut host, &clock, TraceChoice { slow_ns: 500, ..ALL });
    let buffer = host.allocate(4096);
    for ns in [499_u64, 500] {
        model.disk().hold = true;
        host.submit(1, io_entry(io::READ, 3, 1, buffer));
        host.submit(1, io_entry(io::READ, 0, 1, buffer));
        host.run();
        time.increment(ns);
        model.disk().hold = false;
        host.answer(1, &model, 2);
        host.run();
        assert_eq!(host.reap_all(1).len(), 2);
    }
    let found: Vec<_> = taken(&ring).iter().map(|it| it.completed_ns).collect();
    assert_eq!(found, [500, 500]);
}

#[test]
fn the_queues_of_a_traced_drive_stay_until_the_trace_is_over() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let (clock, time) = LatencyClock::mock();
    let migrate = |host: &Host| host.controller.subsystem.peer_config().map(drop);
    let ring = begin(&mut host, &clock, ALL);
    assert_eq!(migrate(&host), Err(CannotMigrate("its commands are traced")));
    time.increment(TRACE_LEASE_NS);
    assert_eq!(migrate(&host), Ok(()));
    ring.renew();
    assert!(migrate(&host).is_err());
    ring.end();
    assert_eq!(migrate(&host), Ok(()));
}
