//! Long changes of the file, in chunks that end early when their host aborts them.

use std::os::unix::fs::FileExt;

use super::*;

/// Every command of the host of these tests.
const ALL: Aborted = Aborted { controllers: Controllers::of_bits(1), sq: None, cid: None, awaited: false };

pub(super) fn abort_one(cid: u16) -> Aborted {
    Aborted { cid: Some(cid), ..ALL }
}

impl Host {
    pub(super) fn abort(&mut self, which: Aborted, now_ns: u64) {
        self.stack.abort(which, Status::ABORT_REQUESTED, &mut self.slab, now_ns);
        self.settle(now_ns);
    }
}

fn flush() -> Request {
    Request { operation: Operation::Flush, ..Request::default() }
}

fn deallocate(offset: u64, length: u64) -> Request {
    request(Operation::Deallocate, offset, length)
}

/// Writes every other 4 KiB of a file, so that the file system has an extent for each.
fn fragmented(folder: &Folder, size: u64) -> FileConfig {
    let config = folder.config("image", size);
    let file = fs::File::create(&config.path).expect("a file can be made");
    file.set_len(size).expect("it can be sparse");
    for offset in (0..size).step_by(8192) {
        file.write_all_at(&[0x5a; 4096], offset).expect("there is room");
    }
    file.sync_all().expect("it can be stored");
    config
}

/// Checks every operation that changes a range of a file.
#[test]
fn a_fragmented_range_is_changed_in_chunks_that_the_kernel_ends_soon() {
    const SIZE: u64 = 64 * MIB;
    let folder = Folder::on_disk();
    let zeroes = request(Operation::WriteZeroes, 0, SIZE);
    for request in [deallocate(0, SIZE), zeroes, Request { deallocate: true, ..zeroes }] {
        let drive = Drive::new(open(&fragmented(&folder, SIZE)));
        assert_eq!(drive.run(request, Vec::new()), Status::SUCCESS);
        let calls = drive.with(|host, _| host.events);
        // An extent takes the kernel 50 us and more, and there are 2048 in the longest chunk.
        assert!(calls >= SIZE / (16 * MIB), "{request:?}: {calls} calls");
        for offset in [0, SIZE / 2, SIZE - 8192] {
            assert_eq!(drive.run(read(offset, 8192), one(0, 8192)), Status::SUCCESS);
            assert!(drive.bytes(0, 8192).iter().all(|byte| *byte == 0), "{request:?} at {offset}");
        }
        drive.stop();
    }
}

/// Checks a long range in the commands that hosts send.
#[test]
fn commands_that_go_on_where_another_ends_are_one_chunk() {
    const EACH: u64 = 512 * KIB;
    const COUNT: u16 = 64;
    let folder = Folder::on_disk();
    let drive = Drive::new(open(&fragmented(&folder, 40 * MIB)));
    drive.with(move |host, now_ns| {
        // All chunks are short, however long the machine takes for them.
        host.still_ns = Some(now_ns);
        for number in 0..COUNT {
            host.submit(number + 1, deallocate(u64::from(number) * EACH, EACH), &[], now_ns);
        }
        // The host aborts one of the commands.
        host.abort(abort_one(COUNT / 2), now_ns);
    });
    for cid in (1..=COUNT).filter(|cid| *cid != COUNT / 2) {
        assert_eq!(drive.status(cid), Status::SUCCESS, "{cid}");
    }
    // The first command is alone. Chunks of 8, 16 and 32 commands follow, and the one before the gap ends there.
    assert_eq!(drive.with(|host, _| host.events), 5);
    assert_eq!(drive.run(read(EACH, 8192), one(0, 8192)), Status::SUCCESS);
    assert!(drive.bytes(0, 8192).iter().all(|byte| *byte == 0));
    // The bytes behind the last command are unchanged.
    assert_eq!(drive.run(read(u64::from(COUNT) * EACH, 8192), one(0, 8192)), Status::SUCCESS);
    assert_eq!(drive.bytes(0, 8192)[..4096], [0x5a; 4096]);
    drive.stop();
}

