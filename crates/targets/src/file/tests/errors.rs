//! Errors, which keep their meaning.

use std::fs::File as OsFile;

use super::*;

/// Opens a device that is always full, and cannot be synced.
fn dev_full() -> OsFile {
    OsFile::options().read(true).write(true).open("/dev/full").expect("every Linux has it")
}

#[test]
fn a_full_file_system_is_capacity_exceeded() {
    let folder = Folder::in_memory();
    let mut prepared = open(&folder.config("image", MIB));
    prepared.data = dev_full().into();
    let drive = Drive::new(prepared);
    assert_eq!(drive.run(write(0, 4096), one(0, 4096)), Status::CAPACITY_EXCEEDED);
    assert_eq!(drive.run(read(0, 4096), one(0, 4096)), Status::SUCCESS);
    drive.stop();
}

#[test]
fn a_write_without_space_waits_and_is_tried_again() {
    let folder = Folder::in_memory();
    let mut config = folder.config("image", MIB);
    config.no_space = NoSpace::Park;
    let mut prepared = open(&config);
    prepared.data = dev_full().into();
    let drive = Drive::new(prepared);
    drive.submit(vec![(1, write(0, 4096), one(0, 4096))]);
    // Reads succeed meanwhile.
    assert_eq!(drive.run(read(0, 4096), one(0, 4096)), Status::SUCCESS);
    let first = drive.with(|host, _| host.stack.deadline_ns()).expect("it will be tried again");
    let start = Instant::now();
    while drive.with(|host, _| host.stack.deadline_ns()).is_none_or(|next| next == first) {
        assert!(start.elapsed() < Duration::from_secs(20), "it is not tried again");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(drive.with(|host, _| host.statuses.is_empty()));
    // The command is still parked, with nothing in flight: the drive can be dropped all the same.
    drive.stop();
}

/// Checks that an abort of one of two writes leaves the other and its next attempt.
#[test]
fn a_write_that_waits_for_room_is_aborted_alone() {
    let folder = Folder::in_memory();
    let mut prepared = open(&FileConfig { no_space: NoSpace::Park, ..folder.config("image", MIB) });
    prepared.data = dev_full().into();
    let drive = Drive::new(prepared);
    drive.submit((1..=2).map(|cid| (cid, write(u64::from(cid) * 4096, 4096), one(0, 4096))).collect());
    let start = Instant::now();
    while drive.with(|host, _| host.events) < 2 {
        assert!(start.elapsed() < Duration::from_secs(20), "they never find the file system full");
        thread::sleep(Duration::from_millis(1));
    }
    let abort = |cid| {
        let which =
            Aborted { controllers: Controllers::of_bits(1), sq: None, cid: Some(cid), awaited: false };
        drive.with(move |host, now_ns| {
            host.stack.abort(which, Status::ABORT_REQUESTED, &mut host.slab, now_ns);
            host.settle(now_ns);
            assert_eq!(host.statuses.remove(&cid), Some(Status::ABORT_REQUESTED));
        });
    };
    abort(1);
    // There is room at the next attempt, and no attempt is made before its time.
    drive.with(|host, now_ns| {
        let retry_ns = host.stack.deadline_ns().expect("the other will be tried again");
        assert!(host.statuses.is_empty() && retry_ns > now_ns);
        host.answers = vec![4096].into();
        host.stack.expire(&mut host.slab, retry_ns - 1);
        assert_eq!(host.stack.deadline_ns(), Some(retry_ns));
        host.stack.expire(&mut host.slab, retry_ns);
        assert_eq!(host.stack.deadline_ns(), None);
    });
    assert_eq!(drive.status(2), Status::SUCCESS);
    drive.submit(vec![(3, write(0, 4096), one(0, 4096))]);
    let start = Instant::now();
    while drive.with(|host, _| host.stack.deadline_ns()).is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never finds the file system full");
        thread::sleep(Duration::from_millis(1));
    }
    abort(3);
    assert_eq!(drive.with(|host, _| host.stack.deadline_ns()), None, "nothing is tried again");
    drive.stop();
}

