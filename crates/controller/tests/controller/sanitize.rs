//! Sanitize: the erased data, refusals meanwhile and after a failure, and records.

use crate::host::{Host, MS, PAGE, entry, io};
use crate::model::Model;
use sluice_command::Characteristics;
use sluice_controller::{ALL_NAMESPACES, PersistentRecord, SanitizeRecord, SanitizeState};
use sluice_jobs::State;
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{Cns, LogId, Status, SubmissionEntry, register};
use std::sync::{Arc, Mutex};

const BLOCKS: usize = 4096;

const EXIT_FAILURE_MODE: u32 = 1;
const BLOCK_ERASE: u32 = 2;
const OVERWRITE: u32 = 3;
const UNRESTRICTED: u32 = 1 << 3;
const NO_DEALLOCATE: u32 = 1 << 9;

const COMPLETED_EVENT: u32 = 0x0081_0106;

fn sanitize(host: &mut Host, cdw10: u32) -> Status {
    host.admin(SubmissionEntry { cdw10, cdw11: 0xa1b2_c3d4, ..entry(admin::SANITIZE) }).status()
}

/// Returns SPROG and SSTAT.
fn log(host: &mut Host) -> (u16, u16) {
    let page = host.log(LogId::SANITIZE_STATUS, 512).expect("a page");
    (u16::from_le_bytes([page[0], page[1]]), u16::from_le_bytes([page[2], page[3]]))
}

fn full() -> Model {
    let model = Model::new(BLOCKS);
    model.disk().bytes.fill(0x5a);
    model
}

fn read(host: &mut Host) -> Status {
    let buffer = host.allocate(2 * PAGE);
    host.io(io(opcode::READ, 0, 1, buffer))
}

fn write(host: &mut Host) -> Status {
    let buffer = host.allocate(2 * PAGE);
    host.io(io(opcode::WRITE, 0, 1, buffer))
}

/// Conformance: Base 5.24, what a host could read of every namespace is erased, and an event tells that it is.
/// Tests a write that waits for room. It would wait for the room that the operation makes, and the operation
/// for the write.
#[test]
fn a_write_that_waits_for_room_holds_up_no_sanitize() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(PAGE);
    model.disk().bytes.fill(3);
    (model.disk().hold, model.disk().full) = (true, true);
    host.submit(1, io(opcode::WRITE, 0, 1, buffer));
    host.run();
    model.disk().hold = false;
    assert_eq!(host.admin(SubmissionEntry { cdw10: 2, ..entry(admin::SANITIZE) }).status(), Status::SUCCESS);
    for _ in 0..4 {
        host.now_ns += MS;
        host.run();
    }
    assert_eq!(host.reap(1).map(|it| it.status()), Some(Status::CAPACITY_EXCEEDED));
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn every_namespace_is_erased_and_the_host_is_told() {
    let (model, other) = (full(), full());
    let mut host = Host::enabled(vec![model.namespace(1), other.namespace_of_blocks(3, 4096)]);
    host.create_pair(1, 16);
    assert_eq!(log(&mut host), (0xffff, 0), "never");
    assert_eq!(sanitize(&mut host, BLOCK_ERASE), Status::SUCCESS);
    host.run();
    for disk in [&model, &other] {
        assert!(disk.disk().bytes.iter().all(|&byte| byte == 0));
        assert!(disk.take_seen().iter().any(|request| request.deallocate));
    }
    assert_eq!(host.admin(entry(admin::ASYNC_EVENT_REQUEST)).dw0, COMPLETED_EVENT);
    assert_eq!(log(&mut host), (0xffff, 0x101), "done, and nothing was written since");
    assert_eq!(read(&mut host), Status::SUCCESS);
    assert_eq!(log(&mut host), (0xffff, 0x101));
    assert_eq!(write(&mut host), Status::SUCCESS);
    assert_eq!(log(&mut host), (0xffff, 1));
    assert_eq!(sanitize(&mut host, BLOCK_ERASE | NO_DEALLOCATE), Status::SUCCESS);
    host.run();
    assert!(model.take_seen().iter().all(|request| !request.deallocate));
}

