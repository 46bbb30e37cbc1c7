//! The two rings of a queue pair.

use crate::doorbell::{Doorbell, Doorbells};
use crate::{DmaBuffer, Error};
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Memory of a ring.
#[derive(Clone, Debug)]
pub(crate) struct RingMemory {
    pub(crate) buffer: Arc<DmaBuffer>,
    /// Bytes from the beginning of the buffer.
    pub(crate) offset: usize,
    /// Number of entries.
    pub(crate) entries: u32,
}

impl RingMemory {
    pub(crate) fn iova(&self) -> u64 {
        self.buffer.iova() + self.offset as u64
    }

    /// Returns the index after `index`.
    #[inline]
    fn after(&self, index: u32) -> u32 {
        if index + 1 == self.entries { 0 } else { index + 1 }
    }
}

/// Number of slots ahead of the tail that are prefetched. One slot does nearly as well at a queue depth of
/// one, more slots at a depth of 128.
const PUSH_AHEAD: usize = 2;

/// The host's side of a submission queue.
#[derive(Debug)]
pub struct SubmissionRing {
    memory: RingMemory,
    tail: u32,
    doorbell: Doorbell,
}

impl SubmissionRing {
    pub(crate) fn new(memory: RingMemory, queue: u16, doorbells: &Doorbells) -> Self {
        let doorbell = doorbells.tail(queue);
        doorbell.clear_shadow();
        Self { memory, tail: 0, doorbell }
    }

    /// Writes an entry at the tail. The caller ensures that there is room, and rings later.
    #[inline(always)]
    pub fn push(&mut self, entry: &SubmissionEntry) {
        let offset = self.memory.offset + self.tail as usize * SubmissionEntry::SIZE;
        let slot = self.memory.buffer.region().words::<8>(offset);
        for (word, value) in slot.iter().zip(entry.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.tail = self.memory.after(self.tail);
        self.prefetch_slot();
    }

    /// Prefetches a slot that is written soon. The device read it a round ago. Its core still has the line,
    /// or has it again, since it reads ahead of the tail.
    #[inline]
    fn prefetch_slot(&self) {
        let soon = self.tail as usize + PUSH_AHEAD;
        let soon = if soon < self.memory.entries as usize { soon } else { 0 };
        let offset = self.memory.offset + soon * SubmissionEntry::SIZE;
        self.memory.buffer.region().prefetch_to_write(offset);
    }

    /// Writes the doorbell for all entries pushed so far.
    #[inline]
    pub fn ring(&mut self) -> Result<(), Error> {
        self.doorbell.ring(self.tail)
    }

    /// Writes anything to the doorbell, for tests of the device. The state of the ring does not change.
    pub fn force_doorbell(&mut self, value: u32) -> Result<(), Error> {
        self.doorbell.force(value)
    }

    /// Returns the index of the next entry.
    pub fn tail(&self) -> u32 {
        self.tail
    }

    pub fn entries(&self) -> u32 {
        self.memory.entries
    }

    /// Returns the device address of the ring.
    pub fn iova(&self) -> u64 {
        self.memory.iova()
    }
}

/// The host's side of a completion queue.
#[derive(Debug)]
pub struct CompletionRing {
    memory: RingMemory,
    head: u32,
    /// Phase tag of the next new entry: one in the first round.
    phase: u64,
    doorbell: Doorbell,
}

/// Completions in a cache line.
const PER_LINE: u32 = (64 / CompletionEntry::SIZE) as u32;

/// The phase tag in the second half of a completion entry.
const PHASE_SHIFT: u32 = 48;

impl CompletionRing {
    pub(crate) fn new(memory: RingMemory, queue: u16, doorbells: &Doorbells) -> Self {
        let doorbell = doorbells.head(queue);
        doorbell.clear_shadow();
        Self { memory, head: 0, phase: 1, doorbell }
    }

    /// Takes the entry at the head, if it is new.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<CompletionEntry> {
        let region = self.memory.buffer.region();
        let offset = self.memory.offset + self.head as usize * CompletionEntry::SIZE;
        // The device writes the half with the phase tag last. Acquire pairs with that, for the other
        // half and for the data that the command has moved.
        let entry = region.words::<2>(offset);
        let high = entry[1].load(Ordering::Acquire);
        if high >> PHASE_SHIFT & 1 != self.phase {
            return None;
        }
        let low = entry[0].load(Ordering::Relaxed);
        self.head = self.memory.after(self.head);
        self.phase ^= u64::from(self.head == 0);
        if self.head.is_multiple_of(PER_LINE) {
            // A line ahead: where there are many completions, their misses overlap.
            region.prefetch(self.memory.offset + (self.head + PER_LINE) as usize * CompletionEntry::SIZE);
        }
        Some(zerocopy::transmute!([low, high]))
    }

    /// Returns whether there is an entry to [`pop`](Self::pop).
    pub fn is_ready(&self) -> bool {
        let offset = self.memory.offset + self.head as usize * CompletionEntry::SIZE;
        let high = self.memory.buffer.region().words::<2>(offset)[1].load(Ordering::Acquire);
        high >> PHASE_SHIFT & 1 == self.phase
    }

    /// Writes the doorbell, so that the device may reuse the popped entries.
    #[inline]
    pub fn ring(&mut self) -> Result<(), Error> {
        self.doorbell.ring(self.head)
    }

    /// Writes anything to the doorbell, for tests of the device. The state of the ring does not change.
    pub fn force_doorbell(&mut self, value: u32) -> Result<(), Error> {
        self.doorbell.force(value)
    }

    /// Returns the index of the next entry.
    pub fn head(&self) -> u32 {
        self.head
    }

    pub fn entries(&self) -> u32 {
        self.memory.entries
    }

    /// Returns the device address of the ring.
    pub fn iova(&self) -> u64 {
        self.memory.iova()
    }
}