#[test]
fn after_a_failed_flush_no_later_one_succeeds() {
    let folder = Folder::in_memory();
    let config = folder.config("image", MIB);
    let mut prepared = open(&config);
    prepared.sync = dev_full().into();
    let (control, drive) = (prepared.control(), Drive::new(prepared));
    assert!(!control.has_lost());
    assert_eq!(drive.flush(), Status::WRITE_FAULT);
    assert!(control.has_lost());
    assert_eq!(drive.flush(), Status::WRITE_FAULT);
    let durable = Request { fua: true, ..request(Operation::WriteZeroes, 0, 4096) };
    assert_eq!(drive.run(durable, Vec::new()), Status::WRITE_FAULT);
    let durable = Request { fua: true, ..read(0, 4096) };
    assert_eq!(drive.run(durable, one(0, 4096)), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(drive.run(write(0, 4096), one(0, 4096)), Status::SUCCESS);
    drive.stop();
    let reopened = Drive::new(open(&config));
    assert_eq!(reopened.flush(), Status::SUCCESS);
    reopened.stop();
}

#[test]
fn a_write_whose_flush_fails_takes_later_flushes_with_it_and_one_that_fails_itself_does_not() {
    let folder = Folder::on_disk();
    let config = folder.config("image", MIB);
    let durable = Request { fua: true, ..write(0, 4096) };
    // Results of the write with FUA, and then of the one without.
    for (answers, flush) in
        [(vec![-libc::EIO, -libc::EIO], Status::SUCCESS), (vec![-libc::EIO, 4096], Status::WRITE_FAULT)]
    {
        let drive = Drive::new(open(&config));
        drive.with(|host, _| host.answers = answers.into());
        assert_eq!(drive.run(durable, one(0, 4096)), Status::WRITE_FAULT);
        assert!(drive.with(|host, _| host.answers.is_empty()), "it was tried both ways");
        assert_eq!(drive.flush(), flush);
        assert_eq!(drive.run(write(0, 4096), one(0, 4096)), Status::SUCCESS);
        drive.stop();
    }
    // Zeros that the file system writes are flushed apart.
    let drive = Drive::new(open(&config));
    drive.with(|host, _| host.answers = vec![-libc::EIO].into());
    let durable = Request { fua: true, ..request(Operation::WriteZeroes, 0, 4096) };
    assert_eq!(drive.run(durable, Vec::new()), Status::WRITE_FAULT);
    assert_eq!((drive.with(|host, _| host.events), drive.flush()), (1, Status::SUCCESS));
    drive.stop();
    // A write without FUA implies no flush.
    let drive = Drive::new(open(&config));
    drive.with(|host, _| host.answers = vec![-libc::EIO].into());
    assert_eq!(drive.run(write(0, 4096), one(0, 4096)), Status::WRITE_FAULT);
    assert_eq!(drive.flush(), Status::SUCCESS);
    drive.stop();
}

/// Checks a write that fails with FUA, and whose retry without shows no fault of the write: the flush may
/// have failed.
#[test]
fn a_flush_that_may_have_failed_is_taken_for_failed() {
    let folder = Folder::on_disk();
    let config = folder.config("image", MIB);
    let durable = Request { fua: true, ..write(0, 128 * KIB) };
    let busy = [-libc::EAGAIN; 1 + REPEATS_MAX as usize];
    // Through buffers, the write has two chunks. The first, or a part of it, succeeds alone. The result of the
    // second does not matter.
    let mut ends = vec![vec![BUFFER_BYTES as i32, -libc::EIO], vec![4096, -libc::EIO], vec![0], busy.into()];
    ends.extend([libc::ENOMEM, libc::EFAULT, libc::EINVAL, libc::ENOSPC].map(|errno| vec![-errno]));
    for end in ends {
        let drive = Drive::new(open(&config));
        let answers = [-libc::EIO].iter().chain(&end).copied().collect();
        drive.with(|host, _| host.answers = answers);
        assert!(!drive.run(durable, one(1, 128 << 10)).is_success(), "{end:?}");
        drive.with(|host, _| host.answers.clear());
        assert_eq!(drive.flush(), Status::WRITE_FAULT, "{end:?}");
        drive.stop();
    }
    // The chunk before was durable.
    let drive = Drive::new(open(&config));
    drive.with(|host, _| host.answers = vec![BUFFER_BYTES as i32, -libc::EIO, -libc::EIO].into());
    assert_eq!(drive.run(durable, one(1, 128 << 10)), Status::WRITE_FAULT);
    assert_eq!(drive.flush(), Status::SUCCESS);
    drive.stop();
}

/// Checks the most attempts that the kernel may refuse for the moment, and one more.
#[test]
fn an_access_is_repeated_sixteen_times_and_no_more() {
    let folder = Folder::on_disk();
    for (refusals, is_good) in [(16, true), (17, false)] {
        let drive = Drive::new(open(&folder.config("image", MIB)));
        let refuse = |count| drive.with(move |host, _| host.answers = vec![-libc::EAGAIN; count].into());
        refuse(refusals);
        assert_eq!(drive.run(write(0, 4096), one(1, 4096)).is_success(), is_good, "{refusals}");
        refuse(refusals);
        assert_eq!(drive.flush().is_success(), is_good, "{refusals}");
        drive.stop();
    }
}

/// Checks a file system that is full when the write is retried, with each setting for other writes.
#[test]
fn a_write_in_doubt_that_finds_the_file_system_full_waits_for_no_room() {
    let folder = Folder::on_disk();
    let durable = Request { fua: true, ..write(0, 4096) };
    for no_space in [NoSpace::Fail, NoSpace::Park] {
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            let drive = Drive::new(open(&FileConfig { no_space, ..folder.config("image", MIB) }));
            drive.with(move |host, _| host.answers = vec![-libc::EIO, -errno].into());
            // Data of other writes may be lost, which is more than a lack of room.
            assert_eq!(drive.run(durable, one(0, 4096)), Status::WRITE_FAULT, "{no_space:?}");
            assert_eq!(drive.with(|host, _| host.stack.deadline_ns()), None, "nothing is tried again");
            assert_eq!(drive.flush(), Status::WRITE_FAULT);
            drive.stop();
        }
    }
}