#[test]
fn an_overwrite_writes_its_pattern_in_as_many_passes() {
    let model = full();
    let mut host = Host::with_io(&model);
    const INVERTED: u32 = 1 << 8;
    for (passes, pattern) in [(1, 0xa1b2_c3d4u32), (2, !0xa1b2_c3d4), (0, !0xa1b2_c3d4)] {
        model.take_seen();
        assert_eq!(sanitize(&mut host, OVERWRITE | passes << 4 | INVERTED), Status::SUCCESS);
        host.run();
        let disk = model.disk().bytes.clone();
        assert!(disk.chunks(4).all(|word| word == pattern.to_le_bytes()));
        let passes = if passes == 0 { 16 } else { passes as usize };
        // Two writes of 1 MiB, and a flush.
        assert_eq!(model.take_seen().len(), passes * 3);
        assert_eq!(log(&mut host).1 & 0xff, 1 | (passes as u16) << 3);
    }
}

/// Conformance: Base 5.24, while a sanitize operation is under way the commands that are not allowed then are refused.
/// Conformance: Base 5.16.1.25, the Sanitize Status log page reports its progress.
#[test]
fn what_is_not_for_this_time_is_refused() {
    let model = full();
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    assert_eq!(sanitize(&mut host, OVERWRITE | 2 << 4), Status::SUCCESS);
    let buffer = host.allocate(2 * PAGE);
    for opcode in [opcode::READ, opcode::WRITE, opcode::FLUSH, opcode::WRITE_ZEROES, opcode::VERIFY] {
        assert_eq!(host.io(io(opcode, 0, 1, buffer)), Status::SANITIZE_IN_PROGRESS, "{opcode:#x}");
    }
    for opcode in [
        admin::FORMAT_NVM,
        admin::SANITIZE,
        admin::DEVICE_SELF_TEST,
        admin::FIRMWARE_COMMIT,
        admin::FIRMWARE_DOWNLOAD,
    ] {
        let command = SubmissionEntry { nsid: 1, cdw10: 2, ..entry(opcode) };
        assert_eq!(host.admin(command).status(), Status::SANITIZE_IN_PROGRESS, "{opcode:#x}");
    }
    assert!(host.identify(Cns::CONTROLLER, 0).is_ok());
    assert_eq!(log(&mut host), (0, 2));
    // Half of the first of two passes is done.
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(log(&mut host), (16_383, 2));
    // It goes on over a reset, without a host.
    host.write_register(register::CC, 0);
    host.run();
    model.disk().hold = false;
    host.answer(1, &model, 1);
    host.run();
    assert!(model.disk().bytes.iter().all(|&byte| byte != 0x5a));
    host.enable();
    assert_eq!(log(&mut host).1 & 0xff, 1 | 2 << 3);
}

/// Conformance: Base 5.24, a failure in restricted completion mode is left by a sanitize operation that succeeds alone.
#[test]
fn a_failure_is_left_only_as_the_host_said_it_might_be() {
    let model = full();
    let mut host = Host::with_io(&model);
    model.disk().fails_with = Some(Status::WRITE_FAULT);
    assert_eq!(sanitize(&mut host, BLOCK_ERASE), Status::SUCCESS);
    host.run();
    assert_eq!(host.admin(entry(admin::ASYNC_EVENT_REQUEST)).dw0, COMPLETED_EVENT);
    assert_eq!(log(&mut host), (0xffff, 3));
    assert_eq!(read(&mut host), Status::SANITIZE_FAILED);
    let format = SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) };
    assert_eq!(host.admin(format).status(), Status::SANITIZE_FAILED);
    for cdw10 in [EXIT_FAILURE_MODE, BLOCK_ERASE | UNRESTRICTED] {
        assert_eq!(sanitize(&mut host, cdw10), Status::SANITIZE_FAILED);
    }
    model.disk().fails_with = None;
    assert_eq!(sanitize(&mut host, BLOCK_ERASE), Status::SUCCESS);
    host.run();
    assert_eq!(log(&mut host), (0xffff, 0x101));
    // The operation has an unrestricted exit.
    model.disk().fails_with = Some(Status::WRITE_FAULT);
    assert_eq!(sanitize(&mut host, BLOCK_ERASE | UNRESTRICTED), Status::SUCCESS);
    host.run();
    assert_eq!(read(&mut host), Status::SANITIZE_FAILED);
    model.disk().fails_with = None;
    assert_eq!(sanitize(&mut host, EXIT_FAILURE_MODE), Status::SUCCESS);
    assert_eq!(read(&mut host), Status::SUCCESS);
    assert_eq!(log(&mut host), (0xffff, 3), "it failed all the same");
}

