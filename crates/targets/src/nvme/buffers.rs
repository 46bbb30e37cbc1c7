//! Bounce buffers for data that cannot be mapped for the device, or not be described with PRPs.

use sluice_host::{DmaBuffer, DmaRange};
use sluice_memory::SegmentList;
use sluice_nvme::PAGE_SIZE;

/// Bytes of one buffer; a longer command is sent in several chunks.
pub(super) const BUFFER_BYTES: usize = 64 << 10;
/// Buffers of one target. A buffer takes memory only once it is used.
pub(super) const BUFFERS: usize = 8;

/// A buffer in use. The type is not `Clone`, so a buffer is returned exactly once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Buffer(usize);

/// The buffers of one connection, and a page of zeros.
#[derive(Debug)]
pub(super) struct Buffers {
    memory: DmaBuffer,
    free: Vec<Buffer>,
}

impl Buffers {
    /// Bytes of memory of all buffers; the page of zeros is the last.
    pub(super) const BYTES: usize = BUFFERS * BUFFER_BYTES + PAGE_SIZE;

    /// Creates the buffers in this memory.
    ///
    /// # Panics
    /// If the memory is shorter than [`Buffers::BYTES`].
    pub(super) fn new(memory: DmaBuffer) -> Self {
        assert!(memory.len() >= Self::BYTES, "memory for other buffers");
        Self { memory, free: (0..BUFFERS).map(Buffer).collect() }
    }

    pub(super) fn take(&mut self) -> Option<Buffer> {
        self.free.pop()
    }

    pub(super) fn give_back(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// Returns the first `length` bytes of a buffer, for the device.
    pub(super) fn range(&self, buffer: &Buffer, length: usize) -> DmaRange {
        assert!(length <= BUFFER_BYTES);
        self.memory.range(buffer.0 * BUFFER_BYTES, length as u32)
    }

    /// Returns the address of a page of zeros, for the device.
    pub(super) fn zeros(&self) -> u64 {
        self.memory.range(BUFFERS * BUFFER_BYTES, PAGE_SIZE as u32).iova
    }

    /// Copies `length` bytes of a command's data, from `done` on, into a buffer.
    pub(super) fn gather(&self, data: &SegmentList, done: usize, buffer: &Buffer, length: usize) {
        self.memory.region().gather(buffer.0 * BUFFER_BYTES, data, done, length);
    }

    /// Copies `length` bytes of a buffer into a command's data, from `done` on.
    pub(super) fn scatter(&self, buffer: &Buffer, length: usize, data: &SegmentList, done: usize) {
        self.memory.region().scatter(buffer.0 * BUFFER_BYTES, data, done, length);
    }
}
