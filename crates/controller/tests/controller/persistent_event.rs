//! Persistent Event Log: its contexts, its events, and its persistence.

use crate::host::{Host, MS, PAGE, entry, get_log};
use crate::model::Model;
use sluice_controller::{PersistentEventRecord, PersistentRecord};
use sluice_nvme::opcode::admin;
use sluice_nvme::persistent_event::{EventHeader, LogHeader, action, event, reporting_context};
use sluice_nvme::{FeatureId, LogId, Status, SubmissionEntry, register};
use std::sync::{Arc, Mutex};
use zerocopy::FromBytes;

const BLOCKS: usize = 64;

/// Returns a Get Log Page with an action.
fn ask(action: u8, offset: usize, length: usize) -> SubmissionEntry {
    let get = get_log(LogId::PERSISTENT_EVENT, length);
    SubmissionEntry { cdw10: get.cdw10 | u32::from(action) << 8, cdw12: offset as u32, ..get }
}

fn header(host: &mut Host, action: u8) -> Result<LogHeader, Status> {
    let page = host.admin_read(ask(action, 0, LogHeader::SIZE), LogHeader::SIZE)?;
    Ok(LogHeader::read_from_bytes(&page).expect("a header"))
}

/// Returns type, controller and data of every event, out of a context of its own, the newest first.
fn events(host: &mut Host) -> Vec<(u8, u16, Vec<u8>)> {
    let header = header(host, action::ESTABLISH_AND_READ).expect("a context");
    let mut page = Vec::new();
    while page.len() < header.length.get() as usize {
        let part = PAGE.min(header.length.get() as usize - page.len()).next_multiple_of(4);
        page.extend(host.admin_read(ask(action::READ, page.len(), part), part).expect("a part"));
    }
    release(host);
    let mut rest = &page[LogHeader::SIZE..header.length.get() as usize];
    let mut events = Vec::new();
    while !rest.is_empty() {
        let (header, behind) = EventHeader::read_from_prefix(rest).expect("a header");
        assert_eq!(header.header_length, EventHeader::LENGTH);
        let (data, next) = behind.split_at(usize::from(header.length.get()));
        events.push((header.kind, header.controller.get(), data.to_vec()));
        rest = next;
    }
    assert_eq!(events.len(), header.events.get() as usize);
    events
}

fn release(host: &mut Host) {
    assert_eq!(host.admin(ask(action::RELEASE, 0, 4)).status(), Status::SUCCESS);
}

fn kinds(host: &mut Host) -> Vec<u8> {
    events(host).into_iter().map(|(kind, ..)| kind).collect()
}

fn commit(host: &mut Host) -> Status {
    host.admin(SubmissionEntry { cdw10: 1 | 2 << 3, ..entry(admin::FIRMWARE_COMMIT) }).status()
}

/// Conformance: Base 5.16.1.14, the persistent event log keeps what happened over power cycles, and is read as it was when its context was established.
#[test]
fn a_context_shows_what_there_was_when_it_was_established() {
    let mut host = Host::with_io(&Model::new(BLOCKS));
    assert_eq!(header(&mut host, action::READ), Err(Status::COMMAND_SEQUENCE_ERROR), "there is no context");
    release(&mut host);
    let first = header(&mut host, action::ESTABLISH_AND_READ).expect("a context");
    assert_eq!((first.log, first.revision, first.header_length.get()), (0x0d, 3, 492));
    assert_eq!((first.events.get(), first.generation.get(), first.reporting_context.get()), (2, 0, 0));
    assert_eq!(
        (first.power_cycles.get(), &first.serial[..3], first.supported[..2].to_vec()),
        (1, &b"S-1"[..], vec![0xfe, 0x0f])
    );
    assert_eq!(header(&mut host, action::ESTABLISH_AND_READ), Err(Status::COMMAND_SEQUENCE_ERROR));
    assert_eq!(commit(&mut host), Status::SUCCESS);
    let later = header(&mut host, action::READ).expect("the context");
    assert_eq!(later.events, first.events);
    let exists = reporting_context::SUBSYSTEM_PORT | reporting_context::EXISTS;
    assert_eq!(later.reporting_context.get(), exists);
    let read = host.admin_read(ask(action::ESTABLISH_AND_READ_HEADER, 0, PAGE), PAGE).expect("the header");
    assert!(read[LogHeader::SIZE..].iter().all(|byte| *byte == 0xff));
    let again = header(&mut host, action::ESTABLISH_AND_READ_HEADER).expect("the context");
    assert_eq!((again.reporting_context.get(), again.generation.get()), (exists, 0));
    let end = first.length.get() as usize;
    assert_eq!(host.admin(ask(action::READ, end, 4)).status(), Status::SUCCESS, "nothing is behind the end");
    assert_eq!(host.admin(ask(action::READ, end + 4, 4)).status(), Status::INVALID_FIELD);
    release(&mut host);
    let next = header(&mut host, action::ESTABLISH_AND_READ_HEADER).expect("a context");
    assert_eq!((next.events.get(), next.generation.get(), next.reporting_context.get()), (3, 1, 0));
    // A reset releases the context.
    host.write_register(register::CC, 0);
    host.run();
    host.enable();
    assert_eq!(header(&mut host, action::READ), Err(Status::COMMAND_SEQUENCE_ERROR));
}

