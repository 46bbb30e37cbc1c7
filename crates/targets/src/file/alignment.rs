//! Requirements of direct I/O on addresses and lengths.

use sluice_memory::{Segment, SegmentList};

/// Alignment that statx(2) reports for direct I/O: STATX_DIOALIGN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alignment {
    /// Alignment of a buffer's address, bytes.
    pub(super) memory: u32,
    /// Alignment of offsets in the file and of lengths, bytes.
    pub(super) unit: u32,
}

impl Alignment {
    /// Returns whether requests in blocks of this size can be direct. Staging buffers begin on pages.
    pub(super) fn suits(self, block_size: u32) -> bool {
        let sane = |n: u32| n.is_power_of_two() && n <= 4096;
        sane(self.memory) && sane(self.unit) && self.unit <= block_size
    }

    /// Returns whether the kernel can move these bytes directly, segment by segment.
    pub(super) fn fits(self, data: &SegmentList) -> bool {
        let fits = |segment: &Segment| {
            !segment.is_bit_bucket()
                && segment.pointer().addr() & (self.memory as usize - 1) == 0
                && segment.len().is_multiple_of(self.unit)
        };
        data.as_slice().iter().all(fits)
    }
}
