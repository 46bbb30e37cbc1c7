//! Get Log Page: every page, and refusals.

use crate::host::{Host, MS, PAGE, entry, get_log, io as io_entry, prps};
use crate::model::Model;
use sluice_command::Characteristics;
use sluice_controller::DoorbellMode;
use sluice_nvme::log::{ErrorInformation, SmartHealth};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{FeatureId, LogId, NSID_ALL, Status, SubmissionEntry};
use zerocopy::{FromBytes, IntoBytes};

fn smart(host: &mut Host) -> SmartHealth {
    SmartHealth::read_from_bytes(&host.log(LogId::SMART_HEALTH, 512).expect("a page")).expect("a page")
}

/// Returns the newest `count` entries of the error log.
fn errors(host: &mut Host, count: usize) -> Vec<ErrorInformation> {
    let page = host.log(LogId::ERROR_INFORMATION, count * 64).expect("a page");
    page.as_chunks::<64>().0.iter().map(|entry| zerocopy::transmute!(*entry)).collect()
}

/// Returns the dwords that are not zero, with their indexes.
fn dwords(page: &[u8]) -> Vec<(usize, u32)> {
    let dwords = page.as_chunks::<4>().0.iter().map(|dword| u32::from_le_bytes(*dword));
    dwords.enumerate().filter(|(_, dword)| *dword != 0).collect()
}

/// Conformance: Base 5.16.1.1, Supported Log Pages names exactly the pages that can be read.
/// Conformance: Base 5.16, an unknown log page is refused with Invalid Log Page.
#[test]
fn supported_pages_are_those_that_can_be_read() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let page = host.log(LogId::SUPPORTED_LOG_PAGES, 1024).expect("a page");
    let supported: Vec<usize> = dwords(&page).into_iter().map(|(id, _)| id).collect();
    assert_eq!(supported, [0, 1, 2, 3, 4, 5, 6, 0x0c, 0x0d, 0x12, 0x13, 0x80, 0x81]);
    for id in 0..=255 {
        let expected = match LogId(id) {
            // It has no context yet.
            LogId::PERSISTENT_EVENT => Err(Status::COMMAND_SEQUENCE_ERROR),
            _ if supported.contains(&usize::from(id)) => Ok(4),
            _ => Err(Status::INVALID_LOG_PAGE),
        };
        assert_eq!(host.log(LogId(id), 4).map(|page| page.len()), expected, "log page {id:#x}");
    }
}

/// Conformance: Base 5.16.1.2, a command that fails is in the error log with queue, CID, status, location, LBA and namespace.
#[test]
fn an_error_is_in_the_log_with_everything_about_it() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(PAGE);
    let completion = host.execute(1, io_entry(io::READ, 64, 1, buffer));
    assert_eq!(completion.status(), Status::LBA_OUT_OF_RANGE);
    let [error] = errors(&mut host, 1)[..] else { panic!("one entry was asked for") };
    assert_eq!((error.error_count, error.sq_id, error.cid), (1, 1, completion.cid));
    assert_eq!(error.status(), Status::LBA_OUT_OF_RANGE);
    assert_eq!((error.nsid, error.lba, error.opcode), (1, 64, io::READ));
    assert_eq!((error.parameter_location, error.version), (40, 1));
}

/// Conformance: Base 5.16.1.2, the error log has the newest error first, counts all, and keeps them over a reset.
#[test]
fn errors_come_newest_first_and_the_oldest_are_forgotten() {
    let mut host = Host::with_io(&Model::new(64));
    assert!(errors(&mut host, 64).iter().all(|error| error.error_count == 0));
    for _ in 0..70 {
        assert_eq!(host.io(SubmissionEntry { nsid: 1, ..entry(0x7f) }), Status::INVALID_OPCODE);
    }
    let log = errors(&mut host, 64);
    assert!(log.iter().map(|error| error.error_count).eq((7..=70).rev()));
    assert!(log.iter().all(|error| error.parameter_location == 0 && error.opcode == 0x7f));
    assert_eq!(smart(&mut host).error_log_entries, [70, 0]);
    host.controller.reset();
    host.run();
    host.enable();
    assert_eq!(errors(&mut host, 1)[0].error_count, 70, "a reset does not forget errors");
}

