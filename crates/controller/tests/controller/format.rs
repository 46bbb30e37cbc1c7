//! Format NVM: the erased data, commands meanwhile, and refusals.

use crate::copy::copy;
use crate::host::{Host, MS, PAGE, entry, io};
use crate::model::Model;
use sluice_command::{Characteristics, Operation};
use sluice_controller::{FormatRecord, FormatState, PersistentRecord, SanitizeRecord, SanitizeState};
use sluice_nvme::identify::IdentifyNamespace;
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{Cns, CompletionEntry, LogId, NSID_ALL, Status, SubmissionEntry};
use std::sync::{Arc, Mutex};
use zerocopy::FromBytes;

const BLOCKS: usize = 2048;

/// LBA formats of a target that supports both.
const OF_512: u32 = 0;
const OF_4096: u32 = 1;

const NAMESPACE_CHANGED: u32 = 0x0004_0002;

fn format(nsid: u32, cdw10: u32) -> SubmissionEntry {
    SubmissionEntry { nsid, cdw10, ..entry(admin::FORMAT_NVM) }
}

fn identify(host: &mut Host, nsid: u32) -> IdentifyNamespace {
    let page = host.identify(Cns::NAMESPACE, nsid).expect("a page");
    IdentifyNamespace::read_from_bytes(&page).expect("a whole page")
}

/// Returns a disk full of data.
fn full() -> Model {
    let model = Model::new(BLOCKS);
    model.disk().bytes.fill(0x5a);
    model
}

/// Returns the completion of a format that was begun.
fn outcome(host: &mut Host) -> Option<CompletionEntry> {
    host.run();
    host.reap(0)
}

/// Conformance: Base 5.14, Format NVM changes the block size and nothing of what was there can be read.
#[test]
fn a_namespace_is_erased_and_has_blocks_of_another_size() {
    let model = full();
    let mut host = Host::with_io(&model);
    let page = identify(&mut host, 1);
    assert_eq!((page.nlbaf, page.flbas, page.fpi), (1, 0, 0x80));
    assert_eq!((page.lbaf[0].lbads, page.lbaf[1].lbads, page.lbaf[2].lbads), (9, 12, 0));
    assert_eq!(host.admin(format(1, OF_4096)).status(), Status::SUCCESS);
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
    assert_eq!(model.take_seen().last().map(|request| request.operation), Some(Operation::Flush));
    assert_eq!(host.admin(entry(admin::ASYNC_EVENT_REQUEST)).dw0, NAMESPACE_CHANGED);
    let page = identify(&mut host, 1);
    assert_eq!((page.nsze, page.flbas, page.fpi), (256, 1, 0x80));
    let buffer = host.allocate(2 * PAGE);
    host.write(buffer, &[7; PAGE]);
    assert_eq!(host.io(io(opcode::WRITE, 255, 1, buffer)), Status::SUCCESS);
    assert_eq!(host.io(io(opcode::READ, 256, 1, buffer)), Status::LBA_OUT_OF_RANGE);
    assert!(model.disk().bytes[255 * PAGE..].iter().all(|&byte| byte == 7));
    // The second format restores the first block size.
    assert_eq!(host.admin(format(1, OF_512)).status(), Status::SUCCESS);
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
    assert_eq!(identify(&mut host, 1).nsze, BLOCKS as u64);
}

