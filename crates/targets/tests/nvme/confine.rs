//! A hostile guest, a hostile classifier and a hostile layer together, on one partition of a device, while
//! another drive uses another partition of it.

use crate::rig::{BLOCK, Drive, LIMIT, Rig, open};
use sluice_command::{Characteristics, Command, Frame, Lane, Layer, Operation, StackBuilder};
use sluice_functions::Random;
use sluice_host::{Controller, Deadline, DmaBuffer, Error, QueueLayout, entry};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_router::{Context, RouterBuilder, Unconfined, Verdict, Winner};
use sluice_targets::{NvmeConfig, PreparedNvme};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks of the device: those of the neighbour, of the hostile drive, and of no drive.
const NEIGHBOUR: std::ops::Range<usize> = 0..8000;
const HOSTILE: std::ops::Range<usize> = 8000..12_000;
const NOBODY: std::ops::Range<usize> = 12_000..32_768;

/// Beginning of every eight bytes of the neighbour's and unused blocks, which no accidental write has.
const SECRET: u32 = 0x5ec2_e757;
const POISON: u32 = 0x0bad_0bad;

fn marked(mark: u32, seed: u32, length: usize) -> Vec<u8> {
    let word = |n: u32| u64::from(mark) | u64::from(n.wrapping_mul(0x9e37_79b9) ^ seed) << 32;
    (0..length as u32 / 8).flat_map(|n| word(n).to_le_bytes()).collect()
}

fn holds(bytes: &[u8], mark: u32) -> bool {
    let mark = mark.to_le_bytes();
    bytes.windows(4).any(|window| window == mark)
}

/// A layer that sends random requests in place of the right ones.
struct Liar(Random);

impl Layer for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        // Twice as large as what it stands on.
        Characteristics { size: below[0].size * 2, ..below[0].over() }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let random = &mut self.0;
        let request = &mut lane.slot_mut(&command).request;
        match random.below(8) {
            0 => request.offset = random.next_u64(),
            1 => request.offset = (random.below(9000) * 512).wrapping_sub(512 * 4500),
            2 => request.length = random.next_u64() >> random.below(64),
            3 => request.operation = Operation::WriteZeroes,
            4 => request.operation = Operation::Deallocate,
            5 => request.offset |= random.below(4096),
            _ => {}
        }
        lane.forward_with(0, command, 0, [0; 2]);
    }

    fn resume(&mut self, command: Command, _: Frame, lane: &mut Lane<'_>) {
        let status = lane.slot(&command).status;
        lane.finish(command, status);
    }
}

/// Creates a program that writes anywhere in its context, and returns mostly valid verdicts.
fn classifier(mut random: Random) -> impl FnMut(&mut [u8; Context::SIZE]) -> Result<u64, ()> + Send {
    move |context| {
        let scribbles = if random.one_in(2) { random.below(4) } else { 0 };
        for _ in 0..scribbles {
            let at = Context::WRITABLE.start + random.below(Context::WRITABLE.len() as u64) as usize;
            context[at] = random.next_u64() as u8;
        }
        // Down one of the paths or two of them, and finished when all are done.
        let all = Verdict::all(Winner::FirstError).0;
        match random.below(16) {
            0 => Err(()),
            1 => Ok(random.next_u64()),
            2 => Ok(all | 1 << 15 | random.below(8) << 8 | random.between(1, 6)),
            _ => Ok(all | random.between(1, 6)),
        }
    }
}

fn serve_hostile(rig: &Rig, seed: u64) -> Drive {
    let config =
        NvmeConfig { first_block: HOSTILE.start as u64, blocks: Some(HOSTILE.len() as u64), ..rig.config() };
    let device = PreparedNvme::open(&config).expect("a free range");
    Drive::serve_router(&rig.above, rig.scratch.path().join("hostile"), 512, move |task, io| {
        let mut random = Random::new(seed);
        let mut stack = StackBuilder::new();
        let target =
            stack.add(Box::new(device.build(task, io, 0).expect("room for a file")), &[]).expect("one layer");
        let liar = stack.add(Box::new(Liar(random.split())), &[target]).expect("two layers");
        let router =
            RouterBuilder::new(stack.build()).path(target).expect("a path").path(liar).expect("a path");
        let router = router.legs(2).expect("legs").errors_max(u64::MAX);
        router.classifier(Box::new(Unconfined::new(classifier(random.split())))).build()
    })
}

/// Builds any command, with any data pointer: into its memory, behind it, and into memory of others.
fn attack(random: &mut Random, memory: &DmaBuffer) -> SubmissionEntry {
    let address = |random: &mut Random| match random.below(6) {
        // Where the device sees the memory of other drives.
        0 => (1 << 40) * random.between(1, 4) + (random.below(1 << 14) << 12),
        1 => (1 << 40) * random.between(1, 4) + (1 << 36) + (random.below(1 << 10) << 12),
        2 => random.next_u64(),
        _ => memory.iova() + random.below(memory.len() as u64),
    };
    let most = if random.one_in(4) { 2048 } else { 64 };
    let blocks = random.below(most) as u32 + 1;
    let slba = match random.below(4) {
        0 => random.next_u64(),
        1 => (HOSTILE.len() as u64).wrapping_sub(random.below(100)),
        _ => random.below(2 * HOSTILE.len() as u64),
    };
    let mut entry = match random.below(6) {
        0 | 1 => entry::read(1, slba, blocks),
        2 | 3 => entry::write(1, slba, blocks),
        4 => entry::write_zeroes(1, slba, blocks, random.below(2) == 0),
        _ => SubmissionEntry { opcode: random.next_u64() as u8, ..entry::write(1, slba, blocks) },
    };
    // A page, or a list; an SGL now and then.
    entry.dptr = [address(random) & !3, address(random) & !0xfff];
    if random.below(8) == 0 {
        entry.flags = 1 << 6;
        entry.dptr[1] = u64::from(blocks) * 512;
    }
    if random.below(8) == 0 {
        entry.nsid = random.below(4) as u32;
    }
    entry
}

