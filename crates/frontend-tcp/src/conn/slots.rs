//! Outstanding commands of a connection: a slot for each, from its capsule to the last byte of its response.

use super::capsule::{Direction, Transfer};
use super::memory::{INLINE, QueueMemory};
use sluice_command::record::{Reader, RecordError, Writer};
use sluice_memory::{Extent, Extents};
use sluice_nvme::{SglDescriptor, SglType, Status, SubmissionEntry};
use std::collections::VecDeque;
use zerocopy::{FromBytes, IntoBytes};

#[cfg(test)]
mod tests;

/// Stage of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Free,
    /// The capsule is incomplete.
    Arriving,
    /// The data waits for buffer space.
    Waiting,
    /// An R2T requested the data from the host.
    Requested,
    /// The controller has the command.
    Submitted,
    /// The authentication worker has the message.
    Authenticating,
    /// The response is queued or being sent.
    Answering,
}

/// Result of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) dw0: u32,
    pub(crate) dw1: u32,
}

impl Outcome {
    pub(crate) fn failed(status: Status) -> Self {
        Self { status, dw0: 0, dw1: 0 }
    }
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) stage: Stage,
    /// Submission queue entry as received.
    pub(super) entry: SubmissionEntry,
    pub(super) transfer: Transfer,
    /// Buffer in the pool; without it the data is in the inline buffer of the slot.
    extent: Option<Extent>,
    /// Bytes received of data that an R2T requested.
    pub(super) received: u32,
    /// Error of the command that was found before all of it was received.
    pub(super) refused: Option<Status>,
    pub(super) outcome: Outcome,
}

impl Stage {
    /// Returns the number of a stage in a record; none if a command in it cannot be handed over.
    fn number(self) -> Option<u8> {
        match self {
            Self::Arriving => Some(1),
            Self::Waiting => Some(2),
            Self::Requested => Some(3),
            Self::Submitted => Some(4),
            Self::Free | Self::Authenticating | Self::Answering => None,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        [Self::Arriving, Self::Waiting, Self::Requested, Self::Submitted]
            .into_iter()
            .find(|stage| stage.number() == Some(number))
    }
}

/// All slots of a connection.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Free slots. The last one freed is taken first, since its buffer is in the cache.
    free: Vec<u16>,
    /// Slots in [`Stage::Waiting`], the oldest first.
    waiting: VecDeque<u16>,
    pool: Extents,
    /// Number of slots in [`Stage::Answering`].
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

    /// Returns whether all outstanding commands can go to another process: none has a response under way.
    pub(super) fn may_be_handed_over(&self) -> bool {
        self.slots.iter().all(|slot| slot.stage == Stage::Free || slot.stage.number().is_some())
    }

    /// Writes the outstanding commands.
    pub(super) fn put(&self, part: &mut Writer) {
        let outstanding =
            (0..).zip(&self.slots).filter_map(|(number, slot)| Some((number, slot, slot.stage.number()?)));
        part.list(outstanding.collect::<Vec<(u16, _, _)>>(), |part, (number, slot, stage)| {
            part.put(number);
            part.put(stage);
            part.raw(slot.entry.as_bytes());
            slot.transfer.put(part);
            part.option(slot.extent.as_ref(), |part, extent| part.put(extent.offset() as u64));
            part.put(slot.received);
            part.option(slot.refused, |part, status| part.put(status.0));
        });
        part.list(&self.waiting, |part, number| part.put(*number));
    }

    /// Reads the outstanding commands of a connection with `count` slots.
    ///
    /// # Errors
    /// No connection has such commands.
    pub(super) fn read(count: u16, part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let mut slots = Self::new(count);
        let outstanding = part.list(count.into(), |part| slots.read_one(part))?;
        slots.free.retain(|number| !outstanding.contains(number));
        if slots.free.len() + outstanding.len() != usize::from(count) {
            return Err(RecordError::Invalid("slot"));
        }
        let waiting = part.list(count.into(), |part| part.below(count, "slot"))?;
        let is_waiting = |number: &u16| slots.slot(*number).stage == Stage::Waiting;
        let of_stage = slots.slots.iter().filter(|slot| slot.stage == Stage::Waiting).count();
        let distinct: std::collections::BTreeSet<_> = waiting.iter().collect();
        if !waiting.iter().all(is_waiting) || of_stage != waiting.len() || distinct.len() != waiting.len() {
            return Err(RecordError::Invalid("waiting command"));
        }
        slots.waiting.extend(waiting);
        Ok(slots)
    }

    fn read_one(&mut self, part: &mut Reader<'_>) -> Result<u16, RecordError> {
        const INVALID: RecordError = RecordError::Invalid("slot");
        let number = part.below(self.slots.len() as u16, "slot")?;
        let stage = Stage::from_number(part.get()?).ok_or(INVALID)?;
        let entry =
            SubmissionEntry::read_from_bytes(part.raw(SubmissionEntry::SIZE)?).map_err(|_| INVALID)?;
        let transfer = Transfer::read(part)?;
        let offset: Option<u64> = part.option(Reader::get)?;
        let received = part.below(transfer.length + 1, "received bytes")?;
        let refused = part.option(Reader::get)?.map(Status);
        let length = transfer.length as usize;
        let needs_extent = length > INLINE && matches!(stage, Stage::Requested | Stage::Submitted);
        let extent =
            offset.map(|offset| self.pool.take_at(offset as usize, length).ok_or(INVALID)).transpose()?;
        if needs_extent != extent.is_some() || stage == Stage::Waiting && length <= INLINE {
            return Err(INVALID);
        }
        let outcome = Outcome::default();
        *self.slot_mut(number) = Slot { stage, entry, transfer, extent, received, refused, outcome };
        Ok(number)
    }

    pub(super) fn slot(&self, number: u16) -> &Slot {
        &self.slots[usize::from(number)]
    }

    pub(super) fn slot_mut(&mut self, number: u16) -> &mut Slot {
        &mut self.slots[usize::from(number)]
    }

    /// Returns the slot of this number, if it exists.
    pub(super) fn get(&self, number: u16) -> Option<&Slot> {
        self.slots.get(usize::from(number))
    }

    /// Returns the slot of the submitted command with this command identifier of the host.
    pub(super) fn submitted(&self, cid: u16) -> Option<u16> {
        let found =
            self.slots.iter().position(|slot| slot.stage == Stage::Submitted && slot.entry.cid == cid);
        found.map(|index| index as u16)
    }

    /// Returns whether all slots are free.
    pub(super) fn are_free(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a slot for a capsule.
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

    /// Finds buffer space for the data of a command. Returns false if the command must wait. Waiting commands
    /// are not overtaken.
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

    /// Returns the next waiting command, if there is buffer space for it now.
    pub(super) fn next_with_room(&mut self) -> Option<u16> {
        let number = *self.waiting.front()?;
        let slot = &mut self.slots[usize::from(number)];
        slot.extent = Some(self.pool.take(slot.transfer.length as usize)?);
        self.waiting.pop_front();
        Some(number)
    }

    /// Returns the offset of the data of a command, from the beginning of the memory.
    pub(super) fn data(&self, number: u16, memory: &QueueMemory) -> usize {
        let slot = self.slot(number);
        match &slot.extent {
            Some(extent) => memory.pool() + extent.offset(),
            None => memory.inline(number) + slot.transfer.offset.unwrap_or(0) as usize,
        }
    }

    /// Returns the entry for the controller. It has the slot number as its command identifier, and an address
    /// of the connection's memory as its data pointer.
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
