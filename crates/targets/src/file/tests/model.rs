//! Random commands against a plain array of bytes.

use super::*;

/// Commands of a batch, each on its own part of the drive and of the memory.
const LANES: u64 = 16;
const LANE_BYTES: u64 = 256 * KIB;
const SIZE: u64 = LANES * LANE_BYTES;
const BATCHES: usize = 60;

/// A small generator whose numbers depend on the seed alone.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Command of one lane.
struct Step {
    request: Request,
    data: Vec<DataPart>,
}

fn step(random: &mut Random, lane: u64) -> Step {
    let first = random.below(LANE_BYTES / 512);
    let longest = if random.one_in(4) { 512 } else { 16 };
    let blocks = 1 + random.below((LANE_BYTES / 512 - first).min(longest));
    let operation = match random.below(10) {
        0..4 => Operation::Write,
        4..8 => Operation::Read,
        8 => Operation::WriteZeroes,
        _ => Operation::Deallocate,
    };
    let request = Request {
        operation,
        fua: random.one_in(8),
        deallocate: random.one_in(2),
        offset: lane * LANE_BYTES + first * 512,
        length: blocks * 512,
    };
    let moves_data = matches!(operation, Operation::Read | Operation::Write);
    let data = if moves_data { parts(random, lane, &request) } else { Vec::new() };
    Step { request, data }
}

/// Cuts a command's data into segments, often where direct I/O cannot.
fn parts(random: &mut Random, lane: u64, request: &Request) -> Vec<DataPart> {
    let odd = random.one_in(2);
    let (mut left, mut parts) = (request.length, Vec::new());
    let mut at = (lane * 2 * LANE_BYTES) as usize + if odd { 1 + random.below(100) as usize } else { 0 };
    while left > 0 {
        let unit = if odd { 1 } else { 512 };
        let length = (unit * (1 + random.below(20_000 / unit))).min(left) as u32;
        // A gap keeps the parts apart.
        if request.operation == Operation::Read && random.one_in(10) {
            parts.push(DataPart::Bucket(length));
        } else {
            parts.push(DataPart::Memory(at, length));
        }
        at += length as usize + if odd { 3 } else { 512 };
        left -= u64::from(length);
        if parts.len() == 40 && left > 0 {
            parts.push(DataPart::Memory(at, left as u32));
            break;
        }
    }
    parts
}

fn apply(model: &mut [u8], drive: &Drive, step: &Step) {
    let mut at = step.request.offset as usize;
    let end = step.request.end() as usize;
    match step.request.operation {
        Operation::Write => {
            for part in &step.data {
                let DataPart::Memory(offset, length) = *part else { continue };
                model[at..at + length as usize].copy_from_slice(&drive.bytes(offset, length as usize));
                at += length as usize;
            }
        }
        Operation::WriteZeroes | Operation::Deallocate => model[at..end].fill(0),
        Operation::Read | Operation::Flush => {}
    }
}

fn check(model: &[u8], drive: &Drive, step: &Step) {
    let mut at = step.request.offset as usize;
    for part in &step.data {
        match *part {
            DataPart::Bucket(length) => at += length as usize,
            DataPart::Memory(offset, length) => {
                let read = drive.bytes(offset, length as usize);
                assert!(read == model[at..at + length as usize], "{:?} read something else", step.request);
                at += length as usize;
            }
        }
    }
}

fn compare(prepared: PreparedFile, random_seed: u64) {
    let drive = Drive::new(prepared);
    assert_eq!(drive.with(|host, _| host.stack.characteristics().size), SIZE);
    let mut model = vec![0; SIZE as usize];
    let mut random = Random(random_seed);
    for batch in 0..BATCHES {
        let noise: Vec<u8> = (0..MEMORY).map(|n| (n * 31 + batch * 7 + (n >> 9)) as u8).collect();
        drive.fill(0, noise);
        let steps: Vec<Step> = (0..LANES).map(|lane| step(&mut random, lane)).collect();
        steps.iter().for_each(|step| apply(&mut model, &drive, step));
        let commands = (0..).zip(&steps).map(|(cid, step)| (cid, step.request, step.data.clone()));
        drive.submit(commands.collect());
        for (cid, step) in (0..).zip(&steps) {
            assert_eq!(drive.status(cid), Status::SUCCESS, "{:?} with {:?}", step.request, step.data);
            if step.request.operation == Operation::Read {
                check(&model, &drive, step);
            }
        }
        if random.one_in(10) {
            assert_eq!(drive.flush(), Status::SUCCESS);
        }
    }
    drive.stop();
}

