//! The slowest command of late, which the reactor writes and the control side takes.

use sluice_nvme::SubmissionEntry;
use sluice_nvme::opcode::io as opcode;
use std::fmt::{self, Display, Formatter};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

const WORDS: usize = 4;

/// A slow I/O command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowCommand {
    /// Time from its fetch until its completion entry was written.
    pub ns: u64,
    pub opcode: u8,
    pub nsid: u32,
    /// First block, and number of blocks; of commands with blocks.
    pub slba: u64,
    pub blocks: u32,
    /// Submission queue and command identifier.
    pub sq: u16,
    pub cid: u16,
}

impl SlowCommand {
    /// Returns the command of an entry, without its time.
    pub(crate) fn of(sq: u16, cid: u16, entry: &SubmissionEntry) -> Self {
        let blocks = (entry.cdw12 & 0xffff) + 1;
        Self { ns: 0, opcode: entry.opcode, nsid: entry.nsid, slba: entry.slba(), blocks, sq, cid }
    }

    fn to_words(self) -> [u64; WORDS] {
        let Self { ns, opcode, nsid, slba, blocks, sq, cid } = self;
        let numbers = u64::from(sq) << 48 | u64::from(cid) << 32 | u64::from(blocks);
        [ns, slba, numbers, u64::from(nsid) << 8 | u64::from(opcode)]
    }

    fn of_words([ns, slba, numbers, last]: [u64; WORDS]) -> Self {
        let (sq, cid, blocks) = ((numbers >> 48) as u16, (numbers >> 32) as u16, numbers as u32);
        Self { ns, opcode: last as u8, nsid: (last >> 8) as u32, slba, blocks, sq, cid }
    }
}

/// Writes the command in words.
impl Display for SlowCommand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { ns, opcode, nsid, slba, blocks, sq, cid } = self;
        match *opcode {
            opcode::READ => write!(f, "a Read of {blocks} blocks at LBA {slba}")?,
            opcode::WRITE => write!(f, "a Write of {blocks} blocks at LBA {slba}")?,
            opcode::COMPARE => write!(f, "a Compare of {blocks} blocks at LBA {slba}")?,
            opcode::WRITE_ZEROES => write!(f, "a Write Zeroes of {blocks} blocks at LBA {slba}")?,
            opcode::FLUSH => write!(f, "a Flush")?,
            opcode::DATASET_MANAGEMENT => write!(f, "a Dataset Management")?,
            other => write!(f, "a command with the opcode {other:#04x}")?,
        }
        write!(f, " of namespace {nsid} took {} ms (queue {sq}, CID {cid})", ns / 1_000_000)
    }
}

/// The slowest command since the last one was taken. One thread writes, and one takes; neither waits for the other.
#[derive(Debug, Default)]
pub(crate) struct Slowest {
    /// Odd while the command is written.
    version: AtomicU64,
    /// Version that was taken.
    taken: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Slowest {
    /// Notes a command, unless a slower one is there that was not taken.
    pub(crate) fn note(&self, command: SlowCommand) {
        let version = self.version.load(Relaxed);
        if version != self.taken.load(Relaxed) && self.words[0].load(Relaxed) >= command.ns {
            return;
        }
        self.version.store(version + 1, Relaxed);
        fence(Release);
        self.words.iter().zip(command.to_words()).for_each(|(word, value)| word.store(value, Relaxed));
        self.version.store(version + 2, Release);
    }

    /// Takes the command, if there is one that is not being written.
    pub(crate) fn take(&self) -> Option<SlowCommand> {
        let version = self.version.load(Acquire);
        if version % 2 == 1 || version == self.taken.load(Relaxed) {
            return None;
        }
        let words = std::array::from_fn(|index| self.words[index].load(Relaxed));
        fence(Acquire);
        if self.version.load(Relaxed) != version {
            return None;
        }
        self.taken.store(version, Relaxed);
        Some(SlowCommand::of_words(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ns: u64) -> SlowCommand {
        SlowCommand { ns, opcode: 2, nsid: 128, slba: u64::MAX - 7, blocks: 65_536, sq: 128, cid: 65_535 }
    }

    #[test]
    fn a_command_is_described() {
        let read = SlowCommand {
            ns: 1_500_000_000,
            opcode: opcode::READ,
            nsid: 2,
            slba: 64,
            blocks: 8,
            sq: 3,
            cid: 7,
        };
        let words = "a Read of 8 blocks at LBA 64 of namespace 2 took 1500 ms (queue 3, CID 7)";
        assert_eq!(read.to_string(), words);
        let flush = SlowCommand { opcode: opcode::FLUSH, ..read };
        assert_eq!(flush.to_string(), "a Flush of namespace 2 took 1500 ms (queue 3, CID 7)");
    }

    #[test]
    fn the_slowest_command_is_taken_once() {
        let slowest = Slowest::default();
        assert_eq!(slowest.take(), None);
        [5, 9, 7].into_iter().for_each(|ns| slowest.note(of(ns)));
        assert_eq!((slowest.take(), slowest.take()), (Some(of(9)), None));
        slowest.note(of(3));
        assert_eq!(slowest.take(), Some(of(3)), "a later one need not be slower");
    }

    #[test]
    fn a_command_is_never_torn() {
        let slowest = Slowest::default();
        let command = |ns: u64| SlowCommand {
            ns,
            slba: ns,
            blocks: ns as u32,
            nsid: ns as u32,
            ..SlowCommand::default()
        };
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (1..200_000).for_each(|ns| slowest.note(command(ns))));
            while !writer.is_finished() {
                if let Some(found) = slowest.take() {
                    assert_eq!(found, command(found.ns));
                }
            }
        });
    }
}
