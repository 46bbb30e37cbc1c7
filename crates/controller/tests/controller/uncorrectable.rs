//! Write Uncorrectable: unreadable blocks, their recovery, and records.

use crate::host::{Host, PAGE, entry, io};
use crate::model::Model;
use sluice_command::Characteristics;
use sluice_controller::{PERSIST_BURST, PERSIST_INTERVAL_NS, PersistentRecord, UNCORRECTABLE_RANGES_MAX};
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{Status, SubmissionEntry};
use std::sync::{Arc, Mutex};

const BLOCKS: usize = 4096;
const LOST: Status = Status::UNRECOVERED_READ_ERROR;

fn mark(slba: u64, blocks: u32) -> SubmissionEntry {
    io(opcode::WRITE_UNCORRECTABLE, slba, blocks, 0)
}

/// Returns as letters which of the first 32 blocks can be read.
fn readable(host: &mut Host, buffer: u64) -> String {
    (0..32).map(|slba| if host.io(io(opcode::READ, slba, 1, buffer)) == LOST { 'x' } else { '.' }).collect()
}

/// Conformance: NVM 3.2.7, a block that was written by Write Uncorrectable cannot be read until it is written again.
#[test]
fn marked_blocks_cannot_be_read_until_they_are_written() {
    let model = Model::new(BLOCKS);
    model.disk().bytes.fill(5);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(2 * PAGE);
    assert_eq!(host.io(mark(8, 16)), Status::SUCCESS);
    assert_eq!(readable(&mut host, buffer), "........xxxxxxxxxxxxxxxx........");
    assert_eq!(host.io(io(opcode::READ, 4, 5, buffer)), LOST);
    for opcode in [opcode::COMPARE, opcode::VERIFY] {
        assert_eq!(host.io(io(opcode, 8, 1, buffer)), LOST, "{opcode:#x}");
    }
    assert_eq!(host.io(io(opcode::READ, 4090, 8, buffer)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(host.io(io(opcode::FLUSH, 0, 1, 0)), Status::SUCCESS);
    model.take_seen();
    assert_eq!(host.io(io(opcode::WRITE, 10, 2, buffer)), Status::SUCCESS);
    assert!(model.take_seen()[0].fua, "nothing of before comes back with a power cut");
    assert_eq!(readable(&mut host, buffer), "........xx..xxxxxxxxxxxx........");
    assert_eq!(
        host.io(SubmissionEntry { dptr: [0, 0], ..io(opcode::WRITE_ZEROES, 20, 8, 0) }),
        Status::SUCCESS
    );
    assert_eq!(readable(&mut host, buffer), "........xx..xxxxxxxx............");
    // A Deallocate writes nothing.
    host.write(buffer, &[0; 4]);
    host.write(buffer + 4, &8u32.to_le_bytes());
    host.write(buffer + 8, &8u64.to_le_bytes());
    let deallocate = SubmissionEntry { cdw10: 0, cdw11: 4, ..io(opcode::DATASET_MANAGEMENT, 0, 1, buffer) };
    assert_eq!(host.io(deallocate), Status::SUCCESS);
    assert_eq!(readable(&mut host, buffer), "........xx..xxxxxxxx............");
    // A write that fails leaves them as they were.
    model.disk().fails_with = Some(Status::WRITE_FAULT);
    assert_eq!(host.io(io(opcode::WRITE, 8, 8, buffer)), Status::WRITE_FAULT);
    model.disk().fails_with = None;
    assert_eq!(readable(&mut host, buffer), "........xx..xxxxxxxx............");
    let format = SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) };
    assert_eq!(host.admin(format).status(), Status::SUCCESS);
    assert_eq!(readable(&mut host, buffer), ".".repeat(32));
}

#[test]
fn a_copy_neither_reads_them_nor_leaves_them() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(2 * PAGE);
    assert_eq!(host.io(mark(8, 8)), Status::SUCCESS);
    let copy = |host: &mut Host, from: u64, to: u64| {
        let mut range = [0; 32];
        range[8..16].copy_from_slice(&from.to_le_bytes());
        range[16] = 3;
        host.write(buffer, &range);
        host.io(SubmissionEntry { cdw12: 0, ..io(opcode::COPY, to, 1, buffer) })
    };
    assert_eq!(copy(&mut host, 10, 100), LOST);
    assert_eq!(copy(&mut host, 100, 10), Status::SUCCESS);
    let seen = host.allocate(2 * PAGE);
    assert_eq!(readable(&mut host, seen), "........xx....xx................");
}

