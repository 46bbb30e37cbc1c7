//! Set Features and Get Features.

use crate::host::{Host, MS, PAGE, entry, io as io_entry, prps};
use crate::model::Model;
use sluice_command::{Characteristics, Operation};
use sluice_nvme::feature::{SAVE, TimestampData};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::csts;
use sluice_nvme::{FeatureId, LogId, NSID_ALL, Status, SubmissionEntry};
use zerocopy::IntoBytes;

const DEFAULT: u32 = 1;
const SAVED: u32 = 2;
const CAPABILITIES: u32 = 3;

fn host() -> Host {
    Host::enabled(vec![Model::new(64).namespace(1), Model::new(64).namespace(4)])
}

fn get(id: FeatureId, select: u32) -> SubmissionEntry {
    SubmissionEntry { cdw10: u32::from(id.0) | select << 8, ..entry(admin::GET_FEATURES) }
}

fn set(id: FeatureId, value: u32) -> SubmissionEntry {
    SubmissionEntry { cdw10: u32::from(id.0), cdw11: value, ..entry(admin::SET_FEATURES) }
}

/// Conformance: Base 5.15, current, default and saved value and the capabilities of a feature can be asked for.
/// Conformance: Base 5.27, a feature that is not saved has its default after a reset.
#[test]
fn a_value_is_kept_until_a_reset_and_its_default_known_throughout() {
    // Feature, default, another value, and how that reads.
    let features = [
        (FeatureId::ARBITRATION, 0, 0x0102_0307, 0x0102_0307),
        (FeatureId::POWER_MANAGEMENT, 0, 0xffff_ffe0, 0xe0),
        (FeatureId::TEMPERATURE_THRESHOLD, 343, 340, 340),
        (FeatureId::VOLATILE_WRITE_CACHE, 1, 0, 0),
        (FeatureId::INTERRUPT_COALESCING, 0, 0x1234, 0x1234),
        (FeatureId::WRITE_ATOMICITY, 0, 1, 1),
        (FeatureId::ASYNC_EVENTS, 0x91f, 0xffff_f601, 0x001),
        (FeatureId::KEEP_ALIVE_TIMER, 0, 12_345, 12_400),
    ];
    let mut host = host();
    for (id, default, value, reads) in features {
        assert_eq!(host.get_feature(id), Ok(default), "{id:?}");
        assert!(host.set_feature(id, value).is_ok(), "{id:?}");
        assert_eq!(host.get_feature(id), Ok(reads), "{id:?}");
        assert_eq!(host.dw0(get(id, DEFAULT)), Ok(default), "{id:?}");
        assert_eq!(host.dw0(get(id, SAVED)), Ok(default), "{id:?}");
        assert_eq!(host.dw0(get(id, CAPABILITIES)), Ok(0b100), "{id:?}");
    }
    assert_eq!(host.set_feature(FeatureId::WRITE_ATOMICITY, 0xffff_fffe), Ok(0));
    assert_eq!(host.get_feature(FeatureId::WRITE_ATOMICITY), Ok(0), "the other bits are reserved");
    assert_eq!(host.set_feature(FeatureId::WRITE_ATOMICITY, 1), Ok(0));
    host.controller.reset();
    host.run();
    host.enable();
    for (id, default, ..) in features {
        assert_eq!(host.get_feature(id), Ok(default), "{id:?} after a reset");
    }
}