#[test]
fn an_invalid_doorbell_is_no_commands_error() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    host.ring_with(5 * 8, 1);
    let [error] = errors(&mut host, 1)[..] else { panic!("one entry was asked for") };
    assert_eq!((error.sq_id, error.cid, error.parameter_location), (0xffff, 0xffff, 0xffff));
    assert_eq!((error.error_count, error.lba, error.nsid), (1, 0, 0));
}

/// Conformance: Base 5.16.1.3, data units and host commands are counted, a Compare as a read and a Write Zeroes as nothing.
#[test]
fn smart_counts_what_the_host_moved() {
    let model = Model::new(4096);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(2 * PAGE);
    for _ in 0..125 {
        assert!(host.io(io_entry(io::READ, 0, 8, buffer)).is_success());
    }
    assert_eq!(smart(&mut host).data_units_read, [1, 0], "1000 units exactly");
    for _ in 0..2 {
        assert!(host.io(io_entry(io::COMPARE, 0, 8, buffer)).is_success());
    }
    assert!(host.io(io_entry(io::WRITE, 0, 8, buffer)).is_success());
    assert!(host.io(io_entry(io::WRITE_ZEROES, 0, 4096, 0)).is_success());
    assert!(host.io(SubmissionEntry { nsid: 1, ..entry(io::FLUSH) }).is_success());
    assert!(host.io(io_entry(io::WRITE, 0, 8, buffer)).is_success());
    // This is a hint: nothing is deallocated, and nothing is written a second time.
    let hint = SubmissionEntry { nsid: 1, dptr: [buffer, 0], ..entry(io::DATASET_MANAGEMENT) };
    assert!(host.io(hint).is_success());
    assert_eq!(host.io(io_entry(io::WRITE, 5000, 1, buffer)), Status::LBA_OUT_OF_RANGE);
    let page = smart(&mut host);
    assert_eq!((page.data_units_read[0], page.host_read_commands[0]), (2, 127), "a Compare reads");
    assert_eq!((page.data_units_written[0], page.host_write_commands[0]), (1, 2));
    let statistics = host.controller.subsystem.statistics();
    assert_eq!((statistics.commands, statistics.errors), (133, 1));
    assert_eq!((statistics.bytes_read, statistics.bytes_written), (127 * 4096, 2 * 4096));
}

/// Conformance: Base 5.16.1.3, media errors are counted, and nothing else as such.
#[test]
fn smart_counts_media_errors_and_nothing_else_as_such() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(PAGE);
    for (status, opcode) in [
        (Status::UNRECOVERED_READ_ERROR, io::READ),
        (Status::WRITE_FAULT, io::WRITE),
        (Status::INTERNAL_ERROR, io::READ),
        (Status::NAMESPACE_NOT_READY, io::WRITE),
    ] {
        model.disk().fails_with = Some(status);
        assert_eq!(host.io(io_entry(opcode, 0, 1, buffer)), status);
    }
    let page = smart(&mut host);
    assert_eq!((page.media_errors[0], page.error_log_entries[0]), (2, 4));
    assert_eq!((page.host_read_commands[0], page.host_write_commands[0]), (0, 0));
}

/// Conformance: Base 5.16.1.3, power cycles, hours, busy time and unsafe shutdowns are counted.
#[test]
fn smart_knows_time_and_power() {
    const HOUR: u64 = 3_600_000 * MS;
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(PAGE);
    for _ in 0..3 {
        assert!(host.io(io_entry(io::READ, 0, 1, buffer)).is_success());
        host.now_ns += HOUR;
    }
    let page = smart(&mut host);
    assert_eq!((page.power_on_hours[0], page.controller_busy_time[0]), (3, 3));
    assert_eq!((page.power_cycles[0], page.unsafe_shutdowns[0]), (1, 0));
    assert_eq!((page.critical_warning, page.composite_temperature), (0, [0x39, 1]));
    assert_eq!((page.available_spare, page.available_spare_threshold, page.percentage_used), (100, 10, 0));
    host.controller.reset();
    host.run();
    host.enable();
    let page = smart(&mut host);
    assert_eq!((page.power_cycles[0], page.unsafe_shutdowns[0]), (2, 1));
}