/// Fills its memory with lists of addresses that are not its own, between its own bytes.
fn poison(random: &mut Random, memory: &DmaBuffer) {
    memory.region().write(0, &marked(POISON, random.next_u64() as u32, memory.len()));
    for page in (0..memory.len()).step_by(4096).skip(1).step_by(3) {
        for at in (0..4096).step_by(8) {
            let target = match random.below(3) {
                0 => memory.iova() + (random.below(memory.len() as u64) & !0xfff),
                _ => (1 << 40) * random.between(1, 4) + (random.below(1 << 26) << 12),
            };
            memory.region().write(page + at, &target.to_le_bytes());
        }
    }
}

/// Runs the hostile guest for `commands` commands. Returns its memory at the end, and how many were executed.
fn rage(mut guest: Controller, seed: u64, commands: u64) -> (Vec<u8>, u64) {
    let mut random = Random::new(seed);
    let memory = guest.memory().allocate(1 << 20).expect("memory");
    let mut queue = guest.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let deadline = Deadline::after(LIMIT, "the end of an attack");
    let (mut completed, mut good) = (0, 0);
    let note = |good: &mut u64, status: Status| *good += u64::from(status.is_success());
    poison(&mut random, &memory);
    while completed < commands {
        if queue.in_flight() < 64 {
            queue.submit(attack(&mut random, &memory)).expect("room");
        }
        if random.below(64) == 0 {
            poison(&mut random, &memory);
        }
        queue.ring().expect("rung");
        completed += queue.reap(|completion| note(&mut good, completion.status())) as u64;
        deadline.check().expect("in time");
    }
    while queue.in_flight() > 0 {
        queue.reap(|completion| note(&mut good, completion.status()));
        queue.ring().expect("rung");
        deadline.check().expect("in time");
    }
    let mut bytes = vec![0; memory.len()];
    memory.region().read(0, &mut bytes);
    (bytes, good)
}

/// Runs the neighbour, which reads back its writes until `stop` is set.
fn work(mut guest: Controller, stop: &AtomicBool) -> Result<Vec<u8>, Error> {
    // Memory that no command of its own ever names.
    let guarded = guest.memory().allocate(1 << 20)?;
    let guard = marked(SECRET, 77, guarded.len());
    guarded.region().write(0, &guard);
    let mut blocks = open(&mut guest);
    let mut model = marked(SECRET, 1, NEIGHBOUR.len() * BLOCK);
    blocks.write(0, &model)?;
    let mut random = Random::new(3);
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) || round < 50 {
        round += 1;
        let first = random.below(NEIGHBOUR.len() as u64 - 64) as usize;
        let data = marked(SECRET, round, 64 * BLOCK);
        blocks.write(first as u64, &data)?;
        model[first * BLOCK..][..data.len()].copy_from_slice(&data);
        let mut back = vec![0; 64 * BLOCK];
        let first = random.below(NEIGHBOUR.len() as u64 - 64) as usize;
        blocks.read(first as u64, &mut back)?;
        assert!(back == model[first * BLOCK..][..back.len()], "round {round}");
    }
    let mut bytes = vec![0; guarded.len()];
    guarded.region().read(0, &mut bytes);
    assert!(bytes == guard, "memory of the neighbour's guest was written to");
    Ok(model)
}

#[test]
fn no_block_and_no_byte_of_others_can_be_reached() {
    for seed in 1..=2 {
        let rig = Rig::new();
        let config = NvmeConfig { blocks: Some(NEIGHBOUR.len() as u64), ..rig.config() };
        let (neighbour, _) = rig.drive("neighbour", &config);
        let hostile = serve_hostile(&rig, seed);
        let stop = Arc::new(AtomicBool::new(false));
        let (guest, stopping) = (neighbour.guest(), Arc::clone(&stop));
        let worker = std::thread::spawn(move || work(guest, &stopping));
        let (stolen, good) = rage(hostile.guest(), seed, 800);
        stop.store(true, Ordering::Relaxed);
        let model = worker.join().expect("the neighbour read what it wrote").expect("and was served");
        let bytes = rig.bytes();
        let of = |range: std::ops::Range<usize>| &bytes[range.start * BLOCK..range.end * BLOCK];
        assert!(of(NEIGHBOUR) == model, "seed {seed}: the neighbour's blocks");
        assert!(of(NOBODY).iter().all(|byte| *byte == 0), "seed {seed}: nobody's blocks");
        assert!(!holds(of(HOSTILE), SECRET), "seed {seed}: a secret is on the hostile drive");
        assert!(!holds(&stolen, SECRET), "seed {seed}: a secret is in the hostile guest");
        assert!(good > 5, "seed {seed}: the attack got nowhere: {good} commands were carried out");
    }
}