#[test]
fn what_cannot_be_sanitized_does_not_have_the_command() {
    let plain = Characteristics::target(1 << 20, 512);
    let read_only = Characteristics { read_only: true, ..plain };
    let versions = Characteristics { keeps_versions: true, ..plain };
    let model = full();
    for namespace in [
        Model::with(read_only).namespace(2),
        model.namespace(2).forbid_erasing(),
        Model::with(versions).namespace(2),
    ] {
        let mut host = Host::enabled(vec![model.namespace(1), namespace]);
        assert_eq!(sanitize(&mut host, BLOCK_ERASE), Status::INVALID_OPCODE);
        assert_eq!(host.identify(Cns::CONTROLLER, 0).expect("a page")[328..332], [0; 4], "SANICAP");
    }
    let mut host = Host::with_io(&model);
    for action in [0, 4, 5, 7] {
        assert_eq!(sanitize(&mut host, action), Status::INVALID_FIELD, "{action}");
    }
    assert_eq!(sanitize(&mut host, EXIT_FAILURE_MODE), Status::SUCCESS, "there is none to leave");
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0x5a));
}

#[test]
fn it_is_remembered_before_it_begins_and_before_it_is_done() {
    let model = full();
    let mut host = Host::with_io(&model);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    host.controller.subsystem.on_persist(move |what| keep.lock().expect("not poisoned").push(what));
    let record = |state| PersistentRecord::Sanitize(SanitizeRecord { cdw10: BLOCK_ERASE, pattern: 0, state });
    let command = SubmissionEntry { cdw10: BLOCK_ERASE, ..entry(admin::SANITIZE) };
    for (well, status) in [(false, Status::INTERNAL_ERROR), (true, Status::SUCCESS)] {
        host.submit(0, command);
        host.run();
        assert_eq!(host.take(0), None);
        assert_eq!(
            std::mem::take(&mut *kept.lock().expect("not poisoned")),
            [record(SanitizeState::Running)]
        );
        assert!(model.disk().bytes.iter().all(|&byte| byte == 0x5a), "nothing is erased yet");
        let now_ns = host.now_ns;
        host.controller.subsystem.persisted(record(SanitizeState::Running), well, now_ns);
        host.run();
        assert_eq!(host.reap(0).map(|entry| entry.status()), Some(status));
    }
    host.run();
    assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")), [record(SanitizeState::Done)]);
    assert_eq!(read(&mut host), Status::SANITIZE_IN_PROGRESS);
    let now_ns = host.now_ns;
    host.controller.subsystem.persisted(record(SanitizeState::Done), true, now_ns);
    assert_eq!(read(&mut host), Status::SUCCESS);
}

#[test]
fn one_that_was_not_finished_begins_again_without_a_host() {
    let model = full();
    let mut host = Host::new(vec![model.namespace(1)]);
    let state = SanitizeState::Running;
    host.controller.subsystem.resume_sanitize(SanitizeRecord { cdw10: BLOCK_ERASE, pattern: 0, state }, 1);
    host.run();
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
    host.enable();
    assert_eq!(log(&mut host), (0xffff, 0x101));
    // A failed operation stays failed.
    let mut host = Host::new(vec![model.namespace(1)]);
    let state = SanitizeState::Failed;
    host.controller.subsystem.resume_sanitize(SanitizeRecord { cdw10: BLOCK_ERASE, pattern: 0, state }, 1);
    host.enable();
    host.create_pair(1, 16);
    assert_eq!(read(&mut host), Status::SANITIZE_FAILED);
}