/// Checks that a block is of one write or of another, even if one of them found no room half way.
#[test]
fn a_write_that_waited_for_room_within_a_block_writes_all_of_the_block() {
    let folder = Folder::in_memory();
    let drive = Drive::new(open(&FileConfig { no_space: NoSpace::Park, ..folder.config("image", MIB) }));
    drive.fill(0, vec![1; 4096]);
    drive.fill(4096, vec![2; 4096]);
    drive.with(move |host, now_ns| {
        host.answers = vec![512, -libc::ENOSPC].into();
        host.submit(1, write(0, 4096), &one(0, 4096), now_ns);
    });
    let start = Instant::now();
    while drive.with(|host, _| host.stack.deadline_ns()).is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "it never finds the file system full");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(drive.run(write(0, 4096), one(4096, 4096)), Status::SUCCESS);
    assert_eq!(drive.status(1), Status::SUCCESS);
    assert_eq!(drive.run(read(0, 4096), one(8192, 4096)), Status::SUCCESS);
    let bytes = drive.bytes(8192, 4096);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a part of each: {} and {}", bytes[0], bytes[4095]);
    drive.stop();
}

/// Checks that each errno keeps its meaning, also of a write with FUA that is retried without.
#[test]
fn what_may_not_be_written_is_write_protected_and_what_is_too_large_exceeds_capacity() {
    let folder = Folder::on_disk();
    let config = folder.config("image", MIB);
    let protected = Status::NAMESPACE_WRITE_PROTECTED;
    for (errno, status) in
        [(libc::EROFS, protected), (libc::EPERM, protected), (libc::EFBIG, Status::CAPACITY_EXCEEDED)]
    {
        let drive = Drive::new(open(&FileConfig { no_space: NoSpace::Park, ..config.clone() }));
        for fua in [false, true] {
            drive.with(move |host, _| host.answers = vec![-errno; 1 + usize::from(fua)].into());
            assert_eq!(drive.run(Request { fua, ..write(0, 4096) }, one(0, 4096)), status);
        }
        for operation in [Operation::Deallocate, Operation::WriteZeroes] {
            drive.with(move |host, _| host.answers = vec![-errno].into());
            assert_eq!(drive.run(request(operation, 0, 4096), Vec::new()), status);
        }
        assert_eq!(drive.flush(), Status::SUCCESS, "none of these was a flush");
        drive.stop();
    }
}

