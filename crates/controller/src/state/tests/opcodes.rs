//! Tables with a row for each opcode, and one for each opcode that is not named.

use crate::state::abandoned::{Change, changed_bytes};
use crate::state::data_pointer::check_flags;
use crate::state::fused::{self, HeldCommands};
use crate::state::kept::is_repeatable;
use crate::state::remote_queues::cause::RecallCause;
use crate::state::remote_queues::groups::{RemoteGroup, RemoteGroups, is_of_owner};
use crate::state::remote_queues::tally::Tallies;
use sluice_command::{Limits, Operation, Origin, Range, Request, Slab, Slot, Steps};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{LogId, Status, SubmissionEntry};

fn entry(opcode: u8) -> SubmissionEntry {
    SubmissionEntry { opcode, ..SubmissionEntry::default() }
}

/// Checks that a command of a dead process is executed again only if the result is the same.
#[test]
fn commands_that_are_repeated() {
    let of_admin = [0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7c, 0x80];
    let of_io = [0x00, 0x01, 0x02, 0x04, 0x05, 0x08, 0x09, 0x0c, 0x0d, 0x0e, 0x11, 0x15, 0x19];
    for opcode in 0..=u8::MAX {
        assert_eq!(is_repeatable(0, &entry(opcode)), of_admin.contains(&opcode), "{opcode:#x}");
        assert_eq!(is_repeatable(7, &entry(opcode)), of_io.contains(&opcode), "{opcode:#x}");
        for fuse in [1, 2] {
            let entry = SubmissionEntry { flags: fuse, ..entry(opcode) };
            assert!(!is_repeatable(7, &entry), "{opcode:#x}, half {fuse}");
        }
    }
}

/// Conformance: Base 3.3.3.1, reserved forms of FUSE and PSDT are refused, and reserved bits are ignored.
#[test]
fn flags_of_commands() {
    for flags in 0..=u8::MAX {
        let is_valid = flags & 0b11 == 0 && flags & 0xc0 != 0xc0;
        let expected = if is_valid { Ok(()) } else { Err(Status::INVALID_FIELD) };
        assert_eq!(check_flags(&SubmissionEntry { flags, ..entry(io::READ) }), expected, "{flags:#x}");
    }
}

fn split() -> RemoteGroups {
    let group = RemoteGroup { cq: (1, 8), sqs: vec![(1, 8)], generation: 0, rung: false };
    let mut all = RemoteGroups::default();
    all.groups.push(group);
    all
}

/// Checks that commands with state of all queues recall these, and others go on.
#[test]
fn commands_that_recall_remote_queues() {
    let free = [admin::ASYNC_EVENT_REQUEST, admin::KEEP_ALIVE, admin::IDENTIFY, admin::GET_FEATURES];
    for opcode in (0..=u8::MAX).filter(|opcode| *opcode != admin::GET_LOG_PAGE) {
        let (mut groups, mut tallies) = (split(), Tallies::default());
        let waits = !free.contains(&opcode);
        assert_eq!(groups.defers_admin(&mut tallies, &entry(opcode)), waits, "{opcode:#x}");
        assert_eq!(groups.recall_cause, waits.then_some(RecallCause::AdminCommand(opcode)));
        assert!(!RemoteGroups::default().defers_admin(&mut tallies, &entry(opcode)));
    }
    let of_blocks =
        [io::READ, io::WRITE, io::FLUSH, io::WRITE_ZEROES, io::DATASET_MANAGEMENT, io::COMPARE, io::VERIFY];
    for opcode in 0..=u8::MAX {
        for flags in [0, 1, 2] {
            let mut groups = split();
            let waits = flags != 0 || !of_blocks.contains(&opcode);
            assert_eq!(groups.defers(&SubmissionEntry { flags, ..entry(opcode) }), waits, "{opcode:#x}");
            assert_eq!(groups.recall_cause, waits.then_some(RecallCause::IoCommand(opcode)));
        }
    }
}

/// Checks that pages with counters wait for remote turns, and pages with errors for the queues.
#[test]
fn log_pages_that_need_remote_queues() {
    let of_owner = [0x00, 0x03, 0x04, 0x05, 0x06, 0x0c, 0x12, 0x13];
    let of_counters = [0x02, 0x81];
    for log in 0..=u8::MAX {
        assert_eq!(is_of_owner(LogId(log)), of_owner.contains(&log), "{log:#x}");
        let page = SubmissionEntry { cdw10: 0x100 | u32::from(log), ..entry(admin::GET_LOG_PAGE) };
        for (in_turn, logged) in [(false, 0), (true, 0), (false, 1), (true, 1)] {
            let (mut groups, mut tallies) = (split(), Tallies::default());
            let tally = tallies.begin();
            tally.put(&Default::default(), Default::default(), logged, 0);
            if in_turn {
                tally.open();
            }
            let (waits, recalls) = match log {
                _ if of_owner.contains(&log) => (false, false),
                _ if of_counters.contains(&log) => (in_turn, false),
                1 => (in_turn || logged > 0, !in_turn && logged > 0),
                _ => (true, true),
            };
            let context = format!("log {log:#x}, in a turn: {in_turn}, {logged} errors");
            assert_eq!(groups.defers_admin(&mut tallies, &page), waits, "{context}");
            assert_eq!(groups.recall_cause.is_some(), recalls, "{context}");
        }
    }
}