fn record(cdw10: u32, state: SanitizeState) -> SanitizeRecord {
    SanitizeRecord { cdw10, pattern: 0, state }
}

/// Returns name, state and drive of the only job.
fn job(host: &Host) -> (String, State, u32) {
    let jobs = host.controller.subsystem.background_jobs();
    let [job] = &jobs[..] else { panic!("{jobs:?}") };
    assert_eq!(job.report.detail, "Sanitize by a host, of all namespaces");
    (job.report.name.clone(), job.report.state, job.nsid)
}

/// Checks that an operation is done when its end is stored: else it begins again after a restart, and would erase new data.
#[test]
fn an_operation_whose_end_is_not_stored_has_failed() {
    for (well, status, sstat, state) in
        [(true, Status::SUCCESS, 0x101, State::Done), (false, Status::SANITIZE_FAILED, 3, State::Failed)]
    {
        let model = full();
        let mut host = Host::with_io(&model);
        assert_eq!(host.io(io(opcode::WRITE_UNCORRECTABLE, 0, 1, 0)), Status::SUCCESS);
        host.controller.subsystem.on_persist(|_| {});
        host.submit(0, SubmissionEntry { cdw10: BLOCK_ERASE, ..entry(admin::SANITIZE) });
        host.run();
        for (state, well) in [(SanitizeState::Running, true), (SanitizeState::Done, well)] {
            let (now_ns, record) = (host.now_ns, record(BLOCK_ERASE, state));
            host.controller.subsystem.persisted(PersistentRecord::Sanitize(record), well, now_ns);
            host.run();
        }
        assert_eq!(host.reap(0).map(|entry| entry.status()), Some(Status::SUCCESS));
        assert_eq!((log(&mut host), read(&mut host)), ((0xffff, sstat), status));
        assert_eq!(job(&host), ("sanitize".to_owned(), state, ALL_NAMESPACES));
    }
}

/// Checks each last operation of an earlier daemon, on drives that support the command and that do not.
#[test]
fn the_last_operation_of_an_earlier_daemon_is_what_it_was() {
    use SanitizeState::{Done, Failed, GivenUp, Running};
    let plain = Characteristics::target(1 << 20, 512);
    for (keeps_versions, state, status, sstat) in [
        (false, Done, Status::SUCCESS, 1),
        (true, Done, Status::SUCCESS, 1),
        (true, GivenUp, Status::SUCCESS, 3),
        (true, Failed, Status::SANITIZE_FAILED, 3),
        (true, Running, Status::SANITIZE_FAILED, 3),
    ] {
        let model = Model::with(Characteristics { keeps_versions, ..plain });
        let mut host = Host::new(vec![model.namespace(1)]);
        host.controller.subsystem.resume_sanitize(record(BLOCK_ERASE | UNRESTRICTED, state), 1);
        let ended = if state == Done { State::Done } else { State::Failed };
        assert_eq!(job(&host), ("sanitize".to_owned(), ended, ALL_NAMESPACES));
        host.enable();
        host.create_pair(1, 16);
        assert_eq!((read(&mut host), log(&mut host)), (status, (0xffff, sstat)), "{state:?}");
        // A failure can be left; without one there is no such command, or it has no effect.
        let can_leave = !keeps_versions || status == Status::SANITIZE_FAILED;
        let expected = if can_leave { Status::SUCCESS } else { Status::INVALID_OPCODE };
        assert_eq!(sanitize(&mut host, EXIT_FAILURE_MODE), expected, "{state:?}");
        host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
        host.run();
        assert_eq!(host.take(0), None, "{state:?}: no operation has ended");
        assert_eq!((read(&mut host), log(&mut host)), (Status::SUCCESS, (0xffff, sstat)), "{state:?}");
    }
}
