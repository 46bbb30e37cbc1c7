//! The commands that a queue pair sends.

use super::cell::{Mix, Pattern, Shape};
use sluice_host::entry;
use sluice_nvme::SubmissionEntry;

/// Properties of a namespace that a load needs.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    pub nsid: u32,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Logical blocks.
    pub blocks: u64,
}

/// An endless sequence of commands, the same for the same seed.
#[derive(Debug)]
pub struct Workload {
    nsid: u32,
    /// Logical blocks of one command.
    length: u32,
    /// Commands that fit the namespace side by side.
    places: u64,
    pattern: Pattern,
    mix: Mix,
    next: u64,
    random: u64,
}

impl Workload {
    /// Returns `None` if not even one command fits the namespace, or if its blocks are longer than a command.
    /// Sequential commands begin at a share of the namespace that the seed chooses.
    pub fn new(shape: &Shape, geometry: Geometry, seed: u64) -> Option<Self> {
        if shape.block_size.0 < geometry.block_size {
            return None;
        }
        let length = shape.block_size.0 / geometry.block_size;
        let places = geometry.blocks / u64::from(length);
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).max(1);
        let next = scale(step(&mut random), places);
        (places > 0).then_some(Self {
            nsid: geometry.nsid,
            length,
            places,
            pattern: shape.pattern,
            mix: shape.mix,
            next,
            random,
        })
    }

    /// Returns the next command, without a data pointer.
    #[inline]
    pub fn next_entry(&mut self) -> SubmissionEntry {
        let place = match self.pattern {
            Pattern::Random => scale(step(&mut self.random), self.places),
            Pattern::Sequential => {
                let place = self.next;
                self.next = if place + 1 == self.places { 0 } else { place + 1 };
                place
            }
        };
        let slba = place * u64::from(self.length);
        match self.reads() {
            true => entry::read(self.nsid, slba, self.length),
            false => entry::write(self.nsid, slba, self.length),
        }
    }

    #[inline]
    fn reads(&mut self) -> bool {
        match self.mix {
            Mix::READ => true,
            Mix::WRITE => false,
            Mix(share) => scale(step(&mut self.random), 100) < u64::from(share),
        }
    }
}

/// Advances xorshift64 and returns a number: good enough to spread addresses, in a few instructions.
#[inline]
fn step(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// Scales a number of 64 bits to the range from 0 to `count`, not included.
#[inline]
fn scale(random: u64, count: u64) -> u64 {
    ((u128::from(random) * u128::from(count)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::super::cell::{BlockSize, Drives, QueueDepth, Queues};
    use super::*;
    use sluice_nvme::opcode::io;

    fn workload(pattern: Pattern, mix: Mix, blocks: u64) -> Option<Workload> {
        let shape = Shape {
            block_size: BlockSize(4096),
            queue_depth: QueueDepth(1),
            queues: Queues(1),
            pattern,
            mix,
            drives: Drives(1),
        };
        Workload::new(&shape, Geometry { nsid: 1, block_size: 512, blocks }, 7)
    }

    #[test]
    fn sequential_commands_follow_each_other_around_the_namespace() {
        let mut workload = workload(Pattern::Sequential, Mix::WRITE, 8 * 10 + 7).expect("there is room");
        let first = workload.next_entry().slba();
        for n in 1..25 {
            let entry = workload.next_entry();
            assert_eq!((entry.slba(), entry.blocks()), ((first + n * 8) % 80, 8));
            assert_eq!(entry.opcode, io::WRITE);
        }
    }

    #[test]
    fn random_commands_reach_everything_and_stay_inside() {
        let mut workload = workload(Pattern::Random, Mix(30), 8 * 16).expect("there is room");
        let (mut places, mut reads) = ([0; 16], 0);
        for _ in 0..16_000 {
            let entry = workload.next_entry();
            places[entry.slba() as usize / 8] += 1;
            reads += u32::from(entry.opcode == io::READ);
        }
        assert!(places.iter().all(|count| (800..1200).contains(count)), "{places:?}");
        assert!((4500..5100).contains(&reads), "{reads} of 16,000 are reads");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(workload(Pattern::Random, Mix::READ, 7).is_none());
        assert!(workload(Pattern::Random, Mix::READ, 8).is_some());
    }
}