/// Conformance: Base 5.27, saving a feature that is not saveable is refused with Feature Identifier Not Saveable.
/// Conformance: Base 5.15, an unknown feature is refused with Invalid Field in Command.
#[test]
fn nothing_is_saveable_and_reserved_selections_are_refused() {
    let mut host = host();
    for id in [FeatureId::ARBITRATION, FeatureId::TIMESTAMP, FeatureId::NUMBER_OF_QUEUES] {
        let save = SubmissionEntry { cdw10: u32::from(id.0) | SAVE, ..entry(admin::SET_FEATURES) };
        assert_eq!(host.dw0(save), Err(Status::FEATURE_NOT_SAVEABLE));
        for reserved in 4..8 {
            assert_eq!(host.dw0(get(id, reserved)), Err(Status::INVALID_FIELD));
        }
    }
    for unknown in [FeatureId(0), FeatureId(3), FeatureId(0x0d), FeatureId(0x80), FeatureId(0xff)] {
        assert_eq!(host.get_feature(unknown), Err(Status::INVALID_FIELD));
        assert_eq!(host.set_feature(unknown, 0), Err(Status::INVALID_FIELD));
    }
}

/// Conformance: Base 5.27, a namespace named with a feature that has no namespace is refused with Feature Not Namespace Specific.
#[test]
fn an_nsid_is_for_namespace_features() {
    let mut host = host();
    let mut arbitration = |nsid| host.dw0(SubmissionEntry { nsid, ..set(FeatureId::ARBITRATION, 0) });
    assert_eq!(arbitration(0), Ok(0));
    assert_eq!(arbitration(NSID_ALL), Ok(0));
    assert_eq!(arbitration(1), Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC));
    assert_eq!(arbitration(2), Err(Status::INVALID_FIELD));
    assert_eq!(arbitration(129), Err(Status::INVALID_NAMESPACE));
}

/// Conformance: NVM 4.1.3, Error Recovery is kept for each namespace, and set for all of them with the broadcast NSID.
#[test]
fn error_recovery_belongs_to_a_namespace() {
    let id = FeatureId::ERROR_RECOVERY;
    let mut host = host();
    let mut set_of = |nsid, value| host.dw0(SubmissionEntry { nsid, ..set(id, value) });
    assert_eq!(set_of(4, 7), Ok(0));
    assert_eq!(set_of(0, 7), Err(Status::INVALID_NAMESPACE));
    assert_eq!(set_of(2, 7), Err(Status::INVALID_FIELD));
    assert_eq!(set_of(1, 1 << 16), Err(Status::INVALID_FIELD), "DULBE");
    let mut get_of = |nsid| host.dw0(SubmissionEntry { nsid, ..get(id, 0) });
    assert_eq!((get_of(1), get_of(4)), (Ok(0), Ok(7)));
    assert_eq!(get_of(NSID_ALL), Err(Status::INVALID_NAMESPACE));
    assert_eq!(host.dw0(SubmissionEntry { nsid: NSID_ALL, ..set(id, 9) }), Ok(0));
    let mut get_of = |nsid| host.dw0(SubmissionEntry { nsid, ..get(id, 0) });
    assert_eq!((get_of(1), get_of(4)), (Ok(9), Ok(9)));
    assert_eq!(host.dw0(SubmissionEntry { nsid: 1, ..get(id, CAPABILITIES) }), Ok(0b110));
}

/// Conformance: Base 5.27.1.5, Number of Queues is refused after the first I/O queue, and 65,536 queues cannot be asked for.
#[test]
fn the_number_of_queues_is_fixed_and_asked_for_before_the_first() {
    let id = FeatureId::NUMBER_OF_QUEUES;
    const GRANTED: u32 = 127 << 16 | 127;
    let mut host = host();
    for asked in [0, 3 << 16 | 3, 0xfffe_fffe] {
        assert_eq!(host.set_feature(id, asked), Ok(GRANTED));
    }
    for too_many in [0xffff, 0xffff_0000, 0xffff_ffff] {
        assert_eq!(host.set_feature(id, too_many), Err(Status::INVALID_FIELD));
    }
    assert_eq!(host.create_cq(128, 4), Status::SUCCESS);
    assert_eq!(host.set_feature(id, 3 << 16 | 3), Err(Status::COMMAND_SEQUENCE_ERROR));
    assert_eq!(host.get_feature(id), Ok(GRANTED));
    assert_eq!(host.create_cq(129, 4), Status::INVALID_QUEUE_IDENTIFIER);
}

