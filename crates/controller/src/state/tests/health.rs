//! Counters of a drive, its error log, and the pages and records of both.

use super::{bytes_of, read};
use crate::state::health::{ErrorLog, Health, Statistics};
use crate::state::persistent_event::PersistentEvents;
use crate::state::power::PowerCounts;
use sluice_command::{Operation, Origin, Request};
use sluice_nvme::log::ErrorInformation;
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::persistent_event::{PowerOnOrReset, event};
use sluice_nvme::{Status, SubmissionEntry};
use zerocopy::IntoBytes;

const NS_PER_MINUTE: u64 = 60_000_000_000;

fn origin(sq: u16) -> Origin {
    Origin { sq, cid: 99, ..Origin::LAYER }
}

fn request(operation: Operation, length: u64) -> Request {
    Request { operation, length, ..Request::default() }
}

/// Conformance: Base 5.16.1.2, an entry names the command, its blocks, and the field that was wrong.
#[test]
fn an_error_names_its_command_and_the_wrong_field() {
    let entry = |opcode| SubmissionEntry {
        opcode,
        nsid: 7,
        cdw10: 0x89ab_cdef,
        cdw11: 0x0123_4567,
        ..SubmissionEntry::default()
    };
    const LBA: u64 = 0x0123_4567_89ab_cdef;
    let opcodes = [
        (opcode::READ, LBA),
        (opcode::WRITE, LBA),
        (opcode::COMPARE, LBA),
        (opcode::WRITE_ZEROES, LBA),
        (opcode::VERIFY, LBA),
        (opcode::FLUSH, 0),
        (opcode::DATASET_MANAGEMENT, 0),
        (opcode::RESERVATION_REGISTER, 0),
    ];
    for (opcode, lba) in opcodes {
        for sq in [0, 3] {
            let mut log = ErrorLog::new();
            log.command(&entry(opcode), &origin(sq), Status::LBA_OUT_OF_RANGE);
            let error = *log.entries().next().expect("an entry");
            let mut expected = ErrorInformation::new(Status::LBA_OUT_OF_RANGE);
            (expected.error_count, expected.sq_id, expected.cid) = (1, sq, 99);
            (expected.parameter_location, expected.nsid, expected.opcode) = (40, 7, opcode);
            expected.lba = if sq == 0 { 0 } else { lba };
            assert_eq!((error, log.count()), (expected, 1), "{opcode:#x} of queue {sq}");
        }
    }
    let places = [
        (Status::INVALID_OPCODE, 0),
        (Status::INVALID_NAMESPACE, 4),
        (Status::PRP_OFFSET_INVALID, 24),
        (Status::SGL_TYPE_INVALID, 24),
        (Status::INVALID_SGL_SEGMENT, 24),
        (Status::LBA_OUT_OF_RANGE, 40),
        (Status::INVALID_LOG_PAGE, 40),
        (Status::INVALID_QUEUE_IDENTIFIER, 40),
        (Status::INVALID_QUEUE_SIZE, 42),
        (Status::INVALID_INTERRUPT_VECTOR, 46),
        (Status::INVALID_FIELD, u16::MAX),
        (Status::WRITE_FAULT, u16::MAX),
    ];
    for (status, place) in places {
        // Do Not Retry and a retry delay are no part of the code.
        for status in [status, Status(status.0 ^ Status::DNR), status.with_retry_delay(2)] {
            let mut log = ErrorLog::new();
            log.command(&entry(opcode::READ), &origin(1), status);
            let error = log.entries().next().expect("an entry");
            assert_eq!((error.parameter_location, error.status()), (place, status));
        }
    }
    let mut log = ErrorLog::new();
    log.doorbell(5);
    log.keep_alive();
    let statuses: Vec<_> =
        log.entries().map(|error| (error.error_count, error.sq_id, error.status())).collect();
    let [timer, doorbell] = [Status::KEEP_ALIVE_TIMEOUT_EXPIRED, Status::INVALID_QUEUE_IDENTIFIER];
    assert_eq!(statuses, [(2, u16::MAX, timer), (1, u16::MAX, doorbell)]);
}

