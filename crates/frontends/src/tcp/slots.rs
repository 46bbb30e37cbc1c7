//! The commands that a connection has outstanding: a slot for each, from its capsule to the last byte of its
//! response.

use super::capsule::{Direction, Transfer};
use super::memory::{INLINE, QueueMemory};
use sluice_memory::{Extent, Extents};
use sluice_nvme::{SglDescriptor, SglType, Status, SubmissionEntry};
use std::collections::VecDeque;

/// Where a command is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Free,
    /// Its capsule is not complete.
    Arriving,
    /// There is no room for its data yet.
    Waiting,
    /// The host was asked for its data.
    Asked,
    /// With the controller.
    Submitted,
    /// Its message is with the notary.
    Proving,
    /// Its response is on its way.
    Answering,
}

/// What a command came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) status: Status,
    pub(super) dw0: u32,
    pub(super) dw1: u32,
}

impl Outcome {
    pub(super) fn failed(status: Status) -> Self {
        Self { status, dw0: 0, dw1: 0 }
    }
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) stage: Stage,
    /// As it came.
    pub(super) entry: SubmissionEntry,
    pub(super) transfer: Transfer,
    /// In the pool; otherwise data is in the slot's own buffer.
    extent: Option<Extent>,
    /// Bytes of data that have come, of a command that was asked for them.
    pub(super) received: u32,
    /// What is wrong with it, known before it was complete.
    pub(super) refused: Option<Status>,
    pub(super) outcome: Outcome,
}

/// All slots of a connection.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// The last one freed is taken first: its buffer is in the cache.
    free: Vec<u16>,
    /// Those of [`Stage::Waiting`], the oldest first.
    waiting: VecDeque<u16>,
    pool: Extents,
    /// Slots of [`Stage::Answering`].
    pub(super) answering: u16,
}

impl Slots {
    pub(super) fn new(count: u16) -> Self {
        Self {
            slots: (0..count).map(|_| Slot::default()).collect(),
            free: (0..count).rev().collect(),
            waiting: VecDeque::with_capacity(usize::from(count)),
            pool: Extents::new(super::memory::POOL),
            answering: 0,
        }
    }

    pub(super) fn slot(&self, number: u16) -> &Slot {
        &self.slots[usize::from(number)]
    }

    pub(super) fn slot_mut(&mut self, number: u16) -> &mut Slot {
        &mut self.slots[usize::from(number)]
    }

    /// The slot of this number, if there is one.
    pub(super) fn get(&self, number: u16) -> Option<&Slot> {
        self.slots.get(usize::from(number))
    }

    /// The slot of a command that is with the controller, by the host's identifier.
    pub(super) fn submitted(&self, cid: u16) -> Option<u16> {
        let found =
            self.slots.iter().position(|slot| slot.stage == Stage::Submitted && slot.entry.cid == cid);
        found.map(|index| index as u16)
    }

    /// Nobody has one.
    pub(super) fn are_free(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// A slot for a capsule that arrives.
    pub(super) fn take(&mut self, entry: &SubmissionEntry) -> Option<u16> {
        let number = self.free.pop()?;
        *self.slot_mut(number) = Slot { stage: Stage::Arriving, entry: *entry, ..Slot::default() };
        Some(number)
    }

    pub(super) fn release(&mut self, number: u16) {
        let slot = &mut self.slots[usize::from(number)];
        slot.stage = Stage::Free;
        if let Some(extent) = slot.extent.take() {
            self.pool.give(extent);
        }
        self.free.push(number);
    }

    /// Finds room for the data of a command; false if it has to wait for it. Nobody overtakes those who
    /// wait already.
    pub(super) fn find_room(&mut self, number: u16) -> bool {
        let slot = &mut self.slots[usize::from(number)];
        let length = slot.transfer.length as usize;
        if length <= INLINE || slot.transfer.direction == Direction::None {
            return true;
        }
        if self.waiting.is_empty() {
            slot.extent = self.pool.take(length);
        }
        if slot.extent.is_none() {
            slot.stage = Stage::Waiting;
            self.waiting.push_back(number);
        }
        slot.extent.is_some()
    }

    /// The next of those who wait, if there is room for it now.
    pub(super) fn next_with_room(&mut self) -> Option<u16> {
        let number = *self.waiting.front()?;
        let slot = &mut self.slots[usize::from(number)];
        slot.extent = Some(self.pool.take(slot.transfer.length as usize)?);
        self.waiting.pop_front();
        Some(number)
    }

    /// Where the data of a command is, in bytes from the beginning of the memory.
    pub(super) fn data(&self, number: u16, memory: &QueueMemory) -> usize {
        let slot = self.slot(number);
        match &slot.extent {
            Some(extent) => memory.pool() + extent.offset(),
            None => memory.inline(number) + slot.transfer.offset.unwrap_or(0) as usize,
        }
    }

    /// The entry as the controller gets it: the slot's number for the host's identifier, and our memory for
    /// its data pointer.
    pub(super) fn entry_for_controller(&self, number: u16, memory: &QueueMemory) -> SubmissionEntry {
        /// PSDT: an SGL describes the data.
        const SGL: u8 = 1 << 6;
        let slot = self.slot(number);
        let address = memory.address(self.data(number, memory));
        let data = SglDescriptor::new(SglType::DATA_BLOCK, address, slot.transfer.length);
        SubmissionEntry {
            cid: number,
            flags: slot.entry.flags & 0x3f | SGL,
            mptr: 0,
            dptr: data.to_dptr(),
            ..slot.entry
        }
    }
}