#[test]
fn on_a_disk() {
    let folder = Folder::on_disk();
    compare(open(&folder.config("image", SIZE)), 1);
}

#[test]
fn through_the_page_cache() {
    let folder = Folder::in_memory();
    let prepared = open(&folder.config("image", SIZE));
    assert!(!prepared.is_direct(), "a file system in memory has no direct I/O");
    compare(prepared, 2);
}

#[test]
fn with_zeros_that_have_to_be_written() {
    let folder = Folder::in_memory();
    let mut prepared = open(&folder.config("image", SIZE));
    // A file in memory supports no zero ranges. Without holes, too, Deallocate does nothing, which the model
    // does not cover.
    prepared.punches = false;
    let drive = Drive::new(prepared);
    drive.fill(0, vec![9; 300 * 1024]);
    assert_eq!(drive.run(write(0, 300 * KIB), one(0, 300 << 10)), Status::SUCCESS);
    assert_eq!(drive.run(request(Operation::Deallocate, 0, 4096), Vec::new()), Status::SUCCESS);
    assert_eq!(drive.with(|host, _| host.stack.characteristics().deallocated), Deallocated::Unsupported);
    let zeroes = Request { fua: true, ..request(Operation::WriteZeroes, 4096, 200 * KIB) };
    assert_eq!(drive.run(zeroes, Vec::new()), Status::SUCCESS);
    assert_eq!(drive.run(read(0, 300 * KIB), one(MIB as usize, 300 << 10)), Status::SUCCESS);
    let bytes = drive.bytes(MIB as usize, 300 << 10);
    let (zeroed, kept) = (4096..(204 << 10), (204 << 10)..(300 << 10));
    assert!(bytes[..4096].iter().all(|&byte| byte == 9), "deallocate does nothing here");
    assert!(bytes[zeroed].iter().all(|&byte| byte == 0));
    assert!(bytes[kept].iter().all(|&byte| byte == 9));
    drive.stop();
}

#[test]
fn more_commands_than_buffers() {
    let folder = Folder::on_disk();
    let mut config = folder.config("image", SIZE);
    config.block_size = 4096;
    let mut prepared = open(&config);
    // This is the strictest alignment of a kernel: only whole pages are direct.
    prepared.direct = prepared.direct.map(|_| Alignment { memory: 4096, unit: 4096 });
    let drive = Drive::new(prepared);
    drive.fill(0, (0..MEMORY).map(|n| (n % 251) as u8).collect());
    let each = 100 << 10;
    let at = |n: u64| (n * 128 * KIB) as usize + 1;
    let writes = (0..32).map(|n| (n as u16, write(n * 128 * KIB, each), one(at(n), each as u32)));
    drive.submit(writes.collect());
    for cid in 0..32 {
        assert_eq!(drive.status(cid), Status::SUCCESS);
    }
    let expected: Vec<Vec<u8>> = (0..32).map(|n| drive.bytes(at(n), each as usize)).collect();
    drive.fill(0, vec![0; MEMORY]);
    let reads = (0..32).map(|n| (n as u16, read(n * 128 * KIB, each), one(at(n) + 7, each as u32)));
    drive.submit(reads.collect());
    for (cid, expected) in (0..).zip(expected) {
        assert_eq!(drive.status(cid), Status::SUCCESS);
        assert!(drive.bytes(at(u64::from(cid)) + 7, each as usize) == expected);
    }
    drive.stop();
}