/// Conformance: Base 5.16.1.3, a temperature beyond its threshold is a critical warning.
#[test]
fn a_temperature_beyond_its_threshold_is_a_critical_warning() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    assert_eq!(host.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 300), Ok(0));
    assert_eq!(smart(&mut host).critical_warning, 0b10);
    assert_eq!(host.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 350), Ok(0));
    assert_eq!(smart(&mut host).critical_warning, 0);
    const UNDER: u32 = 1 << 20;
    assert_eq!(host.set_feature(FeatureId::TEMPERATURE_THRESHOLD, UNDER | 313), Ok(0));
    assert_eq!(smart(&mut host).critical_warning, 0b10);
}

/// Conformance: Base 5.16.1.4, the firmware log names the active slot and what is in each.
#[test]
fn the_firmware_is_in_slot_one() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let page = host.log(LogId::FIRMWARE_SLOT, 512).expect("a page");
    assert_eq!((page[0], &page[8..16]), (1, b"1.2     ".as_slice()));
    assert!(page[16..].iter().all(|&byte| byte == 0));
}

/// Conformance: Base 5.16.1.5, the Changed Namespace List has each changed namespace once, ascending, until it is read.
#[test]
fn changed_namespaces_are_listed_until_they_are_read() {
    let models = [Model::new(8), Model::new(8), Model::new(8)];
    let namespaces = models.iter().zip([1, 70, 128]).map(|(model, nsid)| model.namespace(nsid));
    let mut host = Host::enabled(namespaces.collect());
    let changed = |host: &mut Host, retain: u32| {
        let ask = get_log(LogId::CHANGED_NAMESPACE_LIST, PAGE);
        let page = host.admin_read(SubmissionEntry { cdw10: ask.cdw10 | retain << 15, ..ask }, PAGE);
        dwords(&page.expect("a page")).into_iter().map(|(_, nsid)| nsid).collect::<Vec<_>>()
    };
    assert_eq!(changed(&mut host, 0), []);
    for nsid in [128, 70] {
        assert!(host.controller.subsystem.resize(nsid, 16 * 512));
    }
    assert_eq!(changed(&mut host, 1), [70, 128], "ascending, whatever the order of events");
    assert_eq!(changed(&mut host, 0), [70, 128], "retained");
    assert_eq!(changed(&mut host, 0), []);
    assert!(host.controller.subsystem.resize(1, 8 * 512));
    assert_eq!(changed(&mut host, 0), [], "the size is what it was");
    assert!(!host.controller.subsystem.resize(2, 8 * 512), "no such namespace");
}

/// Returns all opcodes that are refused as unknown.
fn unknown(host: &mut Host, sq: u16) -> Vec<usize> {
    let is_unknown = |&opcode: &usize| {
        // An Asynchronous Event Request that is taken does not complete.
        if sq == 0 && opcode == usize::from(admin::ASYNC_EVENT_REQUEST) {
            return false;
        }
        // The opcode is checked before all other fields.
        let command = SubmissionEntry { nsid: 0xffff_0000, cdw10: 0xffff_ffff, ..entry(opcode as u8) };
        host.execute(sq, command).status() == Status::INVALID_OPCODE
    };
    (0..256).filter(is_unknown).collect()
}

/// Conformance: Base 5.16.1.6, Commands Supported and Effects names exactly the commands that are not refused as Invalid Command Opcode.
#[test]
fn command_effects_name_exactly_the_commands_that_are_taken() {
    let plain = Model::with(Characteristics::target(1 << 20, 512));
    for (model, mode) in [(Model::new(64), DoorbellMode::Trapped), (plain, DoorbellMode::Mapped)] {
        let mut host = Host::new(vec![model.namespace(1)]);
        host.controller.controller.set_doorbell_mode(mode);
        host.enable();
        host.create_pair(1, 16);
        let page = host.log(LogId::COMMAND_EFFECTS, PAGE).expect("a page");
        let supported = |opcode: usize| page[opcode * 4] & 1 != 0;
        let refused = unknown(&mut host, 0);
        assert!((0..256).all(|opcode| supported(opcode) != refused.contains(&opcode)), "{mode:?}: admin");
        let refused = unknown(&mut host, 1);
        assert!((0..256).all(|opcode| supported(256 + opcode) != refused.contains(&opcode)), "{mode:?}: I/O");
        assert!(page[2048..].iter().all(|&byte| byte == 0));
    }
}

