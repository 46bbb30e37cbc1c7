//! Figures of traces and slow commands.

use crate::state::slow::{SlowCommand, Slowest};
use crate::state::trace::{TRACE_EVERY, TRACE_LEASE_NS, TraceChoice, TraceRing, TracedCommand, Tracer};
use quanta::Clock;
use sluice_command::{Origin, StageTimes};
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