/// Conformance: Base 5.27.1, reserved and impossible values of features are refused with Invalid Field in Command.
#[test]
fn values_that_cannot_be_are_refused() {
    let mut host = host();
    for (id, value) in [
        (FeatureId::POWER_MANAGEMENT, 1),
        (FeatureId::TEMPERATURE_THRESHOLD, 1 << 16),
        (FeatureId::TEMPERATURE_THRESHOLD, 2 << 20),
        (FeatureId::INTERRUPT_VECTOR, 129),
        (FeatureId::INTERRUPT_VECTOR, 0xffff),
    ] {
        assert_eq!(host.set_feature(id, value), Err(Status::INVALID_FIELD), "{id:?} {value:#x}");
        let get = SubmissionEntry { cdw11: value, ..get(id, 0) };
        let expected = if id == FeatureId::POWER_MANAGEMENT { Ok(0) } else { Err(Status::INVALID_FIELD) };
        assert_eq!(host.dw0(get), expected, "{id:?} {value:#x}");
    }
}

/// Conformance: Base 5.27.1.7, coalescing can be disabled for each vector.
#[test]
fn every_vector_has_its_own_configuration() {
    let id = FeatureId::INTERRUPT_VECTOR;
    let mut host = host();
    for vector in [0, 63, 64, 128] {
        assert_eq!(host.set_feature(id, 1 << 16 | vector), Ok(0));
    }
    assert_eq!(host.set_feature(id, 63), Ok(0));
    let mut get = |vector: u32| host.dw0(SubmissionEntry { cdw11: vector, ..get(id, 0) });
    for (vector, disabled) in [(0, 1), (1, 0), (62, 0), (63, 0), (64, 1), (65, 0), (128, 1)] {
        assert_eq!(get(vector), Ok(disabled << 16 | vector));
    }
}

/// Conformance: Base 5.27.1.3, there are an over and an under temperature threshold, which can be set for all sensors.
#[test]
fn both_temperature_thresholds_are_kept() {
    const UNDER: u32 = 1 << 20;
    const EVERY_SENSOR: u32 = 0xf << 16;
    let id = FeatureId::TEMPERATURE_THRESHOLD;
    let mut host = host();
    assert_eq!(host.set_feature(id, 400), Ok(0));
    assert_eq!(host.set_feature(id, UNDER | EVERY_SENSOR | 200), Ok(0));
    let mut get = |select| host.dw0(SubmissionEntry { cdw11: select, ..get(id, 0) });
    assert_eq!((get(0), get(UNDER)), (Ok(400), Ok(200)));
    assert_eq!(get(EVERY_SENSOR), Err(Status::INVALID_FIELD), "one value is asked for");
}