/// Checks that an abandoned command may still change its blocks, and no others.
#[test]
fn blocks_that_a_command_may_still_change() {
    const ALL: Option<std::ops::Range<u64>> = Some(0..u64::MAX);
    let command = |opcode| SubmissionEntry { cdw10: 0x10, cdw11: 1, cdw12: 0xffff_0003, ..entry(opcode) };
    let blocks = Some((0x1_0000_0010 << 9)..(0x1_0000_0014_u64 << 9));
    let origin = |opcode, raw| Origin { opcode, raw, ..Origin::LAYER };
    let of = |opcode, raw, operation| {
        let request = Request { operation, ..Request::default() };
        let mut slot = Slot::default();
        (slot.origin, slot.request) = (origin(opcode, raw), request);
        changed_bytes(&slot, &command(opcode), 9)
    };
    for opcode in 0..=u8::MAX {
        let expected = match opcode {
            io::READ | io::COMPARE | io::VERIFY | io::FLUSH => None,
            io::RESERVATION_REGISTER
            | io::RESERVATION_REPORT
            | io::RESERVATION_ACQUIRE
            | io::RESERVATION_RELEASE
            | fused::FUSED
            | fused::WAITS => None,
            io::WRITE | io::WRITE_ZEROES | io::WRITE_UNCORRECTABLE => blocks.clone(),
            // Without ranges, which are not read yet.
            io::DATASET_MANAGEMENT | io::COPY => None,
            _ => ALL,
        };
        assert_eq!(of(opcode, false, Operation::Read), expected, "{opcode:#x}");
        let is_free = opcode == fused::WAITS || (0x0d..0x16).contains(&opcode) && expected.is_none();
        for operation in [Operation::Read, Operation::Write, Operation::Flush, Operation::Deallocate] {
            let expected = if operation.modifies() && !is_free { ALL } else { None };
            assert_eq!(of(opcode, true, operation), expected, "{opcode:#x} for a device");
        }
    }
    let range = |offset, length| Range { nsid: 1, offset, length };
    let ranges = vec![range(4096, 512), range(1024, 512), range(8192, 1024)];
    for (opcode, progress, expected) in [
        (io::DATASET_MANAGEMENT, 0, 1024..9216),
        (io::COPY, 0, 0x1_0000_0010 << 9..(0x1_0000_0010_u64 << 9) + 2048),
        (io::COPY, 2, 0x1_0000_0010 << 9..(0x1_0000_0010_u64 << 9) + 1024),
        (io::COPY, 9, 0x1_0000_0010 << 9..0x1_0000_0010_u64 << 9),
    ] {
        let steps =
            Steps { ranges: ranges.clone(), destination: 0x1_0000_0010 << 9, progress, ..Steps::default() };
        let mut slot = Slot::default();
        (slot.origin, slot.steps) = (origin(opcode, false), Some(Box::new(steps)));
        assert_eq!(changed_bytes(&slot, &command(opcode), 9), Some(expected), "{opcode:#x}");
    }
}

#[test]
fn an_abandoned_command_is_known_by_queue_and_identifier() {
    let mut slab = Slab::new(Limits::new(2, 0)).expect("memory");
    let origin = Origin { controller: 1, sq: 2, epoch: 3, cid: 4, ..Origin::LAYER };
    let command = slab.admit(&SubmissionEntry::default(), origin).expect("room");
    let change = |origin, number| Change { number, origin, nsid: 1, bytes: 0..1 };
    let number = slab.number(&command);
    assert!(change(origin, number).is_under_way(&slab));
    for other in [
        Origin { controller: 0, ..origin },
        Origin { sq: 0, ..origin },
        Origin { epoch: 0, ..origin },
        Origin { cid: 0, ..origin },
    ] {
        assert!(!change(other, number).is_under_way(&slab));
        let is_of_queue = (other.controller, other.sq, other.epoch) == (1, 2, 3);
        assert_eq!(fused::is_of(origin, other), is_of_queue);
    }
    assert!(!change(origin, 1 - number).is_under_way(&slab));
    slab.release(command);
    assert!(!change(origin, number).is_under_way(&slab));
}

/// Checks that a drive is busy with waiting commands as long as there are some.
#[test]
fn waiting_commands_are_work_until_they_are_gone() {
    let mut slab = Slab::new(Limits::new(2, 0)).expect("memory");
    let mut held = HeldCommands::default();
    assert!(!held.may_hold() && !held.fused.is_busy());
    held.fused.has_work();
    assert!(held.fused.is_busy());
    held.note_busy();
    assert!(!held.fused.is_busy());
    let admit = |slab: &mut Slab| slab.admit(&SubmissionEntry::default(), Origin::LAYER).expect("room");
    let command = admit(&mut slab);
    held.fused.hold(command, &mut Slot::default());
    assert!(held.fused.is_busy() && !held.may_hold());
    held.note_busy();
    assert!(held.fused.is_busy());
    slab.release(held.fused.held.pop().expect("it waits"));
    let mut slot = Slot::default();
    slot.origin.ahead = true;
    held.abandoned.hold(admit(&mut slab), &mut slot);
    assert_eq!((slot.origin.opcode, slot.origin.ahead), (fused::WAITS, false));
    held.note_busy();
    assert!(held.fused.is_busy() && held.may_hold() && !held.abandoned.is_empty());
    slab.release(held.abandoned.held.pop().expect("it waits"));
    held.note_busy();
    assert!(!held.fused.is_busy() && !held.may_hold());
    let change = Change { number: 0, origin: Origin::LAYER, nsid: 1, bytes: 0..1 };
    held.abandoned.changes.push(change);
    held.note_busy();
    assert!(held.fused.is_busy() && held.may_hold());
    held.abandoned.changes.clear();
    held.abandoned.ready.push(admit(&mut slab));
    assert!(held.may_hold());
    slab.release(held.abandoned.ready.pop().expect("it is ready"));
}
