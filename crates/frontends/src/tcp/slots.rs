//! The commands that a connection has outstanding: a slot for each, from its capsule to the last byte of its
//! response.

use super::capsule::{Direction, Transfer};
use super::memory::{INLINE, QueueMemory};
use sluice_memory::{Extent, Extents};
use sluice_nvme::{SglDescriptor, SglType, Status, SubmissionEntry};
use std::collections::VecDeque;

/// Bytes of the pool that are given to reads in a turn, and the last of them may have more. They are sent at the end of
/// the turn in which the target has them, and taken again: what fits the caches is sent out of them, however deep the
/// queue is. And no turn takes longer because a host asks for much at once.
const READ_IN_A_TURN: usize = 256 << 10;

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
    /// Bytes of it that reads got in this turn.
    read: usize,
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
            read: 0,
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
        let transfer = self.slot(number).transfer;
        if transfer.length as usize <= INLINE || transfer.direction == Direction::None {
            return true;
        }
        let found = self.waiting.is_empty() && self.give_room(number);
        if !found {
            self.slot_mut(number).stage = Stage::Waiting;
            self.waiting.push_back(number);
        }
        found
    }

    /// A turn is over: reads may have as much again.
    pub(super) fn end_turn(&mut self) {
        self.read = 0;
    }

    /// The next of those who wait, if there is room for it now.
    pub(super) fn next_with_room(&mut self) -> Option<u16> {
        let number = *self.waiting.front()?;
        self.give_room(number).then(|| self.waiting.pop_front()).flatten()
    }

    /// Gives a command room in the pool, if there is some in this turn.
    fn give_room(&mut self, number: u16) -> bool {
        let Self { slots, pool, read, .. } = self;
        let slot = &mut slots[usize::from(number)];
        let length = slot.transfer.length as usize;
        let reads = slot.transfer.direction == Direction::ToHost;
        if reads && *read >= READ_IN_A_TURN {
            return false;
        }
        slot.extent = pool.take(length);
        if reads && slot.extent.is_some() {
            *read += length;
        }
        slot.extent.is_some()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots with commands of this direction and these lengths, of which as many have room as are named.
    fn with(direction: Direction, lengths: &[usize]) -> (Slots, Vec<u16>) {
        let mut slots = Slots::new(64);
        let mut have_room = Vec::new();
        for length in lengths {
            let number = slots.take(&SubmissionEntry::default()).expect("a slot");
            slots.slot_mut(number).transfer = Transfer { direction, length: *length as u32, offset: None };
            if slots.find_room(number) {
                have_room.push(number);
            }
        }
        (slots, have_room)
    }

    #[test]
    fn reads_have_a_part_of_the_pool_in_each_turn_and_in_their_order() {
        const LENGTH: usize = READ_IN_A_TURN / 2;
        let (mut slots, mut have_room) = with(Direction::ToHost, &[LENGTH; 7]);
        assert_eq!(have_room, [0, 1]);
        assert_eq!(slots.next_with_room(), None, "not in this turn");
        for turn in 1..=3 {
            slots.end_turn();
            have_room.extend(std::iter::from_fn(|| slots.next_with_room()));
            assert_eq!(have_room.len(), (2 + 2 * turn).min(7));
        }
        assert!(have_room.is_sorted());
    }

    #[test]
    fn one_read_may_be_larger_than_that() {
        let (_, have_room) = with(Direction::ToHost, &[READ_IN_A_TURN - 1, 4 * READ_IN_A_TURN, INLINE + 1]);
        assert_eq!(have_room, [0, 1]);
    }

    #[test]
    fn small_reads_and_writes_have_what_there_is() {
        assert_eq!(with(Direction::ToHost, &[INLINE; 64]).1.len(), 64);
        const LENGTH: usize = 128 << 10;
        let (mut slots, have_room) = with(Direction::ToController, &[LENGTH; 40]);
        assert_eq!(have_room.len(), super::super::memory::POOL / LENGTH);
        assert_eq!(slots.next_with_room(), None, "the pool is used up");
        slots.release(5);
        assert_eq!(slots.next_with_room(), Some(have_room.len() as u16), "the first that waits");
    }
}
