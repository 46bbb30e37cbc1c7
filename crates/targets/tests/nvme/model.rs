//! Random commands of every kind and size against a model of bytes. Several commands are in flight on blocks
//! of their own, and the guest's memory is mapped for the device.

use crate::rig::{BLOCK, LIMIT, Rig, pattern};
use sluice_functions::Random;
use sluice_host::{Controller, Deadline, DmaBuffer, QueueLayout, QueuePair, entry};
use sluice_targets::NvmeConfig;

/// Blocks of each lane; a command stays in its lane, so that those in flight do not meet.
const LANE_BLOCKS: u64 = 3000;
const LANES: usize = 8;
/// Bytes of memory of each lane: the longest transfer, from anywhere in a page on.
const LANE_BYTES: usize = (1 << 20) + 4096;

struct Lane {
    model: Vec<u8>,
    /// A read in flight: where its data will be, and what it must be.
    expected: Option<(usize, Vec<u8>)>,
}

struct Guest {
    queue: QueuePair,
    memory: DmaBuffer,
    lanes: Vec<Lane>,
    /// Lanes of the commands in flight, by command identifier.
    in_flight: Vec<Option<usize>>,
    random: Random,
}

impl Guest {
    fn start(&mut self, number: usize) {
        let Self { queue, memory, lanes, random, .. } = self;
        let lane = &mut lanes[number];
        let most = if random.one_in(4) { 2048 } else { 24 };
        let blocks = random.between(1, most);
        let first = random.below(LANE_BLOCKS - blocks);
        let slba = number as u64 * LANE_BLOCKS + first;
        let (at, length) = (first as usize * BLOCK, blocks as usize * BLOCK);
        let place = number * LANE_BYTES + (random.below(1024) * 4) as usize;
        let range = memory.range(place, length as u32);
        let bytes = &mut lane.model[at..at + length];
        let cid = match random.below(10) {
            0..4 => {
                memory.region().write(place, &vec![0xee; length]);
                lane.expected = Some((place, bytes.to_vec()));
                queue.submit_prp(entry::read(1, slba, blocks as u32), range)
            }
            4..8 => {
                let data = pattern(random.next_u64(), length);
                memory.region().write(place, &data);
                bytes.copy_from_slice(&data);
                let write = entry::write(1, slba, blocks as u32);
                queue.submit_prp(if random.one_in(3) { entry::with_fua(write) } else { write }, range)
            }
            8 => {
                bytes.fill(0);
                queue.submit(entry::write_zeroes(1, slba, blocks as u32, random.one_in(2)))
            }
            _ if random.one_in(2) => queue.submit(entry::flush(1)),
            _ => {
                bytes.fill(0);
                let dsm = (u128::from(blocks) << 32 | u128::from(slba) << 64).to_le_bytes();
                memory.region().write(place, &dsm);
                queue.submit_prp(entry::deallocate(1, 1), memory.range(place, 16))
            }
        };
        self.in_flight[usize::from(cid.expect("room"))] = Some(number);
    }

    /// Returns the lanes whose commands have completed, with their results checked.
    fn reap(&mut self) -> Vec<usize> {
        let Self { queue, memory, lanes, in_flight, .. } = self;
        let mut back = Vec::new();
        queue.reap(|completion| {
            let number = in_flight[usize::from(completion.cid)].take().expect("it was in flight");
            assert!(completion.status().is_success(), "{:?}", completion.status());
            if let Some((place, expected)) = lanes[number].expected.take() {
                let mut found = vec![0; expected.len()];
                memory.region().read(place, &mut found);
                assert!(found == expected, "lane {number}");
            }
            back.push(number);
        });
        queue.ring().expect("rung");
        back
    }
}

/// Runs `commands` random commands. Returns the final data of each lane.
pub(crate) fn run(host: &mut Controller, seed: u64, commands: usize) -> Vec<Vec<u8>> {
    let queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let memory = host.memory().allocate(LANES * LANE_BYTES).expect("memory");
    let lane = || Lane { model: vec![0; LANE_BLOCKS as usize * BLOCK], expected: None };
    let lanes = (0..LANES).map(|_| lane()).collect();
    let mut guest = Guest { queue, memory, lanes, in_flight: vec![None; 128], random: Random::new(seed) };
    (0..LANES).for_each(|number| guest.start(number));
    let deadline = Deadline::after(LIMIT, "a run of random commands");
    let mut done = 0;
    while done < commands {
        for number in guest.reap() {
            done += 1;
            guest.start(number);
        }
        guest.queue.ring().expect("rung");
        deadline.check().expect("in time");
    }
    while guest.queue.in_flight() > 0 {
        guest.reap();
        deadline.check().expect("in time");
    }
    let Guest { queue, lanes, .. } = guest;
    host.delete_queue_pair(queue).expect("deleted, before its memory goes");
    lanes.into_iter().map(|lane| lane.model).collect()
}

#[test]
fn random_commands_do_what_the_model_says() {
    for seed in 1..=4 {
        let rig = Rig::new();
        let before = 100 * seed;
        let blocks = Some(LANES as u64 * LANE_BLOCKS);
        let (drive, control) = rig.drive("disk", &NvmeConfig { first_block: before, blocks, ..rig.config() });
        let lanes = run(&mut drive.guest(), seed, 800);
        let on_disk = rig.bytes();
        let start = before as usize * BLOCK;
        let (outside, inside) = (&on_disk[..start], &on_disk[start..]);
        assert!(outside.iter().all(|byte| *byte == 0));
        for (number, lane) in lanes.iter().enumerate() {
            let there = &inside[number * lane.len()..][..lane.len()];
            assert!(there == lane, "seed {seed}, lane {number}");
        }
        let status = control.status();
        assert!(status.copied * 4 < status.sent, "hardly anything is copied: {status:?}");
    }
}
