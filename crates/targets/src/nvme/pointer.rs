//! Data pointers for the device: PRPs with device addresses, made from segments of the host's memory.

use super::dma_maps::{DmaMaps, MappingSet, only};
use sluice_host::{DmaRange, ListPages};
use sluice_memory::SegmentList;
use sluice_nvme::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;

/// Memory that a data pointer names.
#[derive(Debug)]
pub(super) enum Pointer<'a> {
    Nothing,
    /// Consecutive addresses.
    Span(DmaRange),
    /// Pages: the first from some offset on, the others from their beginning.
    Pages(&'a [u64]),
    /// A page, repeated this many times.
    Repeated(u64, usize),
    /// Bytes that are copied into a page of the slot.
    Bytes(&'a [u8]),
}

impl Pointer<'_> {
    /// Returns PRP1 and PRP2, with a list in the pages of `slot` where they need one. Returns none if the
    /// list does not fit, which the layout of the queue rules out.
    pub(super) fn write(&self, slot: u16, lists: &ListPages) -> Option<[u64; 2]> {
        match *self {
            Pointer::Nothing => Some([0, 0]),
            Pointer::Span(range) => lists.prp(slot, range),
            Pointer::Bytes(bytes) => lists.put(slot, bytes).map(|iova| [iova, 0]),
            Pointer::Pages(pages) => match *pages {
                [] => Some([0, 0]),
                [only] => Some([only, 0]),
                [first, second] => Some([first, second]),
                [first, ref rest @ ..] => Some([first, lists.prp_list(slot, rest.iter().copied())?]),
            },
            Pointer::Repeated(page, count) => match count {
                0 | 1 => Some([page, 0]),
                2 => Some([page, page]),
                _ => Some([page, lists.prp_list(slot, std::iter::repeat_n(page, count - 1))?]),
            },
        }
    }
}

/// Returns the device addresses of `data`, of a command that came through controller `of`. `pages` is
/// scratch. Returns none if some of the data is not mapped for the device, or if PRPs cannot describe it.
/// Only the first page may begin, and only the last may end, in the middle (Base 4.1.1).
pub(super) fn translate<'a>(
    data: &SegmentList,
    of: u8,
    maps: &mut DmaMaps,
    pages: &'a mut Vec<u64>,
) -> Option<(Pointer<'a>, MappingSet)> {
    let segments = data.as_slice();
    if let [segment] = segments {
        let (iova, mapping) = maps.find(segment, of)?;
        let span = Pointer::Span(DmaRange { iova, length: segment.len() });
        return iova.is_multiple_of(4).then_some((span, only(mapping)));
    }
    pages.clear();
    let mut set = 0;
    for (number, segment) in segments.iter().enumerate() {
        let (iova, mapping) = maps.find(segment, of)?;
        let end = iova + u64::from(segment.len());
        let begins_well = if number == 0 { iova.is_multiple_of(4) } else { iova.is_multiple_of(PAGE) };
        let ends_well = number + 1 == segments.len() || end.is_multiple_of(PAGE);
        if !begins_well || !ends_well {
            return None;
        }
        set |= only(mapping);
        pages.push(iova);
        pages.extend((iova / PAGE + 1..end.div_ceil(PAGE)).map(|page| page * PAGE));
    }
    Some((Pointer::Pages(pages), set))
}