/// Conformance: Base 5.27.1.11, the timestamp counts milliseconds on from what the host set, says where it is from, and a reset clears it.
#[test]
fn the_timestamp_goes_on_from_what_the_host_set() {
    let id = FeatureId::TIMESTAMP;
    let read = |host: &mut Host| {
        let bytes = host.admin_read(get(id, 0), 8).expect("a timestamp");
        TimestampData(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    };
    let mut host = host();
    host.now_ns += 1500 * MS;
    assert_eq!(read(&mut host), TimestampData::new(1500, false), "since the controller was enabled");
    let buffer = host.allocate(PAGE);
    host.write(buffer, TimestampData::new(1_700_000_000_000, false).as_bytes());
    assert_eq!(host.dw0(SubmissionEntry { dptr: prps(buffer, 8), ..set(id, 0) }), Ok(0));
    host.now_ns += 250 * MS;
    assert_eq!(read(&mut host), TimestampData::new(1_700_000_000_250, true));
    host.controller.reset();
    host.run();
    host.enable();
    assert_eq!(read(&mut host), TimestampData::new(0, false));
}

/// Conformance: Base 5.27.1.18, Host Behavior Support is kept, and what the controller does not know is refused.
#[test]
fn host_behavior_is_kept_as_far_as_it_means_something() {
    let id = FeatureId::HOST_BEHAVIOR;
    let mut host = host();
    let buffer = host.allocate(PAGE);
    let mut set_to = |bytes: [u8; 5]| {
        host.write(buffer, &bytes);
        host.dw0(SubmissionEntry { dptr: prps(buffer, 512), ..set(id, 0) })
    };
    assert_eq!(set_to([1, 1, 0, 0, 0b100]), Ok(0));
    for bad in [[2, 0, 0, 0, 0], [0, 2, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0b1000]] {
        assert_eq!(set_to(bad), Err(Status::INVALID_FIELD));
    }
    let mut expected = vec![0; 512];
    expected[..5].copy_from_slice(&[1, 1, 0, 0, 0b100]);
    assert_eq!(host.admin_read(get(id, 0), 512), Ok(expected));
    assert_eq!(host.admin_read(get(id, DEFAULT), 512), Ok(vec![0; 512]));
}

/// Conformance: Base 5.27.1.4, without a volatile write cache its feature is refused.
#[test]
fn without_a_cache_there_is_no_feature_for_it() {
    let plain = Model::with(Characteristics::target(1 << 20, 512));
    let mut host = Host::enabled(vec![plain.namespace(1)]);
    assert_eq!(host.get_feature(FeatureId::VOLATILE_WRITE_CACHE), Err(Status::INVALID_FIELD));
    assert_eq!(host.set_feature(FeatureId::VOLATILE_WRITE_CACHE, 1), Err(Status::INVALID_FIELD));
}

/// Conformance: Base 5.27.1.4, disabling the volatile write cache makes what is in it durable, and every write from then on.
#[test]
fn disabling_the_cache_flushes_it_and_makes_writes_durable() {
    let (first, plain, last) =
        (Model::new(64), Model::with(Characteristics::target(1 << 20, 512)), Model::new(64));
    let namespaces = vec![first.namespace(1), plain.namespace(2), last.namespace(3)];
    let mut host = Host::enabled(namespaces);
    host.create_pair(1, 16);
    let buffer = host.allocate(PAGE);
    let write = |host: &mut Host, opcode| {
        assert!(host.io(io_entry(opcode, 0, 1, buffer)).is_success());
        first.take_seen()[0].fua
    };
    assert!(!write(&mut host, io::WRITE));
    first.disk().hold = true;
    last.disk().hold = true;
    host.submit(0, set(FeatureId::VOLATILE_WRITE_CACHE, 0));
    host.run();
    assert_eq!(host.take(0), None, "the first flush is under way");
    assert!(last.take_seen().is_empty(), "one after the other");
    host.answer(1, &first, 1);
    host.run();
    assert_eq!(host.take(0), None, "the second flush is under way");
    host.answer(3, &last, 1);
    host.run();
    assert_eq!(host.reap(0).map(|completion| completion.status()), Some(Status::SUCCESS));
    let operations = |model: &Model| model.take_seen().iter().map(|r| r.operation).collect::<Vec<_>>();
    assert_eq!(operations(&first), [Operation::Flush]);
    assert_eq!(operations(&last), [Operation::Flush]);
    assert_eq!(operations(&plain), []);
    first.disk().hold = false;
    assert_eq!(host.get_feature(FeatureId::VOLATILE_WRITE_CACHE), Ok(0));
    assert!(write(&mut host, io::WRITE) && write(&mut host, io::WRITE_ZEROES));
    assert!(!write(&mut host, io::READ), "a read is not a write");
    // Only a change to a disabled cache has anything to flush.
    for enabled in [0, 1, 1] {
        assert_eq!(host.set_feature(FeatureId::VOLATILE_WRITE_CACHE, enabled), Ok(0));
        assert_eq!(operations(&first), []);
    }
    assert!(!write(&mut host, io::WRITE));
}

#[test]
fn a_cache_that_cannot_be_flushed_stays_enabled() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    model.disk().fails_with = Some(Status::WRITE_FAULT);
    assert_eq!(
        host.set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0),
        Err(Status(Status::WRITE_FAULT.0 | Status::DNR))
    );
    assert_eq!(host.get_feature(FeatureId::VOLATILE_WRITE_CACHE), Ok(1));
    assert_eq!(host.controller.subsystem.statistics().commands, 0, "no host sent an I/O command");
}

