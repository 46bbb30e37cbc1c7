//! Bytes of persistent events.

use super::{shared, small, subsystem};
use crate::model::Subsystem;
use crate::model::history::ascii;
use crate::state::management::Creation;
use crate::state::power::PowerCounts;
use crate::state::sanitize::{CAPABILITIES, SanitizeRecord, SanitizeState};
use sluice_nvme::feature::TimestampData;
use sluice_nvme::persistent_event::event;
use sluice_nvme::{FeatureId, Status, SubmissionEntry};

const MS: u64 = 1_000_000;
const NONE: u16 = 0xffff;

/// Returns type, controller and data of the newest event, and checks the rest of its header.
fn newest(drive: &Subsystem, now_ns: u64) -> (u8, u16, Vec<u8>) {
    let event = drive.jobs().persistent_events.events().next().expect("an event");
    let (header, data) = event.split_at(24);
    let timestamp = (now_ns / MS).to_le_bytes();
    assert_eq!(
        (&header[1..4], &header[6..14], &header[14..22]),
        (&[1, 21, 0][..], &timestamp[..], &[0; 8][..])
    );
    assert_eq!(usize::from(u16::from_le_bytes([header[22], header[23]])), data.len());
    (header[0], u16::from_le_bytes([header[4], header[5]]), data.to_vec())
}

/// Conformance: Base 5.16.1.14.1, each event has the fields of its command.
#[test]
fn events_have_the_fields_of_their_commands() {
    let mut drive = subsystem(vec![small(1)]);
    let entry = SubmissionEntry { nsid: 0x0102_0304, cdw10: 0x0506_0708, ..SubmissionEntry::default() };
    drive.note_format_start(&entry, 3 * MS);
    let data = vec![4, 3, 2, 1, 8, 0, 0, 0, 8, 7, 6, 5];
    assert_eq!(newest(&drive, 3 * MS), (event::FORMAT_START, NONE, data));
    for (result, outcome, status) in [(Ok(()), 0, 0), (Err(Status::WRITE_FAULT), 3, Status::WRITE_FAULT.0)] {
        drive.note_format_end(7, result, 4 * MS);
        let [low, high] = status.to_le_bytes();
        let data = vec![7, 0, 0, 0, 0, outcome, 0, 0, low, high, 0, 0];
        assert_eq!(newest(&drive, 4 * MS), (event::FORMAT_COMPLETION, NONE, data));
    }
    for (block_size, format) in [(512, 0), (4096, 1)] {
        let creation = Creation { nsid: 9, block_size, blocks: 0x1234, shared: format == 1, ana_group: 5 };
        drive.note_creation(creation, 5 * MS);
        let mut data = vec![0; 48];
        (data[8], data[9], data[24], data[25]) = (0x34, 0x12, 0x34, 0x12);
        (data[32], data[34], data[36], data[44]) = (format, format, 5, 9);
        assert_eq!(newest(&drive, 5 * MS), (event::CHANGE_NAMESPACE, NONE, data));
    }
    drive.note_deletion(9, 6 * MS);
    let mut data = vec![0; 48];
    (data[0], data[44]) = (1, 9);
    assert_eq!(newest(&drive, 6 * MS), (event::CHANGE_NAMESPACE, NONE, data));
    let record = SanitizeRecord { cdw10: 0x0a0b, pattern: 0x0c0d_0e0f, state: SanitizeState::Done };
    drive.note_sanitize_start(record, 7 * MS);
    let numbers = [CAPABILITIES, 0x0a0b, 0x0c0d_0e0f];
    let data = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
    assert_eq!(newest(&drive, 7 * MS), (event::SANITIZE_START, NONE, data));
    drive.note_sanitize_end(8 * MS);
    assert_eq!(
        newest(&drive, 8 * MS),
        (event::SANITIZE_COMPLETION, NONE, vec![0xff, 0xff, 0, 0, 0, 0, 0, 0])
    );
    assert_eq!(drive.timestamp(9 * MS), 9);
}

#[test]
fn events_of_a_controller_name_it() {
    let (mut drive, mut controllers) = shared(vec![small(1)], 3);
    let [_, _, controller] = &mut controllers[..] else { panic!("three controllers") };
    drive.resume_power(PowerCounts { cycles: 5, unsafe_shutdowns: 6 }, false);
    assert_eq!(drive.jobs().persistent_events.count(), 0);
    drive.resume_power(PowerCounts { cycles: 7, unsafe_shutdowns: 8 }, true);
    assert_eq!(newest(&drive, 0), (event::HARDWARE_ERROR, NONE, vec![8, 0, 0, 0]));
    assert_eq!(drive.power_counts(), PowerCounts { cycles: 7, unsafe_shutdowns: 8 });
    drive.health_mut().switched_on(2 * MS);
    controller.features.enabled(4 * MS);
    controller.note_ready(&mut drive, false, 9 * MS);
    let mut data = b"any     ".to_vec();
    data.extend([3, 0, 0, 0]);
    data.extend([0; 12]);
    data.extend([8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(newest(&drive, 9 * MS), (event::POWER_ON_OR_RESET, 3, data));
    assert_eq!(drive.jobs().persistent_events.count(), 2);
    controller.note_ready(&mut drive, true, 10 * MS);
    assert_eq!(drive.jobs().persistent_events.count(), 4, "with a page of the health");
    controller.note_firmware_commit(&mut drive, 0b101_010, Status::INVALID_FIRMWARE_SLOT, 11 * MS);
    let mut data = b"any     any     ".to_vec();
    data.extend([5, 2, 1, 6, 0, 0]);
    assert_eq!(newest(&drive, 11 * MS), (event::FIRMWARE_COMMIT, 3, data));
    controller.note_timestamp(&mut drive, TimestampData(0x0102), 12 * MS);
    let data = vec![2, 1, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(newest(&drive, 12 * MS), (event::TIMESTAMP_CHANGE, 3, data));
    let before = drive.jobs().persistent_events.count();
    for id in 0..=u8::MAX {
        let entry =
            SubmissionEntry { cdw10: 0x100 | u32::from(id), cdw11: 0x0201, ..SubmissionEntry::default() };
        let count = drive.jobs().persistent_events.count();
        controller.note_feature(&mut drive, &entry, 13 * MS);
        let of_start = [FeatureId::NUMBER_OF_QUEUES, FeatureId::ASYNC_EVENTS, FeatureId::TIMESTAMP];
        let is_noted = !of_start.contains(&FeatureId(id));
        assert_eq!(drive.jobs().persistent_events.count() - count, u32::from(is_noted), "{id:#x}");
        if is_noted {
            let data = vec![2, 0, 0, 0, id, 1, 0, 0, 1, 2, 0, 0];
            assert_eq!(newest(&drive, 13 * MS), (event::SET_FEATURE, 3, data));
        }
    }
    assert_eq!(drive.jobs().persistent_events.count() - before, 253);
    controller.note_unsafe_shutdown(&mut drive);
    assert_eq!(newest(&drive, 13 * MS), (event::HARDWARE_ERROR, 3, vec![8, 0, 0, 0]));
    controllers.into_iter().for_each(|controller| controller.leave(&mut drive));
}

#[test]
fn text_is_cut_off_or_padded() {
    for (text, expected) in
        [("", b"    "), ("ab", b"ab  "), ("abcde", b"abcd"), ("a\u{e9}\n~", b"a??~"), (" \x1f\x7f!", b" ??!")]
    {
        let mut field = [0; 4];
        ascii(&mut field, text);
        assert_eq!(&field, expected, "{text:?}");
    }
}
