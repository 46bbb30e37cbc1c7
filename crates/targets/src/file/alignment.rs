//! What direct I/O demands of addresses and lengths.

use sluice_memory::{Segment, SegmentList};

/// As statx(2) reports it: STATX_DIOALIGN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alignment {
    /// Of a buffer's address, bytes.
    pub(super) memory: u32,
    /// Of offsets in the file and of lengths, bytes.
    pub(super) unit: u32,
}

impl Alignment {
    /// Whether requests in blocks of this size can be direct. Buffers of our own begin on pages.
    pub(super) fn suits(self, block_size: u32) -> bool {
        let sane = |n: u32| n.is_power_of_two() && n <= 4096;
        sane(self.memory) && sane(self.unit) && self.unit <= block_size
    }

    /// Whether the kernel can move these bytes directly, segment by segment.
    pub(super) fn fits(self, data: &SegmentList) -> bool {
        let fits = |segment: &Segment| {
            !segment.is_bit_bucket()
                && segment.pointer().addr() & (self.memory as usize - 1) == 0
                && segment.len().is_multiple_of(self.unit)
        };
        data.as_slice().iter().all(fits)
    }
}
