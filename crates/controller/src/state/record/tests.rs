//! Golden records: bytes as this version and earlier ones write them.
//!
//! A change of the format adds a file, and keeps those of earlier versions. `SLUICE_WRITE_GOLDEN=1` writes the
//! files of this version. `subsystem-without-power-id` was written by the version before the power identifier came.

use super::*;
use crate::state::doorbells::DoorbellMode;
use crate::state::registers::State;
use sluice_nvme::opcode::admin;
use std::path::PathBuf;

/// Time of the records.
const NOW_NS: u64 = 5_000_000_000;

/// Bytes of each record as this version writes them, and of the subsystem before it had its power identifier.
const CONTROLLER: &str = "controller";
const SUBSYSTEM: &str = "subsystem";
const SUBSYSTEM_WITHOUT_POWER_ID: &str = "subsystem-without-power-id";

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/records").join(format!("{name}.hex"))
}

/// Reads a file of hexadecimal digits.
fn golden(name: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(file(name)).expect("a golden record");
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits"))
        .collect()
}

/// Checks that this version writes the golden bytes.
fn check(name: &str, bytes: &[u8]) {
    if std::env::var_os("SLUICE_WRITE_GOLDEN").is_some() {
        let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let lines: Vec<String> = bytes.chunks(32).map(line).collect();
        std::fs::write(file(name), lines.join("\n") + "\n").expect("room on the disk");
    }
    assert!(
        golden(name) == bytes,
        "the format of the record `{name}` has changed: add a golden record for it"
    );
}

fn controller() -> ControllerRecord {
    let mut registers = Registers::new();
    (registers.state, registers.aqa) = (State::Enabled, 31 << 16 | 31);
    (registers.asq, registers.acq) = (0x10_0000, 0x10_1000);
    let sq = SqRecord { id: 1, cq: 1, class: 2, is_served: true, address: 0x20_0000, size: 64, head: 7 };
    let cq = CqRecord {
        id: 1,
        vector: Some(1),
        address: 0x21_0000,
        size: 64,
        tail: 9,
        phase: true,
        head: 8,
        head_error: HeadError::Reported,
    };
    let request =
        SubmissionEntry { opcode: admin::ASYNC_EVENT_REQUEST, cid: 77, ..SubmissionEntry::default() };
    ControllerRecord {
        cntlid: 3,
        host: HostId::Unnamed(0),
        mode: DoorbellMode::Mapped,
        is_mapped: true,
        shadow: Some([0x30_0000, 0x30_1000]),
        is_on: true,
        io_queues: 4,
        registers,
        sqs: vec![sq],
        cqs: vec![cq],
        events: Events::new(),
        requests: vec![request],
        features: Features::new(),
        notifications: Notifications::new(),
        errors: ErrorLog::new(),
        self_tests: (Vec::new(), 5),
        log_context: Some(vec![1, 2, 3]),
    }
}

fn subsystem() -> SubsystemRecord {
    let health = Health::golden();
    let namespace = NamespaceRecord {
        nsid: 1,
        uuid: [0xab; 16],
        block_size: 512,
        blocks: 1 << 20,
        reservations: Reservations::default(),
    };
    SubsystemRecord {
        namespaces: vec![namespace],
        health,
        persistent_events: PersistentEventRecord::default(),
        log_contexts: 4,
        power_id: Some([0xcd; 16]),
    }
}

/// Reads a record of a controller, made at `NOW_NS` and read a second later, and checks its meaning.
fn check_controller(bytes: &[u8]) {
    let read = ControllerRecord::decode(bytes, NOW_NS + 1_000_000_000).expect("a record");
    let expected = controller();
    assert_eq!((read.cntlid, read.mode, read.is_mapped), (3, DoorbellMode::Mapped, true));
    assert_eq!((read.shadow, read.is_on, read.io_queues), (expected.shadow, true, 4));
    let registers = (read.registers.state, read.registers.aqa, read.registers.asq, read.registers.acq);
    assert_eq!(registers, (State::Enabled, 31 << 16 | 31, 0x10_0000, 0x10_1000));
    let (sq, cq) = (&read.sqs[0], &read.cqs[0]);
    assert_eq!((sq.id, sq.cq, sq.class, sq.is_served), (1, 1, 2, true));
    assert_eq!((sq.address, sq.size, sq.head), (0x20_0000, 64, 7));
    assert_eq!((cq.vector, cq.address, cq.size), (Some(1), 0x21_0000, 64));
    assert_eq!((cq.tail, cq.phase, cq.head, cq.head_error), (9, true, 8, HeadError::Reported));
    assert_eq!((read.requests[0].opcode, read.requests[0].cid), (admin::ASYNC_EVENT_REQUEST, 77));
    assert_eq!((read.self_tests.1, read.log_context.as_deref()), (5, Some(&[1, 2, 3][..])));
}

/// Reads a record of a subsystem likewise.
fn check_subsystem(bytes: &[u8], power_id: Option<[u8; 16]>) {
    let read = SubsystemRecord::decode(bytes, NOW_NS + 1_000_000_000).expect("a record");
    assert_eq!(read.namespaces, subsystem().namespaces);
    // The clock of the reader is a second ahead, and the time is as long ago as it was.
    read.health.check_golden(2_000_000_000);
    assert_eq!((read.log_contexts, read.power_id), (4, power_id));
}

#[test]
fn this_version_writes_its_golden_records() {
    check(CONTROLLER, &controller().encode(NOW_NS));
    check(SUBSYSTEM, &subsystem().encode(NOW_NS));
}

#[test]
fn golden_records_keep_their_meaning() {
    check_controller(&golden(CONTROLLER));
    check_subsystem(&golden(SUBSYSTEM), Some([0xcd; 16]));
    check_subsystem(&golden(SUBSYSTEM_WITHOUT_POWER_ID), None);
}

