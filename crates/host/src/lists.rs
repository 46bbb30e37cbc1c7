//! PRP lists and SGL segments, in memory that belongs to a slot of a queue.

use crate::{DmaBuffer, DmaRange};
use sluice_nvme::{PAGE_SIZE, SglDescriptor, SglType};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// Entries of a PRP list that fit a page.
const ENTRIES_PER_PAGE: usize = PAGE_SIZE / size_of::<u64>();

/// List pages for each slot of a queue, allocated once, so that a command with a long data pointer needs no
/// further memory.
#[derive(Debug)]
pub struct ListPages {
    buffer: Arc<DmaBuffer>,
    /// Bytes from the beginning of the buffer; a whole number of pages.
    offset: usize,
    pages_per_slot: usize,
}

impl ListPages {
    pub(crate) fn new(buffer: Arc<DmaBuffer>, offset: usize, pages_per_slot: usize) -> Self {
        Self { buffer, offset, pages_per_slot }
    }

    /// Returns the number of list pages that a transfer needs at most, at any offset in a page.
    pub fn pages_for(transfer_bytes: usize) -> usize {
        // Data that begins inside a page takes one page more; PRP1 names the first page without a list entry.
        list_pages(transfer_bytes.div_ceil(PAGE_SIZE))
    }

    /// Returns the data pointer for consecutive device addresses (Base 4.1.1); `None` if the slot has too few
    /// pages for the list.
    #[inline]
    pub fn prp(&self, slot: u16, range: DmaRange) -> Option<[u64; 2]> {
        let first = range.iova;
        let inside = (first % PAGE_SIZE as u64) as usize;
        let count = (inside + range.length as usize).div_ceil(PAGE_SIZE);
        let page = first - inside as u64;
        match count {
            0 | 1 => Some([first, 0]),
            2 => Some([first, page.wrapping_add(PAGE_SIZE as u64)]),
            _ => {
                let rest = (1..count).map(|n| page.wrapping_add((n * PAGE_SIZE) as u64));
                Some([first, self.prp_list(slot, rest)?])
            }
        }
    }

    /// Writes a PRP list for any pages, and returns its address. If more entries follow than fit, the last
    /// entry of a page names the next page.
    pub fn prp_list(&self, slot: u16, pages: impl ExactSizeIterator<Item = u64>) -> Option<u64> {
        let mut left = pages.len();
        if list_pages(left) > self.pages_per_slot {
            return None;
        }
        let region = self.buffer.region();
        let (start, iova) = self.slot(slot);
        let mut index = 0;
        for page in pages {
            if left > 1 && index % ENTRIES_PER_PAGE == ENTRIES_PER_PAGE - 1 {
                let next = iova + ((index + 1) * size_of::<u64>()) as u64;
                region.atomic_u64(start + index * size_of::<u64>()).store(next, Ordering::Relaxed);
                index += 1;
            }
            region.atomic_u64(start + index * size_of::<u64>()).store(page, Ordering::Relaxed);
            (index, left) = (index + 1, left - 1);
        }
        Some(iova)
    }

    /// Returns the SGL descriptor for some ranges (Base 4.1.2): the range itself, or a last segment with one
    /// data block for each. Returns `None` if the slot has too few pages for them.
    pub fn sgl(&self, slot: u16, ranges: &[DmaRange]) -> Option<SglDescriptor> {
        let block = |range: &DmaRange| SglDescriptor::new(SglType::DATA_BLOCK, range.iova, range.length);
        match ranges {
            [range] => Some(block(range)),
            _ => {
                let mut count = 0;
                for range in ranges {
                    self.write_descriptor(slot, count, block(range))?;
                    count += 1;
                }
                let length = (count * SglDescriptor::SIZE) as u32;
                Some(SglDescriptor::new(SglType::LAST_SEGMENT, self.slot(slot).1, length))
            }
        }
    }

    /// Writes bytes into the pages of a slot, such as the ranges of a Dataset Management command, and returns
    /// their address; `None` if they do not fit.
    pub fn put(&self, slot: u16, bytes: &[u8]) -> Option<u64> {
        if bytes.len() > self.pages_per_slot * PAGE_SIZE {
            return None;
        }
        let (start, iova) = self.slot(slot);
        self.buffer.region().write(start, bytes);
        Some(iova)
    }

    /// Writes any descriptor into the pages of a slot. `None` if it is beyond them.
    pub fn write_descriptor(&self, slot: u16, index: usize, descriptor: SglDescriptor) -> Option<()> {
        let offset = index.checked_mul(SglDescriptor::SIZE)?;
        if offset >= self.pages_per_slot * PAGE_SIZE {
            return None;
        }
        self.buffer.region().write(self.slot(slot).0 + offset, descriptor.as_bytes());
        Some(())
    }

