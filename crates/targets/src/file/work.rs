//! How far each parked command has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel};

use sluice_command::Ticket;
use sluice_nvme::Status;

use super::staging::Buffer;
use super::sync::Doubt;

/// What a command waits for, or does next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Bytes move between the file and the host's memory.
    #[default]
    Direct,
    /// Bytes move by way of a buffer.
    Staged,
    /// Zeros are written from a buffer.
    Zeroes,
    /// The file system zeroes the range, and keeps room for it.
    ZeroRange,
    /// The file system frees the range.
    PunchHole,
    /// An fdatasync, and the command is finished.
    Sync,
    /// An fdatasync, and then the read: what a read with FUA returns is on stable storage.
    SyncThenRead,
}

impl Stage {
    /// Bytes are written, and with FUA flushed.
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Direct | Self::Staged | Self::Zeroes)
    }
}

/// The state of one command, from its park to its end.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) stage: Stage,
    /// The command; `None` in an entry that was never used. Stale after its end.
    pub(super) ticket: Option<Ticket>,
    /// An operation of it is with the kernel.
    pub(super) is_under_way: bool,
    /// Where in the file that operation ends, if it is a write.
    pub(super) writes_to: u64,
    /// The file is to end before.
    pub(super) beyond: Option<Beyond>,
    /// It ends with this when that operation is over.
    pub(super) aborted: Option<Status>,
    /// Bytes done.
    pub(super) done: u64,
    pub(super) buffer: Option<Buffer>,
    /// It failed with FUA, and is made again without: what that will tell.
    pub(super) plain: Option<Doubt>,
    /// Times in a row that the kernel had us ask again.
    pub(super) repeats: u8,
}

/// A write that the kernel has, behind the end that a file is to have. Whoever cuts the file off waits for it: it would make
/// the file longer again, and be read after the drive has grown.
#[derive(Debug)]
pub(super) struct Beyond(Arc<AtomicUsize>);

impl Drop for Beyond {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}

impl Work {
    /// The operation with the kernel is over.
    pub(super) fn returned(&mut self) {
        (self.is_under_way, self.beyond) = (false, None);
    }
}

/// By number of the command's slot.
#[derive(Debug, Default)]
pub(super) struct WorkTable(Vec<Work>);

/// In place of a command's: the ticket of an fdatasync, which outlives the commands that it was begun for. No drive has
/// so many slots.
pub(super) const SYNC_TICKET: Ticket = Ticket(u32::MAX);

/// The bits of a ticket that number the slot.
const SLOT_MASK: u32 = (1 << 20) - 1;

impl WorkTable {
    /// Grows, once, to the most commands that are ever here at a time.
    pub(super) fn of(&mut self, ticket: Ticket) -> &mut Work {
        let number = (ticket.0 & SLOT_MASK) as usize;
        if self.0.len() <= number {
            self.0.resize_with(number + 1, Work::default);
        }
        &mut self.0[number]
    }

    /// The file is to end at `size`: counts the writes behind that which the kernel has.
    pub(super) fn await_beyond(&mut self, size: u64, count: &Arc<AtomicUsize>) {
        let is_beyond = |it: &&mut Work| it.is_under_way && it.writes_to > size && it.beyond.is_none();
        for work in self.0.iter_mut().filter(is_beyond) {
            count.fetch_add(1, AcqRel);
            work.beyond = Some(Beyond(Arc::clone(count)));
        }
    }

    /// The commands that are here, and some that were.
    pub(super) fn tickets(&self) -> impl Iterator<Item = Ticket> {
        self.0.iter().filter_map(|work| work.ticket)
    }
}
