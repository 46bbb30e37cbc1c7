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

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_memory::SharedRegion;

    #[test]
    fn powers_of_two_up_to_a_page_suit_blocks_that_are_as_large() {
        for (memory, unit, block_size, suits) in [
            (4, 512, 512, true),
            (4096, 4096, 4096, true),
            (1, 1, 512, true),
            (4, 4096, 512, false),
            (8192, 512, 512, false),
            (4, 8192, 8192, false),
            (3, 512, 512, false),
            (4, 511, 512, false),
            (0, 512, 512, false),
            (4, 0, 512, false),
        ] {
            assert_eq!(Alignment { memory, unit }.suits(block_size), suits, "{memory} {unit} {block_size}");
        }
    }

    /// Checks that data of direct I/O is not copied, and other data is not sent as it is.
    #[test]
    fn every_address_and_every_length_counts() {
        const PAGE: usize = 4096;
        let region = SharedRegion::new("alignment", 4 * PAGE).expect("memory");
        let alignment = Alignment { memory: 8, unit: 512 };
        let fits = |segments: &[Segment]| {
            let mut data = SegmentList::new();
            segments.iter().for_each(|segment| data.push(*segment).expect("few segments"));
            alignment.fits(&data)
        };
        let good = || region.segment(8, 1024);
        assert!(fits(&[good(), region.segment(PAGE + 16, 512)]));
        let bad = [
            region.segment(2 * PAGE + 4, 512),
            region.segment(2 * PAGE + 1, 512),
            region.segment(2 * PAGE, 513),
            region.segment(2 * PAGE, 256),
            Segment::bit_bucket(512),
        ];
        for (number, bad) in bad.into_iter().enumerate() {
            assert!(!fits(&[bad]) && !fits(&[good(), bad]) && !fits(&[bad, good()]), "{number}");
        }
    }
}