/// Tests that later copies of other namespaces do not delay a format.
#[test]
fn copies_elsewhere_are_not_waited_for_without_end() {
    let (own, other) = (full(), full());
    let mut host = Host::enabled(vec![own.namespace(1), other.namespace(2)]);
    host.create_pair(1, 16);
    other.disk().hold = true;
    let command = copy(&mut host, 0, 64, &[(2, 0, 8)]);
    let command = SubmissionEntry { nsid: 2, ..command };
    host.submit(1, command);
    host.run();
    host.submit(0, format(1, OF_512));
    host.run();
    // From now on one copy is always on its way.
    host.submit(1, command);
    host.now_ns += MS;
    assert_eq!(outcome(&mut host), None, "the one before may read anything");
    // This is its read, and its write comes behind the read of the second.
    host.answer(2, &other, 1);
    host.run();
    other.disk().parked.rotate_left(1);
    host.answer(2, &other, 1);
    host.run();
    assert_eq!(host.reap(1).map(|it| it.status()), Some(Status::SUCCESS));
    host.now_ns += MS;
    host.run();
    host.now_ns += MS;
    assert_eq!(outcome(&mut host).map(|it| it.status()), Some(Status::SUCCESS));
    assert!(host.controller.in_flight() > 0, "the second copy is on its way");
}

#[test]
fn what_lies_behind_the_last_block_is_erased_too() {
    const SIZE: usize = 8 * PAGE + 3 * 512;
    let model = Model::with(Characteristics::target(SIZE as u64, 512));
    model.disk().bytes.fill(1);
    let mut host = Host::enabled(vec![model.namespace_of_blocks(1, 4096)]);
    assert_eq!(host.admin(format(1, OF_512 | 1 << 9)).status(), Status::SUCCESS);
    assert_eq!(identify(&mut host, 1).nsze, SIZE as u64 / 512);
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
    let erased = model.take_seen();
    assert!(erased.iter().all(|request| !request.deallocate), "this target does not deallocate");
}

/// Conformance: Base 5.14, commands to a namespace that is being formatted end with Format in Progress, and no others.
#[test]
fn commands_are_refused_meanwhile_and_only_to_this_namespace() {
    let (model, other) = (full(), full());
    let mut host = Host::enabled(vec![model.namespace(1), other.namespace(2)]);
    host.create_pair(1, 64);
    model.disk().hold = true;
    host.submit(0, format(1, OF_4096));
    host.run();
    assert_eq!(host.take(0), None);
    let buffer = host.allocate(2 * PAGE);
    // Commands with ranges have one range of one block.
    host.write(buffer, &[0; 8]);
    host.write(buffer + 4, &1u32.to_le_bytes());
    for opcode in [
        opcode::READ,
        opcode::WRITE,
        opcode::FLUSH,
        opcode::COMPARE,
        opcode::VERIFY,
        opcode::WRITE_ZEROES,
        opcode::COPY,
    ] {
        let command = SubmissionEntry { cdw12: 0, ..io(opcode, 0, 1, buffer) };
        assert_eq!(host.io(command), Status::FORMAT_IN_PROGRESS, "{opcode:#x}");
    }
    let deallocate = SubmissionEntry { cdw10: 0, cdw11: 4, ..io(opcode::DATASET_MANAGEMENT, 0, 1, buffer) };
    assert_eq!(host.io(deallocate), Status::FORMAT_IN_PROGRESS);
    let elsewhere = SubmissionEntry { nsid: 2, ..io(opcode::READ, 0, 1, buffer) };
    assert_eq!(host.io(elsewhere), Status::SUCCESS);
    for nsid in [1, 2] {
        assert_eq!(host.admin(format(nsid, OF_512)).status(), Status::FORMAT_IN_PROGRESS);
    }
    assert_eq!(identify(&mut host, 1).fpi, 0x80 | 100);
    assert_eq!(identify(&mut host, 2).fpi, 0x80);
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(identify(&mut host, 1).fpi, 0x80 | 1, "all but the flush");
    host.answer(1, &model, 1);
    assert_eq!(outcome(&mut host).map(|entry| entry.status()), Some(Status::SUCCESS));
    model.disk().hold = false;
    assert_eq!(host.io(io(opcode::READ, 0, 1, buffer)), Status::SUCCESS);
    assert!(other.disk().bytes.iter().all(|&byte| byte == 0x5a));
}