/// Checks a drive that shrinks during a write with FUA, so that the write is not retried without.
#[test]
fn a_flush_that_nobody_can_ask_about_any_more_is_taken_for_failed() {
    let folder = Folder::on_disk();
    let drive = Drive::new(open(&folder.config("image", MIB)));
    let durable = Request { fua: true, ..write(512 * KIB, 4096) };
    drive.with(move |host, now_ns| {
        host.answers = vec![-libc::EIO].into();
        host.submit(1, durable, &one(0, 4096), now_ns);
        host.stack.resize(512 * KIB);
    });
    assert_eq!(drive.status(1), Status::LBA_OUT_OF_RANGE);
    assert_eq!(drive.flush(), Status::WRITE_FAULT);
    drive.stop();
}

/// Checks two targets on one file, one of which receives the failure of its Flush late.
#[test]
fn no_flush_succeeds_of_a_file_whose_other_target_has_one_that_fails() {
    let folder = Folder::on_disk();
    let mut prepared = open(&folder.config("image", MIB));
    let clone = Drive::new(prepared.control().open_clone().expect("direct I/O, as disks have it"));
    prepared.sync = dev_full().into();
    let drive = Drive::new(prepared);
    let flush = Request { operation: Operation::Flush, ..Request::default() };
    let (resume, resumed) = std::sync::mpsc::channel();
    let (begun, begins) = std::sync::mpsc::channel();
    let task = drive.task;
    let blocks = drive.reactor.mail(move |local| {
        let now_ns = local.now_ns();
        local.task_mut::<Host>(task).expect("the host is there").submit(1, flush, &[], now_ns);
        begun.send(()).expect("somebody waits");
        resumed.recv().expect("it goes on");
    });
    blocks.expect("room for a mail");
    begins.recv().expect("it begins");
    clone.submit(vec![(2, flush, Vec::new())]);
    // This is long enough for a Flush that does not wait.
    for _ in 0..1000 {
        assert!(clone.with(|host, _| host.statuses.is_empty()), "it cannot know yet");
    }
    resume.send(()).expect("it waits");
    assert_eq!((drive.status(1), clone.status(2)), (Status::WRITE_FAULT, Status::WRITE_FAULT));
    assert_eq!((drive.flush(), clone.flush()), (Status::WRITE_FAULT, Status::WRITE_FAULT));
    drive.stop();
    clone.stop();
}

#[test]
fn targets_on_one_file_flush_in_turn() {
    const EACH: u16 = 40;
    let folder = Folder::on_disk();
    let prepared = open(&folder.config("image", MIB));
    let clone = Drive::new(prepared.control().open_clone().expect("direct I/O, as disks have it"));
    let drive = Drive::new(prepared);
    let flush = Request { operation: Operation::Flush, ..Request::default() };
    for cid in 0..EACH {
        [&drive, &clone].into_iter().for_each(|drive| drive.submit(vec![(cid, flush, Vec::new())]));
    }
    for cid in 0..EACH {
        assert_eq!([&drive, &clone].map(|drive| drive.status(cid)), [Status::SUCCESS; 2]);
    }
    drive.stop();
    assert_eq!(clone.flush(), Status::SUCCESS);
    clone.stop();
}