/// Conformance: Base 3.9, a Keep Alive restarts the timer, which is rounded up to KAS.
#[test]
fn a_host_that_keeps_the_timer_alive_lives() {
    let mut host = host();
    assert_eq!(host.set_feature(FeatureId::KEEP_ALIVE_TIMER, 1000), Ok(0));
    let mut deadline = host.now_ns + 1000 * MS;
    for _ in 0..5 {
        assert_eq!(host.controller.deadline_ns(), Some(deadline));
        host.now_ns += 900 * MS;
        assert!(host.admin(entry(admin::KEEP_ALIVE)).status().is_success());
        deadline = host.now_ns + 1000 * MS;
    }
    assert_eq!(host.set_feature(FeatureId::KEEP_ALIVE_TIMER, 0), Ok(0));
    assert_eq!(host.controller.deadline_ns(), None);
    host.now_ns += 10_000 * MS;
    host.run();
    assert_eq!(host.csts(), csts::RDY);
}

/// Tests the timer after a time without commands: a drive that moves takes none, nor does a machine that is
/// suspended.
#[test]
fn a_host_is_not_thought_dead_for_what_nobody_took_in() {
    let mut host = host();
    assert_eq!(host.set_feature(FeatureId::KEEP_ALIVE_TIMER, 1000), Ok(0));
    for _ in 0..3 {
        host.now_ns += 1700 * MS;
        host.run();
        assert_eq!(host.csts(), csts::RDY);
        assert_eq!(host.controller.deadline_ns(), Some(host.now_ns + 500 * MS));
        assert!(host.admin(entry(admin::KEEP_ALIVE)).status().is_success(), "which was on its way");
        assert_eq!(host.controller.deadline_ns(), Some(host.now_ns + 1000 * MS));
    }
    host.now_ns += 1700 * MS;
    host.run();
    // The next look is late again, and still no command has come.
    host.now_ns += 700 * MS;
    host.run();
    assert_eq!(host.csts(), csts::RDY | csts::CFS);
}

/// Tests the timer of a drive that drains, which takes no Keep Alive either.
#[test]
fn a_host_that_is_owed_something_is_not_thought_dead_for_what_is_not_taken_any_more() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    assert_eq!(host.set_feature(FeatureId::KEEP_ALIVE_TIMER, 1000), Ok(0));
    let buffer = host.allocate(PAGE);
    model.disk().hold = true;
    host.submit(1, io_entry(io::WRITE, 0, 1, buffer));
    host.run();
    let wait = |host: &mut Host| {
        host.controller.pause();
        host.run();
        host.now_ns += 900 * MS;
        host.run();
    };
    for _ in 0..4 {
        wait(&mut host);
        assert_eq!(host.csts(), csts::RDY);
    }
    host.answer(1, &model, 1);
    (0..4).for_each(|_| wait(&mut host));
    assert_eq!(host.csts(), csts::RDY | csts::CFS, "it may be gone");
}