/// Counters with a value of its own for each.
fn used() -> Health {
    let mut health = Health::new();
    health.switched_on(NS_PER_MINUTE);
    health.power_lost(false);
    (0..3).for_each(|hour| health.switched_on((2 + hour) * 60 * NS_PER_MINUTE));
    for (operation, commands, bytes) in [
        (Operation::Read, 3, 512_000),
        (Operation::Write, 5, 1_024_000),
        (Operation::Flush, 7, 0),
        (Operation::WriteZeroes, 11, 4096),
        (Operation::Deallocate, 13, 8192),
    ] {
        (0..commands).for_each(|_| health.completed(&request(operation, bytes), Status::SUCCESS));
        health.succeeded(operation, 2 * commands, 2 * commands * bytes);
    }
    for status in [
        Status::WRITE_FAULT,
        Status::UNRECOVERED_READ_ERROR,
        Status::UNRECOVERED_READ_ERROR,
        Status::COMPARE_FAILURE,
        Status::LBA_OUT_OF_RANGE,
    ] {
        health.completed(&request(Operation::Write, 512), status);
    }
    (0..4).for_each(|minute| health.busy(minute * NS_PER_MINUTE));
    health
}

#[test]
fn all_commands_are_in_the_counters() {
    let health = used();
    let statistics = Statistics {
        commands: 3 * (3 + 5 + 7 + 11 + 13) + 5,
        errors: 5,
        bytes_read: 3 * 3 * 512_000,
        bytes_written: 3 * 5 * 1_024_000,
    };
    assert_eq!(health.statistics(), statistics);
    assert_eq!(health.copy().statistics(), statistics);
    let none = ErrorLog::new();
    assert_eq!(
        health.copy().smart(0, &none, 9_999 * NS_PER_MINUTE),
        health.smart(0, &none, 9_999 * NS_PER_MINUTE)
    );
    assert_eq!(health.modifications(), 3 * (5 + 11 + 13) + 5);
    let moved = 3 * (3 * 512_000 + 5 * 1_024_000 + 11 * 4096 + 13 * 8192);
    assert_eq!(health.bytes(), moved);
    let counts = PowerCounts { cycles: 2, unsafe_shutdowns: 1 };
    assert_eq!((health.power_counts(), health.power_cycles()), (counts, 2));
    let later = PowerCounts { cycles: 9, unsafe_shutdowns: 0 };
    // The counts in the events of an earlier daemon.
    let mut events = PersistentEvents::default();
    assert_eq!(events.record().power_counts(), PowerCounts::default());
    events.add(event::SMART_SNAPSHOT, 1, health.smart(0, &none, 0).as_bytes(), 0);
    assert_eq!(events.record().power_counts(), counts);
    let mut data = [0; PowerOnOrReset::SIZE];
    for cycles in [7, 3] {
        data[24] = cycles;
        events.add(event::POWER_ON_OR_RESET, 1, &data, 0);
        events.add(event::FORMAT_START, 1, &[0xff; 12], 0);
    }
    assert_eq!(events.record().power_counts(), PowerCounts { cycles: 7, unsafe_shutdowns: 1 });
    assert_eq!(counts.max(later), PowerCounts { cycles: 9, unsafe_shutdowns: 1 });
    let mut health = health;
    health.resume_power(PowerCounts { cycles: 40, unsafe_shutdowns: 30 });
    health.power_lost(true);
    health.power_lost(true);
    health.resume_on();
    health.power_lost(false);
    health.power_lost(true);
    health.switched_on(0);
    assert_eq!(health.power_counts(), PowerCounts { cycles: 41, unsafe_shutdowns: 31 });
}

