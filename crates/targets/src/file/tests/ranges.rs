//! Random changes of ranges, joined and cut into chunks, against a plain array of bytes.

use std::os::unix::fs::FileExt;

use super::model::Random;
use super::*;

const SIZE: u64 = 16 * MIB;
const COMMANDS: u16 = 24;
const SEEDS: u64 = 8;
const OLD: u8 = 0x5a;

/// Returns a change of a range, which often goes on where the one before has ended.
fn change(random: &mut Random, before: u64) -> Request {
    const UNIT: u64 = 4096;
    let offset = if random.one_in(3) { random.below(SIZE / UNIT) * UNIT } else { before % SIZE };
    let longest = if random.one_in(4) { 8 * MIB } else { 512 * KIB };
    let length = UNIT * (1 + random.below(longest.min(SIZE - offset) / UNIT));
    let operation = if random.one_in(4) { Operation::WriteZeroes } else { Operation::Deallocate };
    Request {
        deallocate: random.one_in(2),
        fua: random.one_in(8),
        ..request(operation, offset, length.min(SIZE - offset))
    }
}

/// Checks that a range is changed by the time its command ends, and that nothing else is. A command that was aborted
/// may have changed any part of its range.
#[test]
fn a_range_is_changed_with_its_chunk_and_nothing_else_is() {
    let folder = Folder::on_disk();
    let config = folder.config("image", SIZE);
    let drive = Drive::new(open(&config));
    let file = fs::OpenOptions::new().read(true).write(true).open(&config.path).expect("it is there");
    let mut bytes = vec![OLD; SIZE as usize];
    for seed in 1..=SEEDS {
        bytes.fill(OLD);
        file.write_all_at(&bytes, 0).expect("room");
        let (mut random, mut changes, mut end) = (Random(seed << 32 | seed), Vec::new(), 0);
        for _ in 0..COMMANDS {
            let change = change(&mut random, end);
            end = change.end();
            changes.push((change, random.one_in(8)));
        }
        let submitted = changes.clone();
        drive.with(move |host, now_ns| {
            // All chunks are short, so that many commands are joined.
            host.still_ns = Some(now_ns);
            for (cid, (change, _)) in (0..).zip(&submitted) {
                host.submit(cid, *change, &[], now_ns);
            }
            for (cid, _) in (0..).zip(&submitted).filter(|(_, (_, is_aborted))| *is_aborted) {
                host.abort(chunks::abort_one(cid), now_ns);
            }
        });
        let (mut is_zero, mut is_either) =
            (vec![false; SIZE as usize / 4096], vec![false; SIZE as usize / 4096]);
        for (cid, (change, is_aborted)) in (0..).zip(&changes) {
            let status = drive.status(cid);
            assert!(
                status.is_success() || *is_aborted && status == Status::ABORT_REQUESTED,
                "{change:?}: {status:?}"
            );
            let marks = if status.is_success() { &mut is_zero } else { &mut is_either };
            marks[change.offset as usize / 4096..change.end() as usize / 4096].fill(true);
        }
        file.read_exact_at(&mut bytes, 0).expect("as long as it was");
        for (number, block) in bytes.as_chunks::<4096>().0.iter().enumerate() {
            let is_good = *block == [if is_zero[number] { 0 } else { OLD }; 4096];
            assert!(is_good || is_either[number] && *block == [0; 4096], "block {number}, seed {seed}");
        }
    }
    drive.stop();
}

/// Returns the blocks that are as they were; all others are zero.
fn old_blocks(path: &Path) -> Vec<usize> {
    let bytes = fs::read(path).expect("it is there");
    let blocks = bytes.as_chunks::<4096>().0;
    assert!(blocks.iter().all(|block| [[OLD; 4096], [0; 4096]].contains(block)));
    (0..blocks.len()).filter(|number| blocks[*number] == [OLD; 4096]).collect()
}