#[test]
fn what_is_marked_is_remembered_before_the_host_is_told() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(2 * PAGE);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    host.controller.subsystem.on_persist(move |what| keep.lock().expect("not poisoned").push(what));
    let marks = |ranges: &[[u64; 2]]| PersistentRecord::Uncorrectable { nsid: 1, ranges: ranges.to_vec() };
    let (none, one, two) = (marks(&[]), marks(&[[512, 1536]]), marks(&[[512, 1024]]));
    for (command, record_persisted, well, status) in [
        (mark(1, 2), &one, false, Status::INTERNAL_ERROR),
        (mark(1, 2), &one, true, Status::SUCCESS),
        (io(opcode::WRITE, 2, 1, buffer), &two, false, Status::INTERNAL_ERROR),
        (io(opcode::WRITE, 2, 1, buffer), &two, true, Status::SUCCESS),
        (io(opcode::WRITE, 1, 1, buffer), &none, true, Status::SUCCESS),
    ] {
        host.submit(1, command);
        host.run();
        assert_eq!(host.take(1), None);
        assert_eq!(
            std::mem::take(&mut *kept.lock().expect("not poisoned")),
            std::slice::from_ref(record_persisted)
        );
        let now_ns = host.now_ns;
        host.controller.subsystem.persisted(record_persisted.clone(), well, now_ns);
        host.run();
        assert_eq!(host.reap(1).map(|entry| entry.status()), Some(status));
    }
    // A command that changes nothing ends at once, and changes that come meanwhile share one record.
    for slba in [10, 20, 22, 20] {
        host.submit(1, mark(slba, 1));
    }
    host.run();
    assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")), [marks(&[[5120, 5632]])]);
    let now_ns = host.now_ns;
    host.controller.subsystem.persisted(marks(&[[5120, 5632]]), true, now_ns);
    let all = marks(&[[5120, 5632], [10_240, 10_752], [11_264, 11_776]]);
    assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")), std::slice::from_ref(&all));
    host.run();
    assert_eq!(host.reap_all(1).len(), 1);
    host.controller.subsystem.persisted(all, true, now_ns);
    host.run();
    assert_eq!(host.reap_all(1).len(), 3);
    assert_eq!(host.io(mark(10, 1)), Status::SUCCESS);
    assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")), []);
}

/// Tests that a host with endless changes of uncorrectable ranges does not wear out the disk with the
/// daemon's state.
#[test]
fn how_often_something_is_remembered_is_limited() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(2 * PAGE);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    host.controller.subsystem.on_persist(move |what| keep.lock().expect("not poisoned").push(what));
    let command = |n: u64| if n.is_multiple_of(2) { mark(1, 1) } else { io(opcode::WRITE, 1, 1, buffer) };
    let stores = |host: &mut Host| {
        host.run();
        let what = kept.lock().expect("not poisoned").pop()?;
        let now_ns = host.now_ns;
        host.controller.subsystem.persisted(what, true, now_ns);
        host.run();
        host.reap(1).map(|entry| entry.status())
    };
    for n in 0..PERSIST_BURST {
        host.submit(1, command(n));
        assert_eq!(stores(&mut host), Some(Status::SUCCESS), "{n}");
    }
    for n in 0..3 {
        host.submit(1, command(n));
        assert_eq!(stores(&mut host), None);
        host.now_ns += PERSIST_INTERVAL_NS;
        assert_eq!(stores(&mut host), Some(Status::SUCCESS), "{n}");
    }
    host.now_ns += 3 * PERSIST_INTERVAL_NS;
    for n in 1..4 {
        host.submit(1, command(n));
        assert_eq!(stores(&mut host), Some(Status::SUCCESS), "{n}");
    }
    host.submit(1, command(0));
    assert_eq!(stores(&mut host), None);
}

#[test]
fn what_lies_behind_the_end_of_a_namespace_is_not_marked() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(2 * PAGE);
    for slba in [2, 8, 20] {
        assert_eq!(host.io(mark(slba, 4)), Status::SUCCESS);
    }
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    host.controller.subsystem.on_persist(move |what| keep.lock().expect("not poisoned").push(what));
    let size = |blocks: u64| blocks * 512;
    assert!(host.controller.subsystem.resize(1, size(10)));
    let left = PersistentRecord::Uncorrectable { nsid: 1, ranges: vec![[1024, 3072], [4096, 5120]] };
    assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")), std::slice::from_ref(&left));
    let now_ns = host.now_ns;
    host.controller.subsystem.persisted(left, true, now_ns);
    assert!(host.controller.subsystem.resize(1, size(BLOCKS as u64)));
    assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")), []);
    assert_eq!(readable(&mut host, buffer), "..xxxx..xx......................");
}

/// Tests that a write over uncorrectable blocks does not end before its change is persisted.
#[test]
fn a_write_waits_for_a_mark_that_is_being_taken_away() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let buffer = host.allocate(2 * PAGE);
    assert_eq!(host.io(mark(8, 1)), Status::SUCCESS);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    host.controller.subsystem.on_persist(move |what| keep.lock().expect("not poisoned").push(what));
    let none = PersistentRecord::Uncorrectable { nsid: 1, ranges: Vec::new() };
    for _ in 0..2 {
        host.submit(1, io(opcode::WRITE, 8, 1, buffer));
        host.run();
    }
    assert_eq!(
        (host.take(1), std::mem::take(&mut *kept.lock().expect("not poisoned"))),
        (None, vec![none.clone()])
    );
    for (well, status) in [(false, Status::INTERNAL_ERROR), (true, Status::SUCCESS)] {
        let now_ns = host.now_ns;
        host.controller.subsystem.persisted(none.clone(), well, now_ns);
        host.run();
        assert_eq!(host.reap(1).map(|entry| entry.status()), Some(status));
    }
    assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")), [none]);
    assert_eq!(host.io(io(opcode::READ, 8, 1, buffer)), Status::SUCCESS);
}