/// Reads a record by the rule of the version before: without the tag of the last part.
#[test]
fn an_older_reader_skips_the_part_that_came_last() {
    let bytes = golden(SUBSYSTEM);
    let mut tags = Vec::new();
    let read = Reader::new(&bytes, NOW_NS).parts(|tag, _| {
        tags.push(tag);
        Ok(tag < subsystem_part::POWER_ID)
    });
    assert_eq!((read, tags), (Ok(()), vec![1, 2, 3, 4]));
    assert_eq!(bytes[..golden(SUBSYSTEM_WITHOUT_POWER_ID).len()], golden(SUBSYSTEM_WITHOUT_POWER_ID));
}

/// Adds `more` bytes at the end of each part, as a later version does.
fn lengthened(bytes: &[u8], more: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new(0);
    let mut rest = bytes;
    while let [a, b, flags, _, c, d, e, f, fields @ ..] = rest {
        let length = u32::from_le_bytes([*c, *d, *e, *f]) as usize;
        let need = if flags & 1 == 0 { Need::Optional } else { Need::Required };
        writer.part(u16::from_le_bytes([*a, *b]), need, |part| {
            part.raw(&fields[..length]);
            part.raw(more);
        });
        rest = &fields[length..];
    }
    assert!(rest.is_empty(), "whole parts");
    writer.finish()
}

/// Reads records of a later version, which has more fields and parts.
#[test]
fn records_of_a_later_version_are_read_or_refused_in_words() {
    let later = |name: &str, need: Need| {
        let mut part = Writer::new(0);
        part.part(99, need, |part| part.put(1u32));
        [lengthened(&golden(name), &[0xee; 12]), part.finish()].concat()
    };
    assert_eq!(lengthened(&golden(CONTROLLER), &[]), golden(CONTROLLER));
    check_controller(&later(CONTROLLER, Need::Optional));
    check_subsystem(&later(SUBSYSTEM, Need::Optional), Some([0xcd; 16]));
    let refused =
        ControllerRecord::decode(&later(CONTROLLER, Need::Required), 0).expect_err("a required part");
    assert_eq!(refused.to_string(), "it has a required part 0x63 of a later version");
    let refused = SubsystemRecord::decode(&later(SUBSYSTEM, Need::Required), 0).expect_err("a required part");
    assert_eq!(refused, RecordError::UnknownPart(99));
}

/// Reads records with each value of a queue's fields, and with the values beyond the limits.
#[test]
fn queues_of_records_have_their_limits() {
    let now_ns = NOW_NS;
    let with = |change: fn(&mut ControllerRecord)| {
        let mut record = controller();
        change(&mut record);
        ControllerRecord::decode(&record.encode(now_ns), now_ns)
    };
    type Change = fn(&mut ControllerRecord);
    let cases: [(Change, Option<&'static str>); 20] = [
        (|it| it.cqs[0].head_error = HeadError::None, None),
        (|it| it.cqs[0].head_error = HeadError::Seen, None),
        (|it| it.mode = DoorbellMode::Trapped, None),
        (|it| it.mode = DoorbellMode::Capsules, None),
        (|it| it.cqs[0].vector = None, None),
        (|it| it.cqs[0].vector = Some(128), None),
        (|it| it.cqs[0].vector = Some(129), Some("interrupt vector")),
        (|it| (it.cqs[0].id, it.sqs[0].id, it.sqs[0].cq) = (128, 128, 128), None),
        (|it| it.cqs[0].id = 129, Some("queue identifier")),
        (|it| it.sqs[0].id = 129, Some("queue identifier")),
        (|it| it.sqs[0].cq = 129, Some("queue identifier")),
        (|it| it.sqs[0].class = 3, None),
        (|it| it.sqs[0].class = 4, Some("priority class")),
        (|it| (it.sqs[0].size, it.sqs[0].head) = (4096, 4095), None),
        (|it| it.sqs[0].size = 4097, Some("size of a queue")),
        (|it| (it.sqs[0].size, it.sqs[0].head) = (2, 1), None),
        (|it| (it.sqs[0].size, it.sqs[0].head) = (1, 0), Some("size of a queue")),
        (|it| it.sqs[0].head = 64, Some("index of a queue")),
        (|it| it.cqs[0].head = 64, Some("head of a queue")),
        (|it| it.io_queues = 129, Some("number of queues")),
    ];
    for (number, (change, refusal)) in cases.into_iter().enumerate() {
        let found = with(change).map(|read| read.encode(now_ns));
        let mut expected = controller();
        change(&mut expected);
        let expected = match refusal {
            Some(what) => Err(RecordError::Invalid(what)),
            None => Ok(expected.encode(now_ns)),
        };
        assert!(found == expected, "case {number}: {:?} and not {refusal:?}", found.err());
    }
}

/// Reads golden records that were cut, at any byte.
#[test]
fn a_golden_record_that_was_cut_is_refused() {
    let (controller, subsystem) = (golden(CONTROLLER), golden(SUBSYSTEM));
    let mut refused = 0;
    for end in 0..controller.len() {
        refused += usize::from(ControllerRecord::decode(&controller[..end], 0).is_err());
    }
    // Between the optional parts at its end a record may end: before the parts 7, 8 and 9.
    assert_eq!(refused, controller.len() - 3);
    for end in 0..subsystem.len() {
        let is_whole = end == golden(SUBSYSTEM_WITHOUT_POWER_ID).len();
        let read = SubsystemRecord::decode(&subsystem[..end], 0);
        assert!(read.is_err() || is_whole || read.is_ok_and(|read| read.log_contexts == 0), "{end}");
    }
}
