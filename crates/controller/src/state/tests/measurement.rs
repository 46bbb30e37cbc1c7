//! Figures of traces and slow commands.

use crate::state::counters::{CommandCounts, DetailCells, QueueCounts, without_namespace};
use crate::state::latency::{Latency, LatencyCells, Run, TimedOperation};
use crate::state::sampling::stamp;
use crate::state::slow::{SlowCommand, Slowest};
use crate::state::trace::{TRACE_EVERY, TRACE_LEASE_NS, TraceChoice, TraceRing, TracedCommand, Tracer};
use quanta::Clock;
use sluice_command::{Limits, Operation, Origin, Slab, Slot, StageTimes};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};
use std::sync::Arc;
use std::time::Duration;

fn entry() -> SubmissionEntry {
    SubmissionEntry {
        opcode: opcode::WRITE,
        nsid: 3,
        cdw10: 0x10,
        cdw11: 2,
        cdw12: 0x4000_0007,
        ..SubmissionEntry::default()
    }
}

#[test]
fn a_traced_command_has_its_stages_and_a_quick_one_is_left_out() {
    let (clock, time) = Clock::mock();
    time.increment(Duration::from_nanos(500));
    let ring = Arc::new(TraceRing::new(clock, TraceChoice { every: TRACE_EVERY, slow_ns: 400 }));
    let tracer = Tracer::new(Arc::clone(&ring));
    assert_eq!((tracer.every(), ring.choice().slow_ns), (512, 400));
    let origin = Origin { controller: 5, sq: 6, cid: 7, ..Origin::LAYER };
    let times = StageTimes { fetched: 700, classified: 750, sent: 0, returned: 900, path: 2 };
    tracer.complete(&times, 1099, &origin, &entry(), Status::SUCCESS);
    assert_eq!(ring.take(), None, "399 ns are too few");
    tracer.complete(&times, 1100, &origin, &entry(), Status::WRITE_FAULT);
    let expected = TracedCommand {
        fetched_ns: 200,
        classified_ns: Some(50),
        sent_ns: None,
        returned_ns: Some(200),
        completed_ns: 400,
        controller: 5,
        sq: 6,
        cid: 7,
        opcode: opcode::WRITE,
        nsid: 3,
        slba: 0x2_0000_0010,
        blocks: 8,
        path: 2,
        status: Status::WRITE_FAULT,
    };
    assert_eq!((ring.take(), ring.take(), ring.dropped()), (Some(expected), None, 0));
    tracer.miss();
    tracer.miss();
    assert_eq!((ring.dropped(), tracer.is_on(), ring.is_over()), (2, true, false));
    time.increment(TRACE_LEASE_NS - 1);
    assert!(!ring.is_over());
    time.increment(1_u64);
    assert!(ring.is_over() && !tracer.is_on());
    ring.renew();
    assert!(!ring.is_over());
    ring.end();
    assert!(ring.is_over());
}

#[test]
fn a_slow_command_has_its_blocks() {
    let command = SlowCommand::of(6, 7, &entry());
    let expected =
        SlowCommand { ns: 0, opcode: opcode::WRITE, nsid: 3, slba: 0x2_0000_0010, blocks: 8, sq: 6, cid: 7 };
    assert_eq!(command, expected);
    // One of the same time as the one that waits is not noted.
    let slowest = Slowest::default();
    slowest.note(SlowCommand { ns: 5, cid: 1, ..command });
    slowest.note(SlowCommand { ns: 5, cid: 2, ..command });
    assert_eq!(slowest.take().map(|command| command.cid), Some(1));
    slowest.note(SlowCommand { ns: 0, cid: 3, ..command });
    slowest.note(SlowCommand { ns: 1, cid: 4, ..command });
    assert_eq!(slowest.take().map(|command| command.cid), Some(4));
}

/// Checks that a measurement goes on after a trace, and a trace without one leaves nothing.
#[test]
fn a_measurement_outlives_a_trace() {
    let (clock, _) = Clock::mock();
    let ring = || Arc::new(TraceRing::new(clock.clone(), TraceChoice { every: 1, slow_ns: 0 }));
    let cells = Arc::new(LatencyCells::new(9));
    let mut measured = Latency::new(clock.clone(), Arc::clone(&cells));
    assert!(std::ptr::eq(measured.cells(), &*cells));
    assert!(measured.set_tracer(Some(Tracer::new(ring()))) && measured.tracer().is_some());
    assert!(measured.set_tracer(None) && measured.tracer().is_none());
    let mut traced = Latency::of_trace(clock.clone());
    assert!(traced.set_tracer(Some(Tracer::new(ring()))) && !traced.set_tracer(None));
    assert!(cells.layers().is_none() && LatencyCells::new(9).with_layers().layers().is_some());
    let counted = LatencyCells::new(9).with_layers();
    assert!(counted.layers().is_some_and(|it| Arc::strong_count(it) == 1));
    let names = TimedOperation::ALL.map(TimedOperation::as_str);
    assert_eq!(names, ["read", "write", "flush", "other"]);
    assert_eq!(without_namespace(0x1f05_0081), 0x1f80_0081);
    assert_eq!(without_namespace(0x1fff_0000), 0x1f80_0000);
}