#[test]
fn what_is_between_two_chunks_ends_there() {
    let folder = Folder::on_disk();
    let drive = Drive::new(open(&folder.config("image", MIB << 10)));
    let long = deallocate(0, MIB << 10);
    drive.with(move |host, now_ns| {
        host.submit(1, long, &[], now_ns);
        host.submit(2, Request { operation: Operation::WriteZeroes, ..long }, &[], now_ns);
        host.abort(ALL, now_ns);
        assert_eq!(host.statuses.remove(&2), Some(Status::ABORT_REQUESTED), "none of it was begun");
        assert!(host.statuses.is_empty(), "the kernel has a chunk of it");
    });
    assert_eq!(drive.status(1), Status::ABORT_REQUESTED);
    assert_eq!(drive.with(|host, _| host.events), 1);
    // An abort of another command does not end this one.
    drive.with(move |host, now_ns| {
        host.submit(3, deallocate(0, 32 * MIB), &[], now_ns);
        host.submit(4, long, &[], now_ns);
        host.abort(abort_one(4), now_ns);
        assert_eq!(host.statuses.remove(&4), Some(Status::ABORT_REQUESTED));
    });
    assert_eq!(drive.status(3), Status::SUCCESS);
    drive.stop();
}

/// Checks a write by way of buffers, 64 KiB at a time.
#[test]
fn what_is_copied_in_chunks_ends_between_two() {
    let folder = Folder::on_disk();
    let drive = Drive::new(open(&folder.config("image", 2 * MIB)));
    drive.with(move |host, now_ns| {
        host.submit(1, write(0, MIB), &one(1, 1 << 20), now_ns);
        host.abort(ALL, now_ns);
        assert!(host.statuses.is_empty(), "the kernel has a chunk of it");
    });
    assert_eq!(drive.status(1), Status::ABORT_REQUESTED);
    assert_eq!(drive.with(|host, _| host.events), 1);
    drive.stop();
}

/// Returns whether the second of two writes to the same block waits for the first: only then an abort ends it
/// at once.
fn second_waits(drive: &Drive) -> bool {
    let waits = drive.with(|host, now_ns| {
        host.submit(1, write(0, 4096), &one(0, 4096), now_ns);
        host.submit(2, write(0, 4096), &one(4096, 4096), now_ns);
        host.abort(abort_one(2), now_ns);
        host.statuses.remove(&2)
    });
    assert_eq!(drive.status(1), Status::SUCCESS);
    let status = waits.unwrap_or_else(|| drive.status(2));
    assert_eq!(status, if waits.is_some() { Status::ABORT_REQUESTED } else { Status::SUCCESS });
    waits.is_some()
}

/// Checks the page cache and devices with smaller units, which do not order two commands within a block.
#[test]
fn commands_that_overlap_in_a_block_wait_for_each_other_where_nothing_else_keeps_them_apart() {
    let folder = Folder::in_memory();
    let drive = Drive::new(open(&folder.config("image", MIB)));
    assert!(second_waits(&drive), "the page cache");
    drive.stop();
    let folder = Folder::on_disk();
    for (atomic, block_size, waits) in [(512, 512, false), (512, 4096, true), (4096, 4096, false)] {
        let mut prepared = open(&FileConfig { block_size, ..folder.config("image", MIB) });
        let is_fine = prepared.direct.is_some_and(|it| it.unit == 512);
        prepared.direct = prepared.direct.map(|it| Alignment { unit: 512, ..it });
        (prepared.properties.atomic, prepared.control.properties.atomic) = (atomic, atomic);
        let (is_direct, control, drive) = (prepared.is_direct(), prepared.control(), Drive::new(prepared));
        assert_eq!(second_waits(&drive), waits || !is_direct, "{atomic} of {block_size}");
        // Only one reactor can order the commands.
        if is_direct && is_fine {
            assert_eq!(control.open_clone().is_err(), waits, "{atomic} of {block_size}");
        }
        // The namespace is formatted with other blocks.
        drive.with(|host, _| host.stack.formatted(4096));
        assert_eq!(second_waits(&drive), atomic < 4096 || !is_direct);
        drive.with(|host, _| host.stack.formatted(512));
        assert_eq!(second_waits(&drive), !is_direct);
        drive.stop();
    }
}

