//! Memory that is unmapped for the client, and still mapped here until it is not used any more.

use crate::PAGE_SIZE;
use crate::memory_file::MemoryFile;
use crate::pages::Pages;
use crate::region::Region;
use crate::segment::Segment;
use std::fmt;
use std::ops::Range;

/// Regions removed from a [`Space`](crate::Space), still mapped. To be dropped when nothing in flight points
/// into them; on a thread that may wait, since unmapping a large memory takes milliseconds.
pub struct Removed {
    regions: Vec<Region>,
    /// Memory of the regions in this process, in order and apart from each other. A client may unmap 65,535
    /// regions while a thousand commands have hundreds of segments each. Comparing all regions with all
    /// segments would stop the reactor for seconds.
    memory: Vec<Range<usize>>,
}

// SAFETY: as for `Space`.
unsafe impl Send for Removed {}

impl Removed {
    pub(crate) fn new(regions: Vec<Region>) -> Removed {
        let ranges = regions.iter().map(Region::host_range);
        let mut memory: Vec<Range<usize>> = ranges.filter(|range| !range.is_empty()).collect();
        memory.sort_unstable_by_key(|range| range.start);
        memory.dedup_by(|next, held| {
            let meets = next.start <= held.end;
            if meets {
                held.end = held.end.max(next.end);
            }
            meets
        });
        Removed { regions, memory }
    }

    /// Returns whether a byte of `segment` is memory of these regions. Memory is compared, not guest
    /// addresses: where a client maps one memory at two addresses, a segment of the other address counts too.
    pub fn contains(&self, segment: &Segment) -> bool {
        !segment.is_bit_bucket() && self.overlaps(segment.range())
    }

    /// Returns whether a page of a queue is memory of these regions.
    pub fn touches_pages(&self, pages: &Pages) -> bool {
        pages.addresses().any(|page| self.overlaps(page..page + PAGE_SIZE))
    }

    /// Returns whether a region among these is memory of the file.
    pub fn holds(&self, file: &MemoryFile) -> bool {
        let mut mappings = self.regions.iter().filter_map(Region::mapping);
        mappings.any(|mapping| file.is_of(mapping))
    }

    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    fn overlaps(&self, wanted: Range<usize>) -> bool {
        let first = self.memory.partition_point(|held| held.end <= wanted.start);
        self.memory.get(first).is_some_and(|held| held.start < wanted.end)
    }
}

impl fmt::Debug for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Removed({} regions)", self.regions.len())
    }
}