fn slot(operation: Operation, length: u64) -> Slot {
    let mut slot = Slot::default();
    slot.origin = Origin { sq: 3, namespace: 4, controller: 5, ..Origin::LAYER };
    (slot.request.operation, slot.request.length) = (operation, length);
    slot
}

/// Checks which commands are counted together: those of one queue, namespace and operation with the same stamp.
#[test]
fn commands_that_end_together_are_counted_together() {
    let first = slot(Operation::Write, 512);
    let mut run = Run::of(&first);
    assert_eq!((run.operation, run.commands, run.bytes), (Operation::Write, 1, 512));
    assert!(run.has(&slot(Operation::Write, 4096)) && !run.has(&slot(Operation::Read, 4096)));
    for change in [
        (|it: &mut Slot| it.origin.sq = 4) as fn(&mut Slot),
        |it| it.origin.namespace = 5,
        |it| it.origin.controller = 6,
        |it| (it.origin.timed, it.stamp) = (true, 0x700),
        |it| it.status = Status::WRITE_FAULT,
    ] {
        let mut other = slot(Operation::Write, 512);
        change(&mut other);
        assert!(!run.has(&other) && !run.has_timed(&other));
    }
    run.add(&slot(Operation::Write, 4096));
    run.add(&slot(Operation::Write, u64::MAX));
    assert_eq!((run.commands, run.bytes), (3, 4607));
    let stamped = |stamp| {
        let mut slot = slot(Operation::Write, 512);
        (slot.origin.timed, slot.stamp) = (true, stamp);
        slot
    };
    let run = Run::timed(&stamped(0x600), 9);
    assert!(run.has_timed(&stamped(0x600)) && !run.has_timed(&stamped(0x800)));
    assert!(!run.has(&stamped(0x600)) && !run.has_timed(&first));
    // Bit 8 is the mark of a trace.
    let marked = Run::timed(&stamped(0x700), 9);
    assert!(!marked.has_timed(&stamped(0x700)), "a traced command is counted alone");
}

/// Checks that the last queue of a controller is not the first one of the next.
#[test]
fn each_queue_of_each_controller_has_its_figures() {
    let cells = DetailCells::new();
    let mut expected = Vec::new();
    for (number, (controller, queue)) in
        [(0, 128), (1, 0), (1, 128), (31, 0), (31, 128)].into_iter().enumerate()
    {
        let commands = number as u64 + 1;
        cells.add_failed(u32::from(controller) << 24 | u32::from(queue), commands);
        let counts = CommandCounts { commands, errors: commands, ..CommandCounts::default() };
        expected.push(QueueCounts { controller, queue, counts });
    }
    let mut found = Vec::new();
    cells.add_queues(&mut found);
    assert_eq!(found, expected);
}

/// Checks that a slow command is described by its own entry.
#[test]
fn the_slot_of_a_slow_command_is_its_own() {
    let (clock, time) = Clock::mock();
    time.increment(Duration::from_nanos(100));
    let cells = Arc::new(LatencyCells::new(50));
    let latency = Latency::new(clock.clone(), Arc::clone(&cells));
    let mut slab = Slab::new(Limits::new(4, 0)).expect("memory");
    let commands: Vec<_> = (1..4_u16)
        .map(|cid| {
            let entry = SubmissionEntry { cid, cdw10: u32::from(cid) * 100, ..entry() };
            slab.admit(&entry, Origin { sq: 3, cid, ..Origin::default() }).expect("room")
        })
        .collect();
    for (wait, slow) in [(49, false), (1, true)] {
        time.increment(Duration::from_nanos(wait));
        let now = latency.raw();
        for command in &commands {
            let number = slab.number(command);
            let slot = slab.slot_mut(command);
            (slot.origin.timed, slot.stamp) = (true, stamp(100, 1) | u64::from(opcode::WRITE));
            latency.add(&Run::timed(slab.slot(command), number), now, &slab);
            let expected = if slow { Some((slab.entry(command).cid, 50)) } else { None };
            let found = cells.take_slowest();
            assert_eq!(found.map(|it| (it.cid, it.ns)), expected);
            assert_eq!(found.map(|it| it.slba), expected.map(|(cid, _)| (2 << 32) + u64::from(cid) * 100));
        }
    }
    assert_eq!(cells.slow(), 3);
    commands.into_iter().for_each(|command| slab.release(command));
}