/// Checks a command whose rest is joined to the chunk of another.
#[test]
fn the_rest_of_a_range_is_joined_to_a_chunk_that_ends_there() {
    let folder = Folder::on_disk();
    let config = folder.config("image", 16 * MIB);
    fs::write(&config.path, vec![OLD; 16 << 20]).expect("room");
    let drive = Drive::new(open(&config));
    drive.with(|host, now_ns| {
        host.still_ns = Some(now_ns);
        // Its first chunk ends at 4 MiB, and so does the second command.
        host.submit(1, request(Operation::Deallocate, MIB, 6 * MIB), &[], now_ns);
        host.submit(2, request(Operation::Deallocate, 3 * MIB, MIB), &[], now_ns);
    });
    assert_eq!([1, 2].map(|cid| drive.status(cid)), [Status::SUCCESS; 2]);
    assert_eq!(drive.with(|host, _| host.events), 2);
    assert_eq!(old_blocks(&config.path), (0..256).chain(7 * 256..16 * 256).collect::<Vec<_>>());
    drive.stop();
}

/// Checks that zeros that keep their room are not joined to a range that gives its room back, and that commands of
/// different places are not joined.
#[test]
fn only_what_is_alike_and_adjoins_is_joined() {
    use std::os::unix::fs::MetadataExt;
    let folder = Folder::on_disk();
    let config = folder.config("image", 16 * MIB);
    fs::write(&config.path, vec![OLD; 16 << 20]).expect("room");
    let drive = Drive::new(open(&config));
    let blocks = || fs::metadata(&config.path).expect("it is there").blocks() * 512;
    let before = blocks();
    drive.with(|host, now_ns| {
        host.still_ns = Some(now_ns);
        let zeroes = |offset| request(Operation::WriteZeroes, offset, MIB);
        host.submit(1, zeroes(0), &[], now_ns);
        host.submit(2, zeroes(MIB), &[], now_ns);
        host.submit(3, zeroes(2 * MIB), &[], now_ns);
        host.submit(4, request(Operation::Deallocate, 3 * MIB, MIB), &[], now_ns);
        host.submit(5, request(Operation::Deallocate, 5 * MIB, MIB), &[], now_ns);
        host.submit(6, request(Operation::Deallocate, 6 * MIB, 64 * MIB), &[], now_ns);
        host.submit(7, request(Operation::Deallocate, 6 * MIB, 10 * MIB), &[], now_ns);
    });
    assert_eq!(drive.status(6), Status::LBA_OUT_OF_RANGE);
    assert_eq!([1, 2, 3, 4, 5, 7].map(|cid| drive.status(cid)), [Status::SUCCESS; 6]);
    let freed = before - blocks();
    assert!(freed.abs_diff(12 * MIB) < MIB, "{freed} bytes were given back");
    assert_eq!(old_blocks(&config.path), (4 * 256..5 * 256).collect::<Vec<_>>());
    drive.stop();
}

/// Checks that only a read with FUA costs a flush.
#[test]
fn a_plain_access_is_one_call() {
    let folder = Folder::on_disk();
    let drive = Drive::new(open(&folder.config("image", MIB)));
    let calls = |request, data| {
        let before = drive.with(|host, _| host.events);
        assert_eq!(drive.run(request, data), Status::SUCCESS);
        drive.with(|host, _| host.events) - before
    };
    assert_eq!(calls(write(0, 4096), one(0, 4096)), 1);
    assert_eq!(calls(read(0, 4096), one(0, 4096)), 1);
    assert_eq!(calls(Request { fua: true, ..write(0, 4096) }, one(0, 4096)), 1);
    assert_eq!(calls(Request { fua: true, ..read(0, 4096) }, one(0, 4096)), 2);
    assert_eq!(calls(request(Operation::WriteZeroes, 0, 4096), Vec::new()), 1);
    assert_eq!(calls(Request { fua: true, ..request(Operation::WriteZeroes, 0, 4096) }, Vec::new()), 2);
    drive.stop();
}