#[test]
fn commands_that_wait_end_at_once_and_others_take_their_place() {
    // Through the page cache, the second write waits for the first.
    let folder = Folder::in_memory();
    let drive = Drive::new(open(&folder.config("image", MIB)));
    drive.with(move |host, now_ns| {
        for cid in 1..=3 {
            host.submit(cid, write(0, 4096), &one(0, 4096), now_ns);
        }
        host.abort(abort_one(2), now_ns);
        assert_eq!(host.statuses.remove(&2), Some(Status::ABORT_REQUESTED));
    });
    assert_eq!([1, 3].map(|cid| drive.status(cid)), [Status::SUCCESS; 2]);
    drive.stop();
    // These commands wait for a buffer.
    let folder = Folder::on_disk();
    let drive = Drive::new(open(&folder.config("image", MIB)));
    drive.with(move |host, now_ns| {
        for cid in 0..12 {
            host.submit(cid, read(0, 4096), &one(1 + 8192 * usize::from(cid), 4096), now_ns);
        }
        for cid in 8..11 {
            host.abort(abort_one(cid), now_ns);
            assert_eq!(host.statuses.remove(&cid), Some(Status::ABORT_REQUESTED));
        }
    });
    for cid in [0, 1, 2, 3, 4, 5, 6, 7, 11] {
        assert_eq!(drive.status(cid), Status::SUCCESS);
    }
    drive.stop();
}

/// Checks that an fdatasync that hangs delays no reset, because it refers to no memory of the host.
#[test]
fn flushes_end_at_once_and_the_next_ones_wait_for_what_the_kernel_has() {
    let folder = Folder::on_disk();
    for (answer, outcome) in [(0, Status::SUCCESS), (-libc::EIO, Status::WRITE_FAULT)] {
        let drive = Drive::new(open(&folder.config("image", MIB)));
        drive.with(move |host, now_ns| {
            host.answers = vec![answer].into();
            host.submit(1, flush(), &[], now_ns);
            host.submit(2, flush(), &[], now_ns);
            host.submit(3, Request { fua: true, ..read(0, 4096) }, &one(0, 4096), now_ns);
            host.abort(ALL, now_ns);
            for cid in 1..=3 {
                assert_eq!(host.statuses.remove(&cid), Some(Status::ABORT_REQUESTED));
            }
            host.submit(4, flush(), &[], now_ns);
            assert!(host.statuses.is_empty(), "it waits for the one that is under way");
        });
        assert_eq!(drive.status(4), outcome, "of the one before: {answer}");
        drive.stop();
    }
}

/// Checks that a target does not count as idle while the kernel has an operation of it: another takes its place then.
#[test]
fn a_target_is_idle_when_the_kernel_has_nothing_of_it() {
    let folder = Folder::on_disk();
    let drive = Drive::new(open(&folder.config("image", MIB)));
    let is_idle = |drive: &Drive| drive.with(|host, _| host.stack.is_idle(0, &host.slab));
    assert!(is_idle(&drive));
    for request in [write(0, 4096), flush()] {
        let data = if request.length > 0 { one(0, 4096) } else { Vec::new() };
        drive.with(move |host, now_ns| {
            host.submit(1, request, &data, now_ns);
            assert!(!host.stack.is_idle(0, &host.slab));
            // No command waits for a flush that was aborted.
            host.abort(ALL, now_ns);
            assert!(!host.stack.is_idle(0, &host.slab));
        });
        drive.status(1);
        let start = Instant::now();
        while !is_idle(&drive) {
            assert!(start.elapsed() < Duration::from_secs(20), "it is never idle");
            thread::sleep(Duration::from_micros(200));
        }
    }
    drive.stop();
}

/// Checks a drive that is dropped while its file cannot be synced.
#[test]
fn a_drive_goes_while_an_fdatasync_without_a_command_is_under_way() {
    let folder = Folder::on_disk();
    let drive = Drive::new(open(&folder.config("image", MIB)));
    drive.with(move |host, now_ns| {
        host.submit(1, flush(), &[], now_ns);
        host.abort(ALL, now_ns);
    });
    drive.stop();
}