#[test]
fn they_are_still_marked_under_the_next_daemon() {
    let model = Model::new(BLOCKS);
    let mut host = Host::new(vec![model.namespace(1)]);
    host.controller.subsystem.resume_uncorrectable(1, &[[512, 1024], [2048, 2048], [4096, 8192]]);
    host.enable();
    host.create_pair(1, 16);
    let buffer = host.allocate(2 * PAGE);
    assert_eq!(readable(&mut host, buffer), ".x......xxxxxxxx................");
}

/// Ranges of one namespace must not count for another.
#[test]
fn each_namespace_has_its_own() {
    let models = [Model::new(BLOCKS), Model::new(BLOCKS)];
    let mut host = Host::enabled(vec![models[0].namespace(1), models[1].namespace(2)]);
    host.create_pair(1, 16);
    for number in 0..UNCORRECTABLE_RANGES_MAX as u64 {
        assert_eq!(host.io(SubmissionEntry { nsid: 2, ..mark(number * 2, 1) }), Status::SUCCESS);
    }
    assert_eq!(host.io(mark(0, 3)), Status::SUCCESS);
    let buffer = host.allocate(2 * PAGE);
    assert_eq!(host.io(io(opcode::WRITE, 1, 1, buffer)), Status::SUCCESS, "one becomes two");
}

#[test]
fn there_are_so_many_and_no_more() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    for number in 0..UNCORRECTABLE_RANGES_MAX as u64 {
        assert_eq!(host.io(mark(number * 2, 1)), Status::SUCCESS);
    }
    assert_eq!(host.io(mark(UNCORRECTABLE_RANGES_MAX as u64 * 2, 1)), Status::CAPACITY_EXCEEDED);
    assert_eq!(host.io(mark(1, 1)), Status::SUCCESS, "three become one");
    assert_eq!(host.io(mark(UNCORRECTABLE_RANGES_MAX as u64 * 2, 1)), Status::SUCCESS);
    // A write that would split a range fails.
    let buffer = host.allocate(2 * PAGE);
    assert_eq!(host.io(io(opcode::WRITE, 1, 1, buffer)), Status::WRITE_FAULT);
    assert_eq!(host.io(io(opcode::READ, 1, 1, buffer)), LOST);
    assert_eq!(host.io(io(opcode::WRITE, 0, 3, buffer)), Status::SUCCESS);
    assert_eq!(host.io(io(opcode::READ, 0, 3, buffer)), Status::SUCCESS);
    let read_only = Characteristics { read_only: true, ..Characteristics::target(1 << 20, 512) };
    let mut host = Host::with_io(&Model::with(read_only));
    assert_eq!(host.io(mark(0, 1)), Status::NAMESPACE_WRITE_PROTECTED);
    assert_eq!(host.io(SubmissionEntry { nsid: 9, ..mark(0, 1) }), Status::INVALID_FIELD);
}

/// Checks that the end of a namespace that shrinks is none of another namespace's.
#[test]
fn a_namespace_that_shrinks_takes_no_marks_of_another() {
    let models = [Model::new(BLOCKS), Model::new(BLOCKS)];
    let mut host = Host::enabled(vec![models[0].namespace(1), models[1].namespace(2)]);
    host.create_pair(1, 16);
    for (nsid, slba) in [(1, 8), (2, 4), (2, 20)] {
        assert_eq!(host.io(SubmissionEntry { nsid, ..mark(slba, 1) }), Status::SUCCESS);
    }
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    host.controller.subsystem.on_persist(move |what| keep.lock().expect("not poisoned").push(what));
    host.submit(1, mark(10, 1));
    host.submit(1, mark(12, 1));
    host.submit(1, SubmissionEntry { nsid: 2, ..mark(30, 1) });
    host.run();
    assert!(host.controller.subsystem.resize(2, 10 * 512));
    let marks = |nsid, blocks: &[u64]| {
        let ranges = blocks.iter().map(|block| [block * 512, block * 512 + 512]).collect();
        PersistentRecord::Uncorrectable { nsid, ranges }
    };
    for (nsid, blocks) in [(1, &[8, 10][..]), (1, &[8, 10, 12]), (2, &[4])] {
        let record = marks(nsid, blocks);
        assert_eq!(std::mem::take(&mut *kept.lock().expect("not poisoned")), std::slice::from_ref(&record));
        let now_ns = host.now_ns;
        host.controller.subsystem.persisted(record, true, now_ns);
        host.run();
    }
    assert_eq!(host.reap_all(1).len(), 3);
    let buffer = host.allocate(2 * PAGE);
    assert_eq!(readable(&mut host, buffer), "........x.x.x...................");
}
