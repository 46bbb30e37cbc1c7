//! Submission and completion queues (Base 3.3.1).

use crate::state::doorbells::Doorbells;
use sluice_command::Origin;
use sluice_command::handover::QueueRecord;
use sluice_memory::Pages;
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use zerocopy::transmute;

/// Submission queue in the host's memory.
#[derive(Debug)]
pub(crate) struct SubmissionQueue {
    pub(crate) id: u16,
    /// Number of its controller.
    pub(crate) controller: u8,
    /// Completion queue of its commands.
    pub(crate) cq: u16,
    /// Number that distinguishes this queue from an earlier one with the same identifier.
    pub(crate) epoch: u32,
    /// Priority class, for weighted round robin only.
    pub(crate) class: u8,
    pub(crate) in_flight: u32,
    /// Whether a Delete I/O Submission Queue waits for the commands in flight.
    pub(crate) deleting: bool,
    /// Service of the queue; entries are fetched only if it is on. It is over after an invalid tail, or in a pause.
    pub(crate) service: Service,
    /// Guest address of the memory.
    pub(crate) address: u64,
    pub(crate) memory: Pages,
    pub(crate) size: u32,
    pub(crate) head: u32,
    /// Head at the last store to the event index.
    pub(crate) event_index_head: u32,
}

impl SubmissionQueue {
    pub(crate) fn new(id: u16, cq: u16, epoch: u32, address: u64, memory: Pages, size: u32) -> Self {
        Self {
            id,
            controller: 0,
            cq,
            epoch,
            class: 0,
            in_flight: 0,
            deleting: false,
            service: Service::On,
            address,
            memory,
            size,
            head: 0,
            event_index_head: 0,
        }
    }

    pub(crate) fn record(&self) -> QueueRecord {
        QueueRecord {
            address: self.address,
            size: self.size,
            index: self.head,
            peer: self.cq,
            reserved: [0; 6],
        }
    }

    /// Returns the number of entries between the head and `tail`, which is below the size.
    #[inline]
    pub(crate) fn waiting(&self, tail: u32) -> u32 {
        if tail >= self.head { tail - self.head } else { tail + self.size - self.head }
    }

    /// Copies the entry at the head out of shared memory, once, and takes it off the queue.
    #[inline]
    pub(crate) fn take(&mut self) -> [u64; 8] {
        let entry = self.memory.read_entry(self.head as usize * SubmissionEntry::SIZE);
        self.head += 1;
        if self.head == self.size {
            self.head = 0;
        }
        entry
    }

    /// Puts back the entry that was taken last.
    pub(crate) fn put_back(&mut self) {
        self.head = self.head.checked_sub(1).unwrap_or(self.size - 1);
    }

    /// Returns the origin of a command of this queue.
    #[inline]
    pub(crate) fn origin(&self, entry: &SubmissionEntry) -> Origin {
        let SubmissionEntry { cid, opcode, .. } = *entry;
        let Self { id: sq, controller, epoch, .. } = *self;
        Origin {
            sq,
            cid,
            namespace: 0,
            controller,
            opcode,
            raw: false,
            awaited: false,
            ahead: false,
            carried: false,
            timed: false,
            epoch,
        }
    }

    /// Prefetches the next `count` entries into the cache: another core wrote them, and their misses overlap
    /// this way.
    #[inline]
    pub(crate) fn prefetch(&self, after: u32, count: u32) {
        let mut index = self.head + after;
        if index >= self.size {
            index -= self.size;
        }
        for _ in 0..count {
            self.memory.prefetch(index as usize * SubmissionEntry::SIZE);
            index += 1;
            if index == self.size {
                index = 0;
            }
        }
    }
}

/// Service of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    On,
    /// Service whose completions wait until a [record](crate::Controller::record) of their effects is kept. Only
    /// the admin completion queue of a controller that is kept has it.
    Kept,
    /// Suspended while the memory is unmapped; it may come back.
    Unmapped,
    /// Ended.
    Over,
}

impl Service {
    /// Returns whether commands that complete to such a queue are taken.
    #[inline(always)]
    pub(crate) fn takes(self) -> bool {
        // One comparison: the data path has it for each batch.
        self as u8 <= Self::Kept as u8
    }
}

/// Completion queue in the host's memory.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) id: u16,
    /// Guest address of the memory.
    pub(crate) address: u64,
    pub(crate) memory: Pages,
    pub(crate) size: u32,
    pub(crate) tail: u32,
    /// Last head that was read from its doorbell.
    pub(crate) head: u32,
    phase: bool,
    /// Slots reserved for commands in flight.
    reserved: u32,
    /// Interrupt vector, if interrupts are enabled (CDW11.IEN).
    pub(crate) vector: Option<u16>,
    /// Number of submission queues that complete here.
    pub(crate) users: u16,
    /// Whether it is removed once no more completions are written to it.
    pub(crate) deleting: bool,
    pub(crate) service: Service,
    pub(crate) head_error: HeadError,
}

