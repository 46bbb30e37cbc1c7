//! Journal of changes: a ring of batches behind the log of the members.
//!
//! A batch is written before the cells that it describes, and is durable first. Batches follow each other
//! without a gap, one is in flight at a time, and each has the next sequence number. A batch that would not fit
//! in front of the ring's end goes to its beginning. Batches from the *tail* on are replayed when the array is
//! opened. The tail is in the log of the members. It advances when all cells of the batches before are durable
//! on the members.

pub(crate) mod format;
mod replay;

pub use format::BATCH_MAX;
pub(crate) use format::{ENTRIES_MAX, Entry};
pub(crate) use replay::{Found, Replay};

use crate::{BLOCK, MEMBERS_MAX, Members};
use std::collections::VecDeque;

/// Blocks of the largest batch.
const BATCH_BLOCKS: u64 = (BATCH_MAX / BLOCK) as u64;

/// Minimum and maximum blocks of a ring.
pub(crate) const RING_MIN: u64 = 4 * BATCH_BLOCKS;
pub(crate) const RING_MAX: u64 = 128 * BATCH_BLOCKS;

/// Place of a batch: its sequence number, and its first block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) sequence: u64,
    pub(crate) block: u64,
}

impl Place {
    /// Returns the place after a batch of so many blocks.
    pub(crate) fn after(self, blocks: u64, ring_blocks: u64) -> Self {
        let end = self.block.saturating_add(blocks);
        let fits = end.saturating_add(BATCH_BLOCKS) <= ring_blocks;
        Self { sequence: self.sequence.saturating_add(1), block: if fits { end } else { 0 } }
    }
}

/// Batch whose cells may not be durable on the members.
#[derive(Debug)]
struct Batch {
    at: Place,
    /// Entries whose cells are not written yet.
    left: usize,
}

/// Writing end of the ring.
#[derive(Debug)]
pub(crate) struct Ring {
    blocks: u64,
    /// Place of the next batch.
    head: Place,
    /// Batches from the tail on.
    batches: VecDeque<Batch>,
    /// Place before which everything is durable on the members.
    flushed: Place,
    /// The same, as the log of the members has it.
    tail: Place,
    /// Place that the flush in flight will make the flushed one.
    flushing: Option<Place>,
    /// Whether a batch is in flight, and its blocks.
    in_flight: Option<u64>,
    /// Sequence number behind the last batch with a change that a member missed.
    missed: [u64; MEMBERS_MAX],
}

impl Ring {
    pub(crate) fn new(blocks: u64, head: Place) -> Self {
        let batches = VecDeque::new();
        let (flushed, tail, missed) = (head, head, [0; MEMBERS_MAX]);
        Self { blocks, head, batches, flushed, tail, flushing: None, in_flight: None, missed }
    }

    /// Returns the blocks that are in use, in front of the head.
    fn used(&self) -> u64 {
        match (self.head.sequence == self.tail.sequence, self.head.block > self.tail.block) {
            (true, _) => 0,
            (false, true) => self.head.block - self.tail.block,
            (false, false) => self.blocks - self.tail.block + self.head.block,
        }
    }

    /// Returns whether a batch of any size can be written now.
    pub(crate) fn has_room(&self) -> bool {
        // After a wrap the head is in front of the tail, and must stay there.
        let end = self.head.block + BATCH_BLOCKS;
        let is_clear = self.head.sequence == self.tail.sequence
            || self.head.block > self.tail.block
            || end < self.tail.block;
        self.in_flight.is_none() && is_clear
    }

    /// Returns whether the tail has to advance soon.
    pub(crate) fn is_filling(&self) -> bool {
        self.used() > self.blocks / 2
    }

    /// Returns whether a flush of the members has been done since the tail was stored, and the tail can
    /// advance.
    pub(crate) fn can_trim(&self) -> bool {
        self.flushed != self.tail
    }

    /// Returns whether batches wait for a flush of the members.
    pub(crate) fn is_unflushed(&self) -> bool {
        self.flushed.sequence != self.head.sequence
    }

    /// Notes the members that miss a change in the next batch.
    pub(crate) fn miss(&mut self, members: Members) {
        members.iter().for_each(|member| self.missed[member] = self.head.sequence.saturating_add(1));
    }

    /// Returns the members that miss a change when the batches from the tail on are replayed.
    pub(crate) fn missing(&self) -> Members {
        let members = (0..MEMBERS_MAX).filter(|member| self.missed[*member] > self.tail.sequence);
        members.fold(Members::NONE, |all, member| all.with(Members::one(member)))
    }

    /// Begins a batch of so many entries and blocks. Returns its place.
    pub(crate) fn begin(&mut self, entries: usize, blocks: u64) -> Place {
        self.in_flight = Some(blocks);
        self.batches.push_back(Batch { at: self.head, left: entries });
        self.head
    }

    /// Ends the batch in flight. After a failure, another batch takes its place.
    pub(crate) fn written(&mut self, good: bool) {
        let Some(blocks) = self.in_flight.take() else { return };
        match good {
            true => self.head = self.head.after(blocks, self.blocks),
            false => drop(self.batches.pop_back()),
        }
    }

    /// Notes that the cells of an entry of this batch are written.
    pub(crate) fn done(&mut self, sequence: u64) {
        let first = self.batches.front().map_or(0, |batch| batch.at.sequence);
        let index = usize::try_from(sequence.wrapping_sub(first)).unwrap_or(usize::MAX);
        if let Some(batch) = self.batches.get_mut(index) {
            batch.left = batch.left.saturating_sub(1);
        }
    }

    /// Begins a flush of the members.
    pub(crate) fn begin_flush(&mut self) {
        let open = self.batches.iter().find(|batch| batch.left > 0);
        self.flushing = Some(open.map_or(self.head, |batch| batch.at));
    }

    /// Ends a flush of the members.
    pub(crate) fn end_flush(&mut self, good: bool) {
        if let Some(place) = self.flushing.take().filter(|_| good) {
            self.flushed = place;
            while self.batches.front().is_some_and(|batch| batch.at.sequence < place.sequence) {
                self.batches.pop_front();
            }
        }
    }

    /// Returns the tail that may be stored now.
    pub(crate) fn flushed(&self) -> Place {
        self.flushed
    }

    /// Notes the tail that the log of the members has now.
    pub(crate) fn trimmed(&mut self, tail: Place) {
        self.tail = tail;
    }
}