    /// Returns the device address of the pages of a slot.
    pub fn iova(&self, slot: u16) -> u64 {
        self.slot(slot).1
    }

    /// Returns the offset of a slot's pages in the buffer, and their device address.
    fn slot(&self, slot: u16) -> (usize, u64) {
        let offset = self.offset + usize::from(slot) * self.pages_per_slot * PAGE_SIZE;
        (offset, self.buffer.iova() + offset as u64)
    }
}

/// Returns the number of pages for a PRP list. The last entry of every page but the last is the address of
/// the next page.
fn list_pages(entries: usize) -> usize {
    match entries {
        0 => 0,
        _ => (entries - 1).div_ceil(ENTRIES_PER_PAGE - 1).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_device::memory_only;

    fn lists(pages_per_slot: usize) -> ListPages {
        let buffer = memory_only().allocate(4 * pages_per_slot * PAGE_SIZE).expect("memory");
        ListPages::new(Arc::new(buffer), 0, pages_per_slot)
    }

    /// Follows a list as a device does.
    fn walk(lists: &ListPages, prp2: u64, mut count: usize) -> Vec<u64> {
        let mut found = Vec::new();
        let mut at = (prp2 - lists.buffer.iova()) as usize;
        while count > 0 {
            let entry = lists.buffer.region().atomic_u64(at).load(Ordering::Relaxed);
            at += size_of::<u64>();
            if count > 1 && at.is_multiple_of(PAGE_SIZE) {
                at = (entry - lists.buffer.iova()) as usize;
            } else {
                found.push(entry);
                count -= 1;
            }
        }
        found
    }

    #[test]
    fn short_transfers_need_no_list() {
        let lists = lists(1);
        let prp = |iova, length| lists.prp(0, DmaRange { iova, length });
        assert_eq!(prp(0x1000, 0x1000), Some([0x1000, 0]));
        assert_eq!(prp(0x1ffc, 4), Some([0x1ffc, 0]));
        assert_eq!(prp(0x1ffc, 8), Some([0x1ffc, 0x2000]));
        assert_eq!(prp(0x1000, 0x2000), Some([0x1000, 0x2000]));
    }

    #[test]
    fn lists_name_every_page_once() {
        let lists = lists(3);
        for (slot, inside, pages) in [(0, 0, 3), (1, 512, 513), (2, 0, 514), (3, 4, 1024), (1, 0, 1500)] {
            let iova = 0x10_0000 + inside;
            let length = (pages * PAGE_SIZE) as u32 - inside as u32;
            let [prp1, prp2] = lists.prp(slot, DmaRange { iova, length }).expect("it fits");
            assert_eq!(prp1, iova);
            assert_eq!(prp2, lists.iova(slot));
            let expected: Vec<u64> = (1..pages as u64).map(|n| 0x10_0000 + n * 4096).collect();
            assert_eq!(walk(&lists, prp2, pages - 1), expected);
        }
    }

    #[test]
    fn a_list_that_does_not_fit_is_refused() {
        let lists = lists(1);
        let pages = |count: u32| DmaRange { iova: 0x1000, length: count * 4096 };
        assert!(lists.prp(0, pages(513)).is_some());
        assert!(lists.prp(0, pages(514)).is_none());
        assert_eq!(ListPages::pages_for(512 * 4096), 1);
        assert_eq!(ListPages::pages_for(512 * 4096 + 1), 2);
    }

    #[test]
    fn one_range_stands_in_the_entry_and_several_in_a_segment() {
        let lists = lists(1);
        let range = |n: u64| DmaRange { iova: n << 12, length: 512 };
        let single = lists.sgl(1, &[range(1)]).expect("it fits");
        assert_eq!(single, SglDescriptor::new(SglType::DATA_BLOCK, 1 << 12, 512));
        let several = lists.sgl(1, &[range(1), range(2)]).expect("it fits");
        assert_eq!(several, SglDescriptor::new(SglType::LAST_SEGMENT, lists.iova(1), 32));
        let mut bytes = [0; 16];
        lists.buffer.region().read(PAGE_SIZE + 16, &mut bytes);
        assert_eq!(bytes, SglDescriptor::new(SglType::DATA_BLOCK, 2 << 12, 512).as_bytes());
        assert!(lists.sgl(0, &vec![range(1); 257]).is_none());
    }
}