/// State of an invalid head that the host wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadError {
    None,
    /// Found, and not reported yet.
    Seen,
    Reported,
}

impl CompletionQueue {
    pub(crate) fn new(id: u16, address: u64, memory: Pages, size: u32, vector: Option<u16>) -> Self {
        Self {
            id,
            address,
            memory,
            size,
            tail: 0,
            head: 0,
            phase: true,
            reserved: 0,
            vector,
            users: 0,
            deleting: false,
            service: Service::On,
            head_error: HeadError::None,
        }
    }

    /// Continues a queue at this tail, with the phase of the next entry.
    pub(crate) fn resume_at(&mut self, tail: u32, phase: bool) {
        (self.tail, self.phase) = (tail, phase);
    }

    pub(crate) fn record(&self) -> QueueRecord {
        QueueRecord {
            address: self.address,
            size: self.size,
            index: self.position(),
            peer: self.vector.unwrap_or(u16::MAX),
            reserved: [0; 6],
        }
    }

    /// Returns the tail, with the phase of the next entry in bit 31.
    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.tail | u32::from(self.phase) << 31
    }

    /// Returns the number of written entries that the host has not released.
    #[inline]
    fn unseen(&self) -> u32 {
        if self.tail >= self.head { self.tail - self.head } else { self.tail + self.size - self.head }
    }

    /// Returns the number of slots that can still be reserved. Reads the doorbell only if fewer than `wanted`
    /// are known to be free, since that line belongs to the host's core.
    #[inline]
    pub(crate) fn room(&mut self, wanted: u32, doorbells: &Doorbells) -> u32 {
        let room = self.size - 1 - self.unseen() - self.reserved;
        if room >= wanted {
            return room;
        }
        self.refresh(doorbells);
        self.size - 1 - self.unseen() - self.reserved
    }

    /// Reads the head doorbell. An invalid value is ignored.
    pub(crate) fn refresh(&mut self, doorbells: &Doorbells) {
        let head = doorbells.cq_head(self.id);
        // The host can only release written entries: a head beyond the tail would make room that does not
        // exist.
        let released = if head >= self.head { head - self.head } else { head + self.size - self.head };
        if head < self.size && released <= self.unseen() {
            self.head = head;
        } else if self.head_error == HeadError::None {
            self.head_error = HeadError::Seen;
        }
    }

    /// Returns whether, by its doorbell, the host has not seen all entries.
    pub(crate) fn has_unseen(&mut self, doorbells: &Doorbells) -> bool {
        self.refresh(doorbells);
        self.unseen() != 0
    }

    #[inline]
    pub(crate) fn reserve(&mut self, count: u32) {
        self.reserved += count;
    }

    /// Returns whether every slot is reserved for a command in flight.
    pub(crate) fn is_promised(&self) -> bool {
        self.reserved == self.size - 1
    }

    /// Gives back slots that were reserved and are not used now.
    pub(crate) fn give_back(&mut self, count: u32) {
        self.reserved -= count;
    }

    /// Prefetches the slots of the next completions: a host that polls has their lines, and getting them one
    /// at a time would stall every store behind them.
    #[inline]
    pub(crate) fn prefetch(&self, after: u32, count: u32) {
        const PER_LINE: usize = 64 / CompletionEntry::SIZE;
        for ahead in (0..count as usize).step_by(PER_LINE) {
            let index = (self.tail + after) as usize + ahead;
            let index = if index < self.size as usize { index } else { index - self.size as usize };
            self.memory.prefetch_to_write(index * CompletionEntry::SIZE);
        }
    }

    /// Gives back reserved slots without a completion.
    #[inline]
    pub(crate) fn unreserve(&mut self, count: u32) {
        debug_assert!(self.reserved >= count);
        self.reserved -= count;
    }

    /// Writes a completion into a reserved slot, the phase last.
    #[inline]
    pub(crate) fn post(&mut self, mut entry: CompletionEntry) {
        debug_assert!(self.reserved > 0, "a completion without a reserved slot");
        self.reserved -= 1;
        entry.status_phase |= u16::from(self.phase);
        let [low, high]: [u64; 2] = transmute!(entry);
        self.memory.write_completion(self.tail as usize * CompletionEntry::SIZE, low, high);
        self.tail += 1;
        if self.tail == self.size {
            self.tail = 0;
            self.phase = !self.phase;
        }
    }
}