/// Checks that zeros are written where the file system refuses to zero or to free a range, from then on without another
/// attempt.
#[test]
fn what_the_file_system_refuses_is_done_in_the_next_best_way() {
    let folder = Folder::on_disk();
    let config = folder.config("image", MIB);
    fs::write(&config.path, vec![OLD; 1 << 20]).expect("room");
    let free = |offset| Request { deallocate: true, ..request(Operation::WriteZeroes, offset, 64 * KIB) };
    let zero = |offset| request(Operation::WriteZeroes, offset, 64 * KIB);
    let gone = |offset| request(Operation::Deallocate, offset, 64 * KIB);
    let run = |drive: &Drive, request, answers: &[i32]| {
        let answers: VecDeque<i32> = answers.iter().map(|errno| -errno).collect();
        let before = drive.with(|host, _| {
            host.answers = answers;
            host.events
        });
        assert_eq!(drive.run(request, Vec::new()), Status::SUCCESS);
        drive.with(|host, _| {
            assert!(host.answers.is_empty());
            host.events
        }) - before
    };
    let refused = libc::EOPNOTSUPP;
    // No range can be zeroed, but holes can be punched.
    let drive = Drive::new(open(&config));
    assert_eq!(run(&drive, zero(0), &[refused]), 2);
    assert_eq!(run(&drive, zero(64 * KIB), &[]), 1);
    drive.stop();
    // No holes can be punched any more.
    let drive = Drive::new(open(&config));
    assert_eq!(run(&drive, gone(128 * KIB), &[refused]), 2);
    assert_eq!(run(&drive, gone(192 * KIB), &[]), 1);
    assert_eq!(run(&drive, free(256 * KIB), &[]), 1);
    assert_eq!(run(&drive, zero(320 * KIB), &[refused]), 2);
    assert_eq!(run(&drive, zero(384 * KIB), &[]), 1);
    drive.stop();
    // The range is no multiple of the unit of the device.
    let drive = Drive::new(open(&config));
    for (request, offset) in [(zero(0), 448 * KIB), (free(0), 512 * KIB), (gone(0), 576 * KIB)] {
        assert_eq!(run(&drive, Request { offset, ..request }, &[libc::EINVAL]), 2);
    }
    drive.fill(0, vec![1; 4096]);
    drive.with(|host, _| host.answers = vec![-libc::EINVAL].into());
    assert_eq!(drive.run(write(640 * KIB, 4096), one(0, 4096)), Status::SUCCESS, "through a buffer");
    drive.with(|host, _| host.answers = vec![-libc::EINVAL; 2].into());
    assert_eq!(drive.run(write(640 * KIB, 4096), one(0, 4096)), Status::INTERNAL_ERROR);
    drive.stop();
    let bytes = fs::read(&config.path).expect("it is there");
    assert!(bytes[640 << 10..644 << 10] == [1; 4096]);
    let zeroed = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    // The last results of the kernel were replaced, and its changes are there.
    assert!(zeroed(&bytes[..640 << 10]) && bytes[644 << 10..].iter().all(|byte| *byte == OLD));
}

/// Checks zeros that are written from buffers which had other data before.
#[test]
fn zeros_are_zeros_from_every_buffer() {
    const EACH: u64 = BUFFER_BYTES as u64;
    const COUNT: u16 = staging::BUFFERS as u16;
    let folder = Folder::on_disk();
    let config = folder.config("image", 2 * EACH * u64::from(COUNT));
    let mut prepared = open(&config);
    // Only whole pages are direct. Ranges can neither be zeroed nor freed.
    prepared.direct = prepared.direct.map(|it| Alignment { memory: 4096, ..it });
    (prepared.punches, prepared.control.properties.volatile_cache) = (false, true);
    let is_direct = prepared.is_direct();
    let drive = Drive::new(prepared);
    drive.fill(0, vec![OLD; MEMORY]);
    let all = |each: &dyn Fn(u64) -> Command3| drive.submit((0..u64::from(COUNT)).map(each).collect());
    all(&|number| (number as u16, write(number * EACH, EACH), one(1, BUFFER_BYTES as u32)));
    (0..COUNT).for_each(|cid| assert_eq!(drive.status(cid), Status::SUCCESS));
    assert_eq!(drive.run(write(EACH * u64::from(COUNT), EACH), one(1, BUFFER_BYTES as u32)), Status::SUCCESS);
    drive.with(|host, _| host.answers = vec![-libc::EOPNOTSUPP].into());
    let beyond = u64::from(COUNT) * EACH;
    assert_eq!(drive.run(request(Operation::WriteZeroes, beyond, 512), Vec::new()), Status::SUCCESS);
    all(&|number| (number as u16, request(Operation::WriteZeroes, number * EACH, EACH), Vec::new()));
    (0..COUNT).for_each(|cid| assert_eq!(drive.status(cid), Status::SUCCESS));
    let bytes = fs::read(&config.path).expect("it is there");
    assert!(bytes[..beyond as usize + 512].iter().all(|byte| *byte == 0), "{is_direct}");
    assert!(bytes[beyond as usize + 512..(beyond + EACH) as usize].iter().all(|byte| *byte == OLD));
    drive.stop();
}