#[test]
fn many_flushes_at_once_all_finish() {
    let folder = Folder::on_disk();
    let drive = Drive::new(open(&folder.config("image", MIB)));
    let flush = Request { operation: Operation::Flush, ..Request::default() };
    let mut commands: Vec<Command3> = (0..50).map(|cid| (cid, flush, Vec::new())).collect();
    commands.push((50, Request { fua: true, ..write(0, 4096) }, one(0, 4096)));
    commands.push((51, Request { fua: true, ..read(0, 4096) }, one(0, 4096)));
    drive.submit(commands);
    for cid in 0..52 {
        assert_eq!(drive.status(cid), Status::SUCCESS);
    }
    drive.stop();
}

#[test]
fn a_file_that_ends_early_is_an_error_and_not_a_short_success() {
    for folder in [Folder::on_disk(), Folder::in_memory()] {
        let config = folder.config("image", MIB);
        let drive = Drive::new(open(&config));
        let file = OsFile::options().write(true).open(&config.path).expect("it is there");
        file.set_len(512 * KIB + 1024).expect("somebody shortens the file under the drive");
        assert_eq!(drive.run(read(512 * KIB - 4096, 4096), one(0, 4096)), Status::SUCCESS);
        let across = read(512 * KIB - 4096, 8192);
        assert_eq!(drive.run(across, one(0, 8192)), Status::UNRECOVERED_READ_ERROR);
        assert_eq!(drive.run(across, one(1, 8192)), Status::UNRECOVERED_READ_ERROR);
        assert_eq!(drive.run(read(MIB - 4096, 4096), one(0, 4096)), Status::UNRECOVERED_READ_ERROR);
        drive.stop();
    }
}

/// Checks transfers of which the kernel reports a part, down to less than a unit of direct I/O.
#[test]
fn a_short_transfer_goes_on_at_a_unit() {
    let folder = Folder::on_disk();
    let config = folder.config("image", MIB);
    let mut prepared = open(&config);
    prepared.direct = prepared.direct.map(|it| Alignment { unit: 512, ..it });
    let unit = if prepared.is_direct() { 512 } else { 1 };
    let drive = Drive::new(prepared);
    drive.fill(0, (0..8192).map(|n| (n % 251) as u8).collect());
    for memory in [0, 1] {
        for (moved, calls) in [(700, 2), (512, 2), (4095, 2), (4096, 1)] {
            let before = drive.with(move |host, _| {
                host.answers = vec![moved].into();
                host.events
            });
            assert_eq!(drive.run(write(0, 4096), one(memory, 4096)), Status::SUCCESS, "{moved}");
            assert_eq!(drive.with(|host, _| host.events) - before, calls, "{moved}");
            assert!(fs::read(&config.path).expect("it is there")[..4096] == drive.bytes(memory, 4096));
            drive.fill(8192, vec![0; 8192]);
            drive.with(move |host, _| host.answers = vec![moved].into());
            assert_eq!(drive.run(read(0, 4096), one(8192 + memory, 4096)), Status::SUCCESS);
            assert!(drive.bytes(8192 + memory, 4096) == drive.bytes(memory, 4096), "{moved}");
        }
    }
    // The file has ended there.
    drive.with(move |host, _| host.answers = vec![unit - 1].into());
    assert_eq!(drive.run(write(0, 4096), one(0, 4096)), Status::WRITE_FAULT);
    drive.stop();
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let folder = Folder::in_memory();
    let drive = Drive::new(open(&folder.config("image", MIB)));
    assert_eq!(drive.run(read(MIB, 512), one(0, 512)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(drive.run(read(u64::MAX - 511, 512), one(0, 512)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(drive.run(read(0, 1024), one(0, 512)), Status::INTERNAL_ERROR);
    assert_eq!(drive.run(request(Operation::Deallocate, 0, 0), Vec::new()), Status::SUCCESS);
    drive.stop();
}