/// Conformance: Base 5.16.1.6, commands that change data say so.
///
/// I/O commands have no other bit set: a host that reads scopes or restrictions there, as Linux does, logs
/// them as unusual.
#[test]
fn command_effects_tell_writes_from_reads() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let page = host.log(LogId::COMMAND_EFFECTS, PAGE).expect("a page");
    let effects: Vec<_> = dwords(&page[1024..2048]);
    let (reads, writes) = (1, 3);
    let writing = [1, 4, 8, 9, 0x19].map(|opcode| (opcode, writes));
    let reading = [0, 2, 5, 0x0c, 0x0d, 0x0e, 0x11, 0x15].map(|opcode| (opcode, reads));
    let mut expected: Vec<_> = reading.into_iter().chain(writing).collect();
    expected.sort_unstable();
    assert_eq!(effects, expected);
    let admin = dwords(&page[..1024]);
    let mut others = admin.iter().filter(|(opcode, _)| ![0x80, 0x84].contains(opcode));
    assert!(admin.contains(&(0x84, 0x0202_0003)), "Sanitize: alone in the subsystem, changes content");
    assert!(others.all(|(_, effects)| *effects == 0x0020_0001));
    assert!(admin.contains(&(0x80, 0x0011_0007)), "Format NVM: alone, changes content and capabilities");
}

/// Conformance: Base 5.16.1.18, Feature Identifiers Supported and Effects names exactly the features that there are.
#[test]
fn feature_effects_name_exactly_the_features_there_are() {
    let plain = Model::with(Characteristics::target(1 << 20, 512));
    for model in [Model::new(64), plain] {
        let mut host = Host::enabled(vec![model.namespace(1)]);
        let page = host.log(LogId::FEATURE_EFFECTS, 1024).expect("a page");
        let found: Vec<usize> = dwords(&page).into_iter().map(|(id, _)| id).collect();
        let supported_capabilities =
            |id: usize| SubmissionEntry { cdw10: id as u32 | 3 << 8, ..entry(admin::GET_FEATURES) };
        let answered = |id: &usize| host.dw0(supported_capabilities(*id)).is_ok();
        assert_eq!((0..256).filter(answered).collect::<Vec<_>>(), found);
    }
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    assert_eq!(host.log(LogId::MI_COMMAND_EFFECTS, 1024), Ok(vec![0; 1024]));
}

/// Conformance: Base 5.16, a log page is read in parts by its offset.
#[test]
fn a_page_is_read_in_parts() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let whole = host.log(LogId::COMMAND_EFFECTS, PAGE).expect("a page");
    for (offset, length) in [(4, 4), (1024, 2048), (1020, 8), (4092, 4)] {
        let ask = get_log(LogId::COMMAND_EFFECTS, length);
        let part = host.admin_read(SubmissionEntry { cdw12: offset as u32, ..ask }, length);
        assert_eq!(part.as_deref(), Ok(&whole[offset..offset + length]));
    }
}

/// Conformance: Base 5.16, nothing is transferred of what lies behind the end of a page.
#[test]
fn nothing_is_sent_beyond_the_end_of_a_page() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let page = host.log(LogId::FIRMWARE_SLOT, PAGE).expect("a page");
    assert!(page[512..].iter().all(|&byte| byte == 0xff));
    let ask = get_log(LogId::FIRMWARE_SLOT, 8);
    let tail = host.admin_read(SubmissionEntry { cdw12: 508, ..ask }, 8).expect("a page");
    assert_eq!(tail, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
}