#[test]
fn commands_in_flight_come_to_their_end_first() {
    let model = full();
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(2 * PAGE);
    model.disk().hold = true;
    host.submit(1, io(opcode::WRITE, 0, 1, buffer));
    host.run();
    host.submit(0, format(1, OF_512));
    host.run();
    assert_eq!(model.disk().parked.len(), 1, "nothing is erased yet");
    // A command that never ends makes the format fail.
    host.now_ns += 9000 * MS;
    assert_eq!(outcome(&mut host).map(|entry| entry.status()), Some(Status::COMMAND_SEQUENCE_ERROR));
    host.submit(0, format(1, OF_512));
    host.run();
    model.disk().hold = false;
    host.answer(1, &model, 1);
    host.run();
    host.now_ns += MS;
    assert_eq!(outcome(&mut host).map(|entry| entry.status()), Some(Status::SUCCESS));
    assert_eq!(host.reap(1).map(|entry| entry.status()), Some(Status::SUCCESS));
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
}

/// Conformance: Base 5.14, a format, secure erase or protection that is not supported is refused with the status named for it.
#[test]
fn what_cannot_be_formatted_is_refused_and_left_alone() {
    let read_only = Characteristics { read_only: true, ..Characteristics::target(1 << 20, 512) };
    let (model, of_4096) = (full(), Model::with(Characteristics::target(1 << 20, 4096)));
    let mut host = Host::enabled(vec![
        model.namespace(1),
        Model::with(read_only).namespace(2),
        of_4096.namespace_of_blocks(3, 4096),
        model.namespace(4).fix_block_size(),
        model.namespace(5).forbid_erasing(),
    ]);
    // An unavailable format keeps its index.
    let of_3 = identify(&mut host, 3);
    assert_eq!((of_3.nlbaf, of_3.flbas, of_3.lbaf[0].lbads, of_3.lbaf[1].lbads), (1, 1, 0, 12));
    assert_eq!(identify(&mut host, 4).nlbaf, 0);
    for (nsid, cdw10, status) in [
        (1, 2, Status::INVALID_FORMAT),
        (1, 1 << 12, Status::INVALID_FORMAT),
        (1, 1 << 5, Status::INVALID_FORMAT),
        (1, 2 << 9, Status::INVALID_FIELD),
        (NSID_ALL, OF_512, Status::INVALID_FIELD),
        (0, OF_512, Status::INVALID_NAMESPACE),
        (6, OF_512, Status::INVALID_NAMESPACE),
        (2, OF_512, Status::NAMESPACE_WRITE_PROTECTED),
        (3, OF_512, Status::INVALID_FORMAT),
        (4, OF_4096, Status::INVALID_FORMAT),
        (5, OF_512, Status::INVALID_FORMAT),
    ] {
        assert_eq!(host.admin(format(nsid, cdw10)).status(), status, "{nsid} {cdw10:#x}");
    }
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0x5a));
    // The namespace can be formatted again with its only format.
    assert_eq!(host.admin(format(3, OF_4096)).status(), Status::SUCCESS);
}

#[test]
fn what_fails_below_fails_the_command() {
    let model = full();
    let mut host = Host::with_io(&model);
    model.disk().fails_with = Some(Status::WRITE_FAULT);
    assert_eq!(host.admin(format(1, OF_4096)).status(), Status::WRITE_FAULT);
    model.disk().fails_with = None;
    assert_eq!(identify(&mut host, 1).flbas, 0);
    let buffer = host.allocate(2 * PAGE);
    assert_eq!(host.io(io(opcode::READ, 0, 1, buffer)), Status::SUCCESS, "it is open again");
}