/// Conformance: Base 5.16.1.3, each field of the page is at its place.
#[test]
fn the_health_page_has_each_counter_at_its_place() {
    let health = used();
    let mut errors = ErrorLog::new();
    (0..17).for_each(|_| errors.keep_alive());
    let page = health.smart(0x15, &errors, 190 * NS_PER_MINUTE);
    let bytes = page.as_bytes();
    assert_eq!(bytes[..8], [0x15, 0x39, 0x01, 100, 10, 0, 0, 0]);
    let wide = |at: usize| u128::from_le_bytes(bytes[at..at + 16].try_into().expect("16 bytes"));
    let expected = [
        (32, 9),   // Read, thousands of 512 bytes.
        (48, 30),  // Written.
        (64, 9),   // Read commands.
        (80, 15),  // Write commands.
        (96, 4),   // Busy minutes.
        (112, 2),  // Power cycles.
        (128, 3),  // Hours.
        (144, 1),  // Unsafe shutdowns.
        (160, 3),  // Media errors.
        (176, 17), // Errors of the log.
    ];
    for (at, value) in expected {
        assert_eq!(wide(at), value, "at {at}");
    }
    assert_eq!((&bytes[8..32], &bytes[192..]), (&[0; 24][..], &[0; 320][..]));
    for (minutes, hours) in [(0, 0), (60, 0), (61, 1), (120, 1), (121, 2)] {
        assert_eq!(health.power_on_hours(minutes * NS_PER_MINUTE), hours);
        let ms = minutes.saturating_sub(1) * 60_000;
        assert_eq!(health.power_on_ms(minutes * NS_PER_MINUTE), ms);
    }
    assert_eq!((Health::new().power_on_ms(u64::MAX), Health::new().power_on_hours(u64::MAX)), (0, 0));
}

/// Checks the effort, by which other drives of a reactor wait.
#[test]
fn effort_is_counted_in_bytes_of_the_same_time() {
    let effort = |work: fn(&mut Health)| {
        let mut health = Health::new();
        work(&mut health);
        assert_eq!(health.statistics(), Statistics::default());
        health.bytes()
    };
    assert_eq!(effort(|health| health.count_taken(3)), 3 * 4096);
    assert_eq!(effort(|health| health.count_segments(5)), 5 * 128);
    assert_eq!(effort(|health| health.note_effort()), 65_536);
    assert_eq!(effort(|health| health.step(&request(Operation::Write, 0))), 4096);
    assert_eq!(effort(|health| health.step(&request(Operation::Write, 5000))), 5000);
    assert_eq!(effort(|health| health.step(&request(Operation::Deallocate, u64::MAX))), 1 << 20);
}

#[test]
fn counters_and_errors_keep_their_values_in_records() {
    let health = used();
    let bytes = bytes_of(|part| health.put(part));
    let found = read(&bytes, Health::take);
    assert_eq!(bytes_of(|part| found.put(part)), bytes);
    assert_eq!(found.statistics(), health.statistics());
    let (now_ns, none) = (190 * NS_PER_MINUTE, ErrorLog::new());
    assert_eq!(found.smart(1, &none, now_ns), health.smart(1, &none, now_ns));
    let mut log = ErrorLog::new();
    (0..70).for_each(|queue| log.command(&SubmissionEntry::default(), &origin(queue), Status::INVALID_FIELD));
    let bytes = bytes_of(|part| log.put(part));
    let found = read(&bytes, ErrorLog::take);
    assert_eq!((found.count(), bytes_of(|part| found.put(part))), (70, bytes));
    assert!(found.entries().eq(log.entries()));
}

/// Checks that a minute with work of the owner and of a remote controller counts once, and so does each command.
#[test]
fn counters_of_remote_queues_are_added_once() {
    let mut owner = used();
    let before = owner.statistics();
    let mut remote = Health::of_remote(owner.busy_time());
    let tally = owner.remote.begin();
    remote.completed(&request(Operation::Read, 1000), Status::SUCCESS);
    remote.completed(&request(Operation::Read, 1000), Status::WRITE_FAULT);
    remote.busy(4 * NS_PER_MINUTE);
    tally.put(remote.here(), remote.busy_time(), 6, 0);
    let after = Statistics {
        commands: before.commands + 2,
        errors: before.errors + 1,
        bytes_read: before.bytes_read + 1000,
        ..before
    };
    let figures = |health: &Health| {
        let page = health.smart(0, &ErrorLog::new(), 0);
        [page.controller_busy_time[0], page.media_errors[0], page.error_log_entries[0]]
    };
    assert_eq!((owner.statistics(), figures(&owner)), (after, [5, 4, 6]));
    assert_eq!(owner.copy().statistics(), after);
    owner.take_back(&tally);
    assert_eq!((owner.statistics(), figures(&owner)), (after, [5, 4, 0]));
    owner.busy(5 * NS_PER_MINUTE - 1);
    assert_eq!(figures(&owner)[0], 5, "the minute has not ended");
    owner.busy(5 * NS_PER_MINUTE);
    assert_eq!(figures(&owner)[0], 6);
}