/// Conformance: Base 5.16, an offset at the end of a page is no error, and one behind it is an invalid field.
#[test]
fn each_page_has_its_end() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let pages = [
        (LogId::SUPPORTED_LOG_PAGES, 1024),
        (LogId::ERROR_INFORMATION, 4096),
        (LogId::SMART_HEALTH, 512),
        (LogId::FIRMWARE_SLOT, 512),
        (LogId::CHANGED_NAMESPACE_LIST, 4096),
        (LogId::COMMAND_EFFECTS, 4096),
        (LogId::SELF_TEST, 564),
        (LogId::FEATURE_EFFECTS, 1024),
        (LogId::MI_COMMAND_EFFECTS, 1024),
        (LogId::SANITIZE_STATUS, 512),
        (LogId::RESERVATION_NOTIFICATION, 64),
    ];
    for (log, length) in pages {
        let whole = host.log(log, length).expect("a page");
        let ask = get_log(log, 8);
        let tail = host.admin_read(SubmissionEntry { cdw12: length as u32 - 4, ..ask }, 8);
        assert_eq!(tail.map(|tail| tail[..4].to_vec()), Ok(whole[length - 4..].to_vec()), "{log:?}");
        for (offset, status) in [(length, Status::SUCCESS), (length + 4, Status::INVALID_FIELD)] {
            let nothing = SubmissionEntry { cdw12: offset as u32, dptr: [host.nowhere(), 0], ..ask };
            assert_eq!(host.admin(nothing).status(), status, "{log:?} at {offset}");
        }
        host.reuse_memory();
    }
}

/// Uses a buffer of more than two pages, which has a PRP list, however little of it is filled.
#[test]
fn a_short_page_for_a_long_buffer_leaves_the_prp_list_alone() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let whole = host.log(LogId::COMMAND_EFFECTS, PAGE).expect("a page");
    let (buffer, list) = (host.allocate(4 * PAGE), host.allocate(PAGE));
    let pages = [1, 2, 3].map(|n| buffer + n * PAGE as u64);
    host.write(list, pages.as_bytes());
    let ask = get_log(LogId::COMMAND_EFFECTS, 3 * PAGE);
    let begin = buffer + PAGE as u64 / 2;
    assert!(host.admin(SubmissionEntry { dptr: [begin, list], ..ask }).status().is_success());
    assert_eq!(host.read(list, size_of_val(&pages)), pages.as_bytes());
    assert_eq!(host.read(begin, PAGE), whole);
}

/// Conformance: Base 5.16, an offset behind the end, one that is no multiple of 4, and a namespace for a page that has none are refused with Invalid Field in Command.
#[test]
fn offsets_lengths_and_namespaces_that_cannot_be_are_refused() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let buffer = host.allocate(PAGE);
    let good = SubmissionEntry { dptr: prps(buffer, 512), ..get_log(LogId::SMART_HEALTH, 512) };
    for nsid in [0, NSID_ALL] {
        assert!(host.admin(SubmissionEntry { nsid, ..good }).status().is_success());
    }
    let index_offset = SubmissionEntry { cdw14: 1 << 23, ..good };
    let other_command_set = SubmissionEntry { cdw10: good.cdw10 + 3, cdw14: 2 << 24, ..good };
    for bad in [
        SubmissionEntry { nsid: 1, ..good },
        SubmissionEntry { nsid: 2, ..good },
        SubmissionEntry { cdw12: 2, ..good },
        SubmissionEntry { cdw12: 516, ..good },
        SubmissionEntry { cdw13: 1, ..good },
        SubmissionEntry { cdw12: !3, cdw13: !0, ..good },
        // 16 GiB, and 4 bytes more than MDTS.
        SubmissionEntry { cdw10: good.cdw10 | 0xffff << 16, cdw11: 0xffff, ..good },
        SubmissionEntry { cdw10: good.cdw10 & 0xffff, cdw11: 4, ..good },
        index_offset,
        other_command_set,
    ] {
        assert_eq!(host.admin(bad).status(), Status::INVALID_FIELD, "{bad:?}");
    }
    let astray = SubmissionEntry { dptr: [host.nowhere(), 0], ..good };
    assert_eq!(host.admin(astray).status(), Status::DATA_TRANSFER_ERROR);
}
