//! Memory of the daemon for data of commands outside of shared memory.

use sluice_memory::{Extent, Extents, MissingRange, PAGE_SIZE, Segment, SharedRegion};
use std::io;

/// Bytes for all commands of a controller together; more commands wait. Holds some commands of the largest
/// size, or all that a guest commonly has in flight.
pub(crate) const POOL_BYTES: usize = 16 << 20;

/// Pages that commands take and give back.
#[derive(Debug)]
pub(crate) struct BouncePool {
    region: SharedRegion,
    extents: Extents,
}

/// Local memory in place of a buffer of the client's.
#[derive(Debug)]
pub(crate) struct BounceBuffer {
    pub(crate) wanted: MissingRange,
    /// Offset in the pool. The offset in its page is that of the client's buffer.
    pub(crate) offset: usize,
    extent: Extent,
}

impl BouncePool {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            region: SharedRegion::new("sluice-staging", POOL_BYTES)?,
            extents: Extents::new(POOL_BYTES),
        })
    }

    pub(crate) fn take(&mut self, wanted: MissingRange) -> Option<BounceBuffer> {
        let in_page = wanted.address as usize % PAGE_SIZE;
        let extent = self.extents.take(in_page + wanted.length as usize)?;
        Some(BounceBuffer { wanted, offset: extent.offset() + in_page, extent })
    }

    pub(crate) fn give(&mut self, buffer: BounceBuffer) {
        self.extents.give(buffer.extent);
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.extents.is_untouched()
    }

    pub(crate) fn segment(&self, buffer: &BounceBuffer) -> Segment {
        self.region.segment(buffer.offset, buffer.wanted.length)
    }

    /// Zeroes a buffer, so that no bytes of another command become visible.
    pub(crate) fn clear(&self, buffer: &BounceBuffer) {
        self.region.fill(buffer.offset, buffer.wanted.length as usize, 0);
    }

    pub(crate) fn read(&self, offset: usize, data: &mut [u8]) {
        self.region.read(offset, data);
    }

    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        self.region.write(offset, data);
    }
}