/// Conformance: Base 3.9, a controller whose keep alive timer expires sets CSTS.CFS, takes no command and notes it in the error log.
#[test]
fn a_host_that_falls_silent_finds_the_controller_in_fatal_status() {
    let mut host = host();
    assert_eq!(host.set_feature(FeatureId::KEEP_ALIVE_TIMER, 1000), Ok(0));
    host.now_ns += 600 * MS;
    assert!(host.get_feature(FeatureId::ARBITRATION).is_ok(), "which is no PersistentRecord Alive");
    host.now_ns += 400 * MS - 1;
    host.run();
    assert_eq!(host.csts(), csts::RDY);
    host.now_ns += 1;
    host.run();
    assert_eq!(host.csts(), csts::RDY | csts::CFS);
    assert_eq!(host.controller.deadline_ns(), None, "it expires once");
    host.submit(0, get(FeatureId::ARBITRATION, 0));
    host.run();
    assert_eq!(host.take(0), None, "no command is taken any more");
    host.write_register(sluice_nvme::register::CC, 0);
    host.run();
    host.enable();
    let error = host.log(LogId::ERROR_INFORMATION, 64).expect("a page");
    assert_eq!(u16::from_le_bytes([error[12], error[13]]) >> 1, Status::KEEP_ALIVE_TIMEOUT_EXPIRED.0);
}

/// Conformance: Base 5.27.1.25, a Host Identifier of 64 bits is kept beside its form of 128 bits, and neither is changed.
#[test]
fn host_identifiers_have_two_widths() {
    const WIDE: u32 = 1;
    let id = FeatureId::HOST_IDENTIFIER;
    let set_to = |host: &mut Host, width: u32, bytes: [u8; 16]| {
        let buffer = host.allocate(PAGE);
        host.write(buffer, &bytes);
        host.dw0(SubmissionEntry { dptr: prps(buffer, 16), ..set(id, width) })
    };
    let get_in = |host: &mut Host, width: u32, select: u32| {
        host.admin_read(SubmissionEntry { cdw11: width, ..get(id, select) }, 16)
    };
    let mut host = host();
    assert_eq!(get_in(&mut host, WIDE, 0), Ok(vec![0; 16]));
    let mut short = [9; 16];
    short[..8].fill(5);
    assert_eq!(set_to(&mut host, WIDE, [0; 16]), Err(Status::INVALID_FIELD), "zero has 64 bits");
    assert_eq!(set_to(&mut host, 0, short), Ok(0));
    assert_eq!(set_to(&mut host, 0, short), Ok(0), "the same again");
    for (width, other) in [(0, [6; 16]), (0, [0; 16]), (WIDE, [5; 16])] {
        assert_eq!(set_to(&mut host, width, other), Err(Status::COMMAND_SEQUENCE_ERROR), "{other:?}");
    }
    assert_eq!(get_in(&mut host, 0, 0), Ok([[5; 8], [0xff; 8]].concat()), "eight bytes are written");
    assert_eq!(get_in(&mut host, WIDE, 0), Ok([[5; 8], [0; 8]].concat()));
    assert_eq!(get_in(&mut host, WIDE, DEFAULT), Ok(vec![0; 16]));
    host.write_register(sluice_nvme::register::CC, 0);
    host.run();
    host.enable();
    assert_eq!(set_to(&mut host, WIDE, [7; 16]), Ok(0));
    assert_eq!(get_in(&mut host, WIDE, 0), Ok(vec![7; 16]));
    assert_eq!(get_in(&mut host, 0, 0), Err(Status::INVALID_FIELD), "it does not fit");
}

/// Conformance: Base 5.27.1.26, a Reservation Notification Mask is kept for each namespace, and set for all of them with the broadcast NSID.
#[test]
fn reservation_masks_belong_to_a_namespace() {
    let id = FeatureId::RESERVATION_NOTIFICATION_MASK;
    let mut host = host();
    for (nsid, mask, masks) in
        [(4, 0b0110, [0, 0b0110]), (1, 0b1000, [0b1000, 0b0110]), (NSID_ALL, 0b0010, [0b0010; 2])]
    {
        assert_eq!(host.dw0(SubmissionEntry { nsid, ..set(id, mask) }), Ok(0));
        let mut of = |nsid, select| host.dw0(SubmissionEntry { nsid, ..get(id, select) });
        assert_eq!([1, 4].map(|nsid| of(nsid, 0)), masks.map(Ok));
        assert_eq!([1, 4].map(|nsid| of(nsid, DEFAULT)), [Ok(0); 2]);
    }
}