/// Conformance: Base 5.16.1.14, what befalls a drive is recorded with what the specification says of each event.
#[test]
fn what_befalls_a_drive_is_recorded() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let [(last, _, reset), (first, cntlid, smart)] = &events(&mut host)[..] else { panic!("two events") };
    assert_eq!(
        (*last, *first, *cntlid, smart.len()),
        (event::POWER_ON_OR_RESET, event::SMART_SNAPSHOT, 1, 512)
    );
    assert_eq!((&reset[8..10], reset[11], reset[24]), (&[1, 0][..], 0, 1), "controller, idle, power cycles");

    assert_eq!(host.set_feature(FeatureId::INTERRUPT_COALESCING, 0x102), Ok(0));
    assert_eq!(host.set_feature(FeatureId::NUMBER_OF_QUEUES, 0), Err(Status::COMMAND_SEQUENCE_ERROR));
    assert_eq!(events(&mut host)[0], (event::SET_FEATURE, 1, vec![2, 0, 0, 0, 8, 0, 0, 0, 2, 1, 0, 0]));

    host.now_ns += 7 * MS;
    let buffer = host.allocate(PAGE);
    host.write(buffer, &5_000_u64.to_le_bytes());
    let set = SubmissionEntry { cdw10: 0x0e, dptr: [buffer, 0], ..entry(admin::SET_FEATURES) };
    assert_eq!(host.admin(set).status(), Status::SUCCESS);
    let change = [7_u64.to_le_bytes(), 7_u64.to_le_bytes()].concat();
    assert_eq!(events(&mut host)[0], (event::TIMESTAMP_CHANGE, 1, change));

    assert_eq!(commit(&mut host), Status::SUCCESS);
    let refused = host.admin(SubmissionEntry { cdw10: 2 | 2 << 3, ..entry(admin::FIRMWARE_COMMIT) });
    assert_eq!(refused.status(), Status::INVALID_FIRMWARE_SLOT);
    let [(kind, _, bad), (_, _, good), ..] = &events(&mut host)[..] else { panic!("two events") };
    assert_eq!(
        (*kind, &bad[16..20], &good[16..20]),
        (event::FIRMWARE_COMMIT, &[2, 2, 1, 6][..], &[2, 1, 0, 0][..])
    );

    model.disk().fails_with = Some(Status::WRITE_FAULT);
    let format = SubmissionEntry { nsid: 1, cdw10: 1, ..entry(admin::FORMAT_NVM) };
    assert_eq!(host.admin(format).status(), Status::WRITE_FAULT);
    model.disk().fails_with = None;
    let [(end, _, completion), (start, _, begun), ..] = &events(&mut host)[..] else { panic!("two events") };
    assert_eq!((*end, *start), (event::FORMAT_COMPLETION, event::FORMAT_START));
    assert_eq!(begun[..], [1, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!((completion[0], completion[5]), (1, 3), "it failed, and is not complete");
    assert_eq!(
        u32::from_le_bytes([completion[8], completion[9], completion[10], completion[11]]),
        u32::from(Status::WRITE_FAULT.0)
    );

    let sanitize = SubmissionEntry { cdw10: 2, cdw11: 9, ..entry(admin::SANITIZE) };
    assert_eq!(host.admin(sanitize).status(), Status::SUCCESS);
    host.run();
    let [(end, _, completion), (start, _, begun), ..] = &events(&mut host)[..] else { panic!("two events") };
    assert_eq!((*end, *start), (event::SANITIZE_COMPLETION, event::SANITIZE_START));
    assert_eq!(begun[4..], [2, 0, 0, 0, 9, 0, 0, 0]);
    assert_eq!(completion[..], [0xff, 0xff, 1, 1, 0, 0, 0, 0]);

    // The host goes away without a shutdown.
    host.controller.reset();
    host.run();
    host.enable();
    let [(power, _, _), (_, _, smart), (lost, _, what), ..] = &events(&mut host)[..] else {
        panic!("three events")
    };
    assert_eq!(
        (*power, *lost, &what[..]),
        (event::POWER_ON_OR_RESET, event::HARDWARE_ERROR, &[8, 0, 0, 0][..])
    );
    assert_eq!(smart[144], 1, "unsafe shutdowns");
}

#[test]
fn it_is_kept_now_and_then_and_there_under_the_next_daemon() {
    let model = Model::new(BLOCKS);
    let mut host = Host::new(vec![model.namespace(1)]);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    host.controller.subsystem.on_persist(move |what| keep.lock().expect("not poisoned").push(what));
    host.controller
        .subsystem
        .resume_persistent_events(&PersistentEventRecord::default(), || 1_600_000_000_000);
    host.enable();
    host.run();
    assert!(kept.lock().expect("not poisoned").is_empty(), "what comes together is kept together");
    host.now_ns = host.controller.deadline_ns().expect("it is kept soon");
    assert!(host.now_ns <= 200 * MS);
    host.run();
    let first = std::mem::take(&mut *kept.lock().expect("not poisoned"));
    let [PersistentRecord::PersistentEvents(record)] = &first[..] else { panic!("{first:?}") };
    assert_eq!(commit(&mut host), Status::SUCCESS);
    host.now_ns += 10_000 * MS;
    host.run();
    assert!(kept.lock().expect("not poisoned").is_empty(), "one at a time");
    // A failure delays no host, and is not repeated at once.
    for well in [true, false] {
        let now_ns = host.now_ns;
        host.controller.subsystem.persisted(PersistentRecord::PersistentEvents(record.clone()), well, now_ns);
        host.run();
        assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")).len(), usize::from(well));
    }
    assert_eq!(host.controller.deadline_ns(), None);
    // The log is persisted at most once in a second.
    assert_eq!(commit(&mut host), Status::SUCCESS);
    host.now_ns += 900 * MS;
    host.run();
    assert!(kept.lock().expect("not poisoned").is_empty());
    host.now_ns += 100 * MS;
    host.run();
    let last = std::mem::take(&mut *kept.lock().expect("not poisoned"));
    let [PersistentRecord::PersistentEvents(record)] = &last[..] else { panic!("{last:?}") };

    let mut host = Host::new(vec![model.namespace(1)]);
    let record = PersistentEventRecord::new(record.as_bytes().to_vec()).expect("a history");
    host.controller.subsystem.resume_persistent_events(&record, || 1_700_000_000_000);
    host.enable();
    let expected = [
        event::POWER_ON_OR_RESET,
        event::SMART_SNAPSHOT,
        event::FIRMWARE_COMMIT,
        event::FIRMWARE_COMMIT,
        event::POWER_ON_OR_RESET,
        event::SMART_SNAPSHOT,
    ];
    assert_eq!(kinds(&mut host), expected);
    let header = header(&mut host, action::ESTABLISH_AND_READ).expect("a context");
    assert_eq!(header.timestamp.get() & 0xffff_ffff_ffff, 1_700_000_000_000);
}

#[test]
fn a_context_is_established_once_for_a_client_that_has_to_be_asked_for_its_memory() {
    let mut host = Host::with_client(&Model::new(BLOCKS), 12, |_| false);
    assert_eq!(header(&mut host, action::ESTABLISH_AND_READ).map(|it| it.events.get()), Ok(2));
    assert_eq!(header(&mut host, action::READ).map(|it| it.events.get()), Ok(2));
}
