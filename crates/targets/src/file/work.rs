//! Progress of each parked command.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};

use sluice_command::Ticket;
use sluice_nvme::Status;

use super::shared_sync::Doubt;
use super::staging::Buffer;

/// Current or next operation of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Bytes move between the file and the host's memory.
    #[default]
    Direct,
    /// Bytes move by way of a staging buffer.
    Staged,
    /// Zeros are written from a buffer.
    Zeroes,
    /// The file system zeroes the range, and keeps room for it.
    ZeroRange,
    /// The file system frees the range.
    PunchHole,
    /// An fdatasync, and the command is finished.
    Sync,
    /// An fdatasync, and then the read: a read with FUA returns data from stable storage.
    SyncThenRead,
}

impl Stage {
    /// Returns whether the stage writes bytes, which FUA flushes.
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Direct | Self::Staged | Self::Zeroes)
    }
}

/// The state of one command, from its park to its end.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) stage: Stage,
    /// Ticket of the command; `None` in an entry that was never used. Stale after the command's end.
    pub(super) ticket: Option<Ticket>,
    /// Whether an operation of the command is with the kernel.
    pub(super) is_under_way: bool,
    /// End of that operation in the file, if it is a write.
    pub(super) writes_to: u64,
    /// Count of this operation among the writes behind the future end of the file.
    pub(super) beyond: Option<Beyond>,
    /// Status with which the command ends once that operation has returned.
    pub(super) aborted: Option<Status>,
    /// Bytes done.
    pub(super) done: u64,
    pub(super) buffer: Option<Buffer>,
    /// Doubt of a write that failed with FUA and is retried without.
    pub(super) plain: Option<Doubt>,
    /// Retries in a row.
    pub(super) repeats: u8,
}

/// A write with the kernel behind the future end of the file. The file is not cut off before the write has
/// ended. The write would make the file longer again, and be read after the drive has grown.
#[derive(Debug)]
pub(super) struct Beyond(Arc<AtomicUsize>);

impl Drop for Beyond {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}

impl Work {
    /// Notes that the operation with the kernel has ended.
    pub(super) fn returned(&mut self) {
        (self.is_under_way, self.beyond) = (false, None);
    }
}

/// The work of each command, by the number of its slot.
#[derive(Debug, Default)]
pub(super) struct WorkTable(Vec<Work>);

/// Ticket of an fdatasync, which outlives the commands that it was begun for. No drive has so many slots.
pub(super) const SYNC_TICKET: Ticket = Ticket(u32::MAX);

/// Bits of a ticket that number the slot.
const SLOT_MASK: u32 = (1 << 20) - 1;

impl WorkTable {
    /// Returns the work of a command. The table grows, once, to the maximum number of commands in the target.
    pub(super) fn of(&mut self, ticket: Ticket) -> &mut Work {
        let number = (ticket.0 & SLOT_MASK) as usize;
        if self.0.len() <= number {
            self.0.resize_with(number + 1, Work::default);
        }
        &mut self.0[number]
    }

    /// Counts the writes with the kernel behind `size`, the future end of the file.
    pub(super) fn await_beyond(&mut self, size: u64, count: &Arc<AtomicUsize>) {
        let is_beyond = |it: &&mut Work| it.is_under_way && it.writes_to > size && it.beyond.is_none();
        for work in self.0.iter_mut().filter(is_beyond) {
            count.fetch_add(1, AcqRel);
            work.beyond = Some(Beyond(Arc::clone(count)));
        }
    }

    /// Returns the tickets of the commands in the target, and some stale ones.
    pub(super) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.0.iter().filter_map(|work| work.ticket)
    }
}
