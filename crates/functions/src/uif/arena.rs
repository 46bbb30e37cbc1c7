//! The memory in which a function sees data: that of the commands it was sent, and nothing else.

use sluice_command::Slot;
use sluice_memory::{Buffers, Extent, Extents, Segment, SharedRegion};
use std::ops::Range;

/// A piece of the arena that belongs to one command.
#[derive(Debug)]
pub(super) struct Buffer {
    extent: Extent,
    /// Of the arena it is from.
    arena: u32,
}

impl Buffer {
    /// Bytes from the beginning of the arena.
    pub(super) fn offset(&self) -> usize {
        self.extent.offset()
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.extent.len()
    }
}

/// The arena of one connection. A function process has it mapped too, and may write to it at any time;
/// so data is copied in and out, and only a function in this process sees it as a slice.
#[derive(Debug)]
pub(super) struct Arena {
    /// Of its connection.
    pub(super) number: u32,
    memory: Buffers,
    extents: Extents,
    /// Requests of the function's own that the layers below have.
    pub(super) requests: u16,
    /// Where those that have data have it; a place whose request is over is empty.
    lent: Vec<Range<usize>>,
    /// Buffers of commands that are over while such a request has its data there.
    owed: Vec<Buffer>,
}

impl Arena {
    /// Whose last `pool` bytes are left to the function.
    pub(super) fn new(number: u32, region: SharedRegion, pool: u32) -> Self {
        let extents = Extents::new(region.len().saturating_sub(pool as usize));
        Self {
            number,
            memory: Buffers::new(region),
            extents,
            requests: 0,
            lent: Vec::new(),
            owed: Vec::new(),
        }
    }

    pub(super) fn take(&mut self, length: usize) -> Option<Buffer> {
        Some(Buffer { extent: self.extents.take(length)?, arena: self.number })
    }

    /// True if no command has a piece of it: a buffer that cannot be had from it is too large for it.
    pub(super) fn is_untouched(&self) -> bool {
        self.extents.is_untouched()
    }

    /// True if the layers below have nothing to do with it.
    pub(super) fn is_idle(&self) -> bool {
        self.is_untouched() && self.requests == 0
    }

    pub(super) fn owns(&self, buffer: &Buffer) -> bool {
        buffer.arena == self.number
    }

    /// Takes a buffer back. The function does not find there what it was shown for another command. While a
    /// request has its data there, nobody else gets it, and it stays as it is.
    pub(super) fn scrub(&mut self, buffer: Buffer) {
        let place = buffer.offset()..buffer.offset() + buffer.len();
        if self.lent.iter().any(|lent| lent.start < place.end && place.start < lent.end) {
            return self.owed.push(buffer);
        }
        self.memory.fill(buffer.offset(), buffer.len(), 0);
        self.extents.give(buffer.extent);
    }

    /// A request of the function's own goes below, with this data. Returns its number, for [`left`](Self::left).
    pub(super) fn enter(&mut self, data: Option<Range<usize>>) -> u32 {
        self.requests += 1;
        let Some(data) = data else { return u32::MAX };
        let place = self.lent.iter().position(Range::is_empty).unwrap_or(self.lent.len());
        match self.lent.get_mut(place) {
            Some(lent) => *lent = data,
            None => self.lent.push(data),
        }
        place as u32
    }

    /// A request is over, and so may be what waited for it.
    pub(super) fn left(&mut self, number: u32) {
        self.requests -= 1;
        let Some(lent) = self.lent.get_mut(number as usize) else { return };
        *lent = 0..0;
        std::mem::take(&mut self.owed).into_iter().for_each(|buffer| self.scrub(buffer));
    }

    /// Takes a buffer back, as it is: its function is gone and nobody comes after it, but the layers below may
    /// still have requests with data there.
    pub(super) fn leave(&mut self, buffer: Buffer) {
        self.extents.give(buffer.extent);
    }

    /// Copies a command's data into its buffer; false if it has less than fits.
    pub(super) fn gather(&self, buffer: &Buffer, slot: &Slot) -> bool {
        self.memory.gather(buffer.offset(), &slot.data, 0, buffer.len()) == buffer.len()
    }

    /// Copies a buffer to a command's data; false if that has less room.
    pub(super) fn scatter(&self, buffer: &Buffer, slot: &Slot) -> bool {
        self.memory.scatter(buffer.offset(), &slot.data, 0, buffer.len()) == buffer.len()
    }

    /// The first `length` bytes of a buffer, for the layer below. The arena is kept until it is back.
    pub(super) fn segment(&self, buffer: &Buffer, length: usize) -> Segment {
        debug_assert!(length <= buffer.len());
        self.memory.segment(buffer.offset(), length as u32)
    }

    /// Copies a text to a buffer: as much of it as fits.
    pub(super) fn write(&self, buffer: &Buffer, text: &[u8]) {
        self.memory.write(buffer.offset(), &text[..text.len().min(buffer.len())]);
    }

    /// Copies a text out of a buffer, which is as long.
    pub(super) fn read(&self, buffer: &Buffer, length: usize) -> String {
        let mut bytes = vec![0; length.min(buffer.len())];
        self.memory.read(buffer.offset(), &mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The data of a request of the function's own; none if it does not lie inside. Devices want their data
    /// at multiples of four bytes.
    pub(super) fn lend(&self, offset: u64, length: u64) -> Option<Segment> {
        let (offset, length) = (usize::try_from(offset).ok()?, u32::try_from(length).ok()?);
        let end = offset.checked_add(length as usize)?;
        (end <= self.memory.len() && offset.is_multiple_of(4)).then(|| self.memory.segment(offset, length))
    }

    /// What a function in this process sees, which looks at nothing but what it was sent.
    pub(super) fn memory(&mut self) -> &mut Buffers {
        &mut self.memory
    }
}
