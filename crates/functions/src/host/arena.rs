//! Memory in which a function sees the data of its commands, and no other data.

use sluice_command::Slot;
use sluice_memory::{Buffers, Extent, Extents, PAGE_SIZE, Segment, SharedRegion};
use std::ops::Range;

/// Part of the arena that belongs to one command.
#[derive(Debug)]
pub(super) struct Buffer {
    extent: Extent,
    /// Number of the arena.
    arena: u32,
}

impl Buffer {
    /// Returns the offset from the beginning of the arena, in bytes.
    pub(super) fn offset(&self) -> usize {
        self.extent.offset()
    }

    /// Returns the length in bytes.
    pub(super) fn len(&self) -> usize {
        self.extent.len()
    }
}

/// Consecutive pages of an arena. An arena has fewer pages than 16 bits count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pages {
    first: u16,
    count: u16,
}

impl Pages {
    /// Returns the pages of these bytes, which lie in the arena.
    fn of(bytes: &Range<usize>) -> Self {
        let first = bytes.start / PAGE_SIZE;
        let count = bytes.end.div_ceil(PAGE_SIZE).saturating_sub(first);
        Self { first: first as u16, count: count as u16 }
    }

    /// Returns the pages as a number, for the note of a request.
    pub(super) fn to_bits(self) -> u32 {
        u32::from(self.first) << 16 | u32::from(self.count)
    }

    /// Returns the pages that [`to_bits`](Self::to_bits) made a number.
    pub(super) fn of_bits(bits: u32) -> Self {
        Self { first: (bits >> 16) as u16, count: bits as u16 }
    }

    fn counts(self, all: &mut [u8]) -> &mut [u8] {
        let first = usize::from(self.first);
        all.get_mut(first..first + usize::from(self.count)).unwrap_or_default()
    }
}

/// Arena of one connection. A function process has it mapped, too, and may write to it at any time. So data
/// is copied in and out, and only a function in this process gets it as a slice.
#[derive(Debug)]
pub(super) struct Arena {
    /// Number of the connection.
    pub(super) number: u32,
    memory: Buffers,
    extents: Extents,
    /// Requests of the function's own that are in flight below.
    pub(super) requests: u16,
    /// Number of these requests with data in each page.
    in_use: Box<[u8]>,
    /// Buffers of commands that have ended while such a request has its data there.
    deferred: Vec<Buffer>,
}

impl Arena {
    /// Creates the arena of a connection. The last `pool` bytes are left to the function.
    pub(super) fn new(number: u32, region: SharedRegion, pool: u32) -> Self {
        let extents = Extents::new(region.len().saturating_sub(pool as usize));
        let in_use = vec![0; region.len().div_ceil(PAGE_SIZE)].into_boxed_slice();
        Self { number, memory: Buffers::new(region), extents, requests: 0, in_use, deferred: Vec::new() }
    }

    pub(super) fn take(&mut self, length: usize) -> Option<Buffer> {
        Some(Buffer { extent: self.extents.take(length)?, arena: self.number })
    }

    /// Returns whether no command has a buffer here: a buffer that cannot be taken then is larger than the
    /// arena.
    pub(super) fn is_untouched(&self) -> bool {
        self.extents.is_untouched()
    }

    /// Returns whether neither commands nor requests use the arena.
    pub(super) fn is_idle(&self) -> bool {
        self.is_untouched() && self.requests == 0
    }

    pub(super) fn owns(&self, buffer: &Buffer) -> bool {
        buffer.arena == self.number
    }

    /// Takes a buffer back and fills it with zeros, so that a function finds no data of earlier commands. A
    /// buffer that holds the data of a request in flight stays as it is, and taken, until the request has
    /// ended.
    pub(super) fn scrub(&mut self, buffer: Buffer) {
        let place = buffer.offset()..buffer.offset() + buffer.len();
        if self.requests > 0 && Pages::of(&place).counts(&mut self.in_use).iter().any(|count| *count > 0) {
            return self.deferred.push(buffer);
        }
        self.memory.fill(buffer.offset(), buffer.len(), 0);
        self.extents.give(buffer.extent);
    }

    /// Notes a request of the function's own with data in these bytes. Returns the pages, for
    /// [`end_request`](Self::end_request).
    pub(super) fn begin_request(&mut self, data: Option<Range<usize>>) -> Pages {
        self.requests += 1;
        let pages = data.as_ref().map_or_else(Pages::default, Pages::of);
        pages.counts(&mut self.in_use).iter_mut().for_each(|count| *count += 1);
        pages
    }

    /// Notes the end of a request, and frees the buffers that waited for it.
    pub(super) fn end_request(&mut self, pages: Pages) {
        self.requests -= 1;
        pages.counts(&mut self.in_use).iter_mut().for_each(|count| *count -= 1);
        if !self.deferred.is_empty() {
            std::mem::take(&mut self.deferred).into_iter().for_each(|buffer| self.scrub(buffer));
        }
    }

    /// Takes a buffer back without clearing it. The function is gone and has no successor in this arena, but
    /// the layers below may still have requests with data there.
    pub(super) fn release(&mut self, buffer: Buffer) {
        self.extents.give(buffer.extent);
    }

    /// Copies a command's data into its buffer. Returns false if the data is shorter than the buffer.
    pub(super) fn gather(&self, buffer: &Buffer, slot: &Slot) -> bool {
        self.memory.gather(buffer.offset(), &slot.data, 0, buffer.len()) == buffer.len()
    }

    /// Copies a buffer to a command's data. Returns false if the data is shorter than the buffer.
    pub(super) fn scatter(&self, buffer: &Buffer, slot: &Slot) -> bool {
        self.memory.scatter(buffer.offset(), &slot.data, 0, buffer.len()) == buffer.len()
    }

    /// Returns the first `length` bytes of a buffer, for the layer below. The arena is kept until the command
    /// is back.
    pub(super) fn segment(&self, buffer: &Buffer, length: usize) -> Segment {
        debug_assert!(length <= buffer.len());
        self.memory.segment(buffer.offset(), length as u32)
    }

    /// Copies a text to a buffer: as much of it as fits.
    pub(super) fn write(&self, buffer: &Buffer, text: &[u8]) {
        self.memory.write(buffer.offset(), &text[..text.len().min(buffer.len())]);
    }

    /// Copies a text out of a buffer: as much as the buffer has.
    pub(super) fn read(&self, buffer: &Buffer, length: usize) -> String {
        let mut bytes = vec![0; length.min(buffer.len())];
        self.memory.read(buffer.offset(), &mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the data of a request of the function's own; none if it does not lie inside the arena. Devices
    /// require data at multiples of four bytes.
    pub(super) fn request_data(&self, offset: u64, length: u64) -> Option<Segment> {
        let (offset, length) = (usize::try_from(offset).ok()?, u32::try_from(length).ok()?);
        let end = offset.checked_add(length as usize)?;
        (end <= self.memory.len() && offset.is_multiple_of(4)).then(|| self.memory.segment(offset, length))
    }

    /// Returns the memory for a function in this process, which accesses nothing but the data of its
    /// commands.
    pub(super) fn memory(&mut self) -> &mut Buffers {
        &mut self.memory
    }
}