#[test]
fn a_reset_takes_the_command_and_not_the_format() {
    let model = full();
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    host.submit(0, format(1, OF_4096));
    host.run();
    host.write_register(register::CC, 0);
    host.run();
    assert!(host.controller.is_quiescent(), "a piece is with the target, and has nothing of the host");
    assert_eq!((host.controller.in_flight(), host.controller.unfinished()), (0, 1));
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.controller.unfinished(), 1, "another piece is");
    model.disk().hold = false;
    host.answer(1, &model, 1);
    host.enable();
    host.run();
    assert_eq!(identify(&mut host, 1).flbas, 1);
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn a_shutdown_waits_for_no_format() {
    let model = full();
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    host.submit(0, format(1, OF_4096));
    host.run();
    model.disk().hold = false;
    host.write_register(register::CC, crate::host::CC_ENABLED | 1 << 14);
    host.run();
    assert_eq!(host.csts() & csts::SHST_MASK, csts::SHST_COMPLETE);
    host.answer(1, &model, 1);
    host.run();
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn a_paused_controller_comes_to_rest_between_two_pieces() {
    let model = full();
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    host.submit(0, format(1, OF_4096));
    host.run();
    for unfinished in [1, 0] {
        host.controller.pause();
        host.run();
        assert_eq!(host.controller.unfinished(), unfinished);
        host.answer(1, &model, unfinished as usize);
    }
    model.disk().hold = false;
    host.write_register(register::CC, 0);
    host.run();
    host.enable();
    host.run();
    assert_eq!(identify(&mut host, 1).flbas, 1);
}

/// Makes the namespace smaller than the bytes that are erased already.
#[test]
fn no_more_is_done_of_a_namespace_than_there_is() {
    const PIECE: usize = 32 << 20;
    let model = Model::new(3 * PIECE / 512);
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    host.submit(0, format(1, OF_4096));
    host.run();
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(identify(&mut host, 1).fpi, 0x80 | 67);
    assert!(host.controller.subsystem.resize(1, PIECE as u64 / 2));
    assert_eq!(identify(&mut host, 1).fpi, 0x80 | 1);
}

#[test]
fn it_is_remembered_before_it_begins_and_before_the_host_is_told() {
    let model = full();
    let mut host = Host::with_io(&model);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    host.controller.subsystem.on_persist(move |what| keep.lock().expect("not poisoned").push(what));
    let record = |state| PersistentRecord::Format(FormatRecord { nsid: 1, block_size: 4096, state });
    use FormatState::{Done, Running};
    // Three runs: the begin cannot be persisted, the end cannot be persisted, and both are.
    for (answers, status, flbas) in [
        (&[(Running, false)][..], Status::INTERNAL_ERROR, 0),
        (&[(Running, true), (Done, false)][..], Status::INTERNAL_ERROR, 0),
        (&[(Running, true), (Done, true)][..], Status::SUCCESS, 1),
    ] {
        host.submit(0, format(1, OF_4096));
        for &(state, well) in answers {
            assert_eq!(outcome(&mut host), None);
            assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")), [record(state)]);
            let is_full = model.disk().bytes.iter().all(|&byte| byte == 0x5a);
            assert_eq!(
                is_full,
                state == Running && !model.disk().bytes.contains(&0),
                "nothing is erased before"
            );
            let now_ns = host.now_ns;
            host.controller.subsystem.persisted(record(state), well, now_ns);
        }
        assert_eq!(outcome(&mut host).map(|entry| entry.status()), Some(status));
        assert_eq!(identify(&mut host, 1).flbas, flbas);
        let read = host.io(io(opcode::READ, 0, 1, 0x1000_0000));
        if !answers.contains(&(Done, false)) {
            assert_eq!(read, Status::SUCCESS);
            continue;
        }
        // By its record the namespace is being formatted, so that stays its state until the end is persisted.
        assert_eq!(read, Status::FORMAT_IN_PROGRESS);
        host.now_ns += 1_000 * MS;
        host.run();
        assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")), [record(Done)]);
        let now_ns = host.now_ns;
        host.controller.subsystem.persisted(record(Done), true, now_ns);
        host.run();
        assert_eq!(identify(&mut host, 1).flbas, 1);
    }
    // No command waits for this answer.
    let now_ns = host.now_ns;
    host.controller.subsystem.persisted(record(Done), true, now_ns);
    assert_eq!(identify(&mut host, 1).flbas, 1);
}

#[test]
fn one_that_failed_is_remembered_as_that() {
    let model = full();
    let mut host = Host::with_io(&model);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    host.controller.subsystem.on_persist(move |what| keep.lock().expect("not poisoned").push(what));
    model.disk().fails_with = Some(Status::WRITE_FAULT);
    host.submit(0, format(1, OF_4096));
    for state in [FormatState::Running, FormatState::Failed] {
        assert_eq!(outcome(&mut host), None);
        let what = PersistentRecord::Format(FormatRecord { nsid: 1, block_size: 4096, state });
        assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")), std::slice::from_ref(&what));
        let now_ns = host.now_ns;
        host.controller.subsystem.persisted(what, true, now_ns);
    }
    assert_eq!(outcome(&mut host).map(|entry| entry.status()), Some(Status::WRITE_FAULT));
}

/// Conformance: Base 5.14, a format that was cut off is ended before the namespace takes commands.
#[test]
fn one_that_a_daemon_left_halfway_is_ended_by_the_next() {
    let model = full();
    let mut host = Host::new(vec![model.namespace(1)]);
    assert!(host.controller.subsystem.resume_format(1, 4096, 1));
    model.disk().hold = true;
    host.run();
    host.enable();
    host.create_pair(1, 16);
    let buffer = host.allocate(2 * PAGE);
    assert_eq!(host.io(io(opcode::READ, 0, 1, buffer)), Status::FORMAT_IN_PROGRESS);
    model.disk().hold = false;
    host.answer(1, &model, 1);
    host.run();
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
    assert_eq!(identify(&mut host, 1).flbas, 1);
    // A format that is impossible for the namespace now is not resumed.
    let other = full();
    let mut host = Host::new(vec![other.namespace(1).fix_block_size()]);
    assert!(!host.controller.subsystem.resume_format(1, 4096, 1));
    assert!(!host.controller.subsystem.resume_format(2, 4096, 1));
    host.run();
    assert!(other.disk().bytes.iter().all(|&byte| byte == 0x5a));
}

/// Tests that an old sanitize record does not end a format that is not at its end.
#[test]
fn one_that_a_daemon_left_halfway_is_closed_whatever_was_sanitized_before() {
    for (state, after) in [
        (SanitizeState::Done, Status::SUCCESS),
        (SanitizeState::GivenUp, Status::SUCCESS),
        (SanitizeState::Failed, Status::SANITIZE_FAILED),
    ] {
        let model = full();
        let mut host = Host::new(vec![model.namespace(1)]);
        assert!(host.controller.subsystem.resume_format(1, 4096, 1));
        host.controller.subsystem.resume_sanitize(SanitizeRecord { cdw10: 2, pattern: 0, state }, 1);
        model.disk().hold = true;
        host.run();
        host.enable();
        host.create_pair(1, 16);
        let buffer = host.allocate(2 * PAGE);
        assert!(!host.io(io(opcode::READ, 0, 1, buffer)).is_success(), "{state:?}");
        model.disk().hold = false;
        host.answer(1, &model, 1);
        host.run();
        assert_eq!(host.io(io(opcode::READ, 0, 1, buffer)), after, "{state:?}");
    }
}

/// Conformance: Base 5.9, a Format NVM aborts a self-test of its namespace, and the log says so.
#[test]
fn a_format_ends_a_self_test_of_its_namespace() {
    let model = full();
    let mut host = Host::with_io(&model);
    let test = SubmissionEntry { nsid: 1, cdw10: 2, ..entry(admin::DEVICE_SELF_TEST) };
    assert_eq!(host.admin(test).status(), Status::SUCCESS);
    assert_eq!(host.admin(format(1, OF_512)).status(), Status::SUCCESS);
    assert_eq!(host.log(LogId::SELF_TEST, 564).expect("a page")[4], 0x24);
}
