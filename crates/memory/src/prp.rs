//! Physical region pages (Base 2.0, 4.1.1).

use crate::list::SegmentList;
use crate::region::Access;
use crate::space::Space;
use sluice_nvme::Status;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of one PRP entry.
const ENTRY_SIZE: u64 = 8;

/// Appends the memory of a transfer of `length` bytes to `out`. `page_size` is a power of two, the
/// controller's CC.MPS; the caller has checked `length` against MDTS.
///
/// # Errors
/// PRP_OFFSET_INVALID for an offset that an entry must not have; DATA_TRANSFER_ERROR where there is no
/// memory. `out` then holds the memory before.
#[inline]
pub fn walk_prp(
    space: &Space,
    prp1: u64,
    prp2: u64,
    length: u32,
    page_size: usize,
    access: Access,
    out: &mut SegmentList,
) -> Result<(), Status> {
    let in_page = prp1 & (page_size as u64 - 1);
    if !prp1.is_multiple_of(4) {
        return Err(Status::PRP_OFFSET_INVALID);
    }
    let first = length.min(page_size as u32 - in_page as u32);
    space.translate(prp1, first, access, out)?;
    let rest = length - first;
    if rest == 0 {
        return Ok(());
    }
    if rest as usize <= page_size {
        check_page(prp2, page_size)?;
        return space.translate(prp2, rest, access, out);
    }
    walk_list(space, prp2, rest, page_size, access, out)
}

/// Checks an entry other than the first: its page is used from its beginning.
#[inline]
fn check_page(prp: u64, page_size: usize) -> Result<(), Status> {
    if prp.is_multiple_of(page_size as u64) { Ok(()) } else { Err(Status::PRP_OFFSET_INVALID) }
}

/// Appends the remaining `length` bytes, which the list at `list` describes. The list may begin anywhere in
/// its page. If its page does not hold all of it, the page's last entry points to the next page.
fn walk_list(
    space: &Space,
    mut list: u64,
    length: u32,
    page_size: usize,
    access: Access,
    out: &mut SegmentList,
) -> Result<(), Status> {
    if !list.is_multiple_of(ENTRY_SIZE) {
        return Err(Status::PRP_OFFSET_INVALID);
    }
    let page = page_size as u64;
    let mut pages = u64::from(length).div_ceil(page);
    let unused = pages * page - u64::from(length);
    let mut run = Run { start: 0, length: 0 };
    loop {
        let room = (page - (list & (page - 1))) / ENTRY_SIZE;
        let chained = pages > room;
        let entries = if chained { room - 1 } else { pages };
        for_each_entry(space, list, entries, |entry| {
            check_page(entry, page_size)?;
            if !run.grow(entry, page) {
                space.translate(run.start, run.length as u32, access, out)?;
                run = Run { start: entry, length: page };
            }
            Ok(())
        })?;
        if !chained {
            return space.translate(run.start, (run.length - unused) as u32, access, out);
        }
        pages -= entries;
        list = read_entry(space, list + entries * ENTRY_SIZE)?;
        check_page(list, page_size)?;
    }
}

/// Pages that follow each other in the guest, to be looked up together.
#[derive(Clone, Copy)]
struct Run {
    start: u64,
    length: u64,
}

impl Run {
    /// Appends a page; returns false if `page` does not follow. Page 0 follows no page, not even the last of
    /// the address space.
    #[inline]
    fn grow(&mut self, page: u64, page_size: u64) -> bool {
        let follows = page.wrapping_sub(self.start) == self.length && page != 0;
        self.length += if follows { page_size } else { 0 };
        follows
    }
}

/// Calls `each` with `count` entries at `list`, which lie in one page of the guest; each entry is read once,
/// whatever the guest writes meanwhile.
#[inline]
fn for_each_entry(
    space: &Space,
    list: u64,
    count: u64,
    mut each: impl FnMut(u64) -> Result<(), Status>,
) -> Result<(), Status> {
    space.for_each_chunk(list, (count * ENTRY_SIZE) as usize, Access::Read, |chunk| {
        debug_assert!(u64::from(chunk.len()).is_multiple_of(ENTRY_SIZE), "regions are whole pages");
        let first = chunk.pointer().cast::<u64>();
        (0..chunk.len() as usize / size_of::<u64>()).try_for_each(|n| {
            // SAFETY: inside the chunk, and aligned: the list is, and regions are whole pages.
            each(unsafe { AtomicU64::from_ptr(first.add(n)) }.load(Ordering::Relaxed))
        })
    })
}

fn read_entry(space: &Space, iova: u64) -> Result<u64, Status> {
    let mut entry = 0;
    for_each_entry(space, iova, 1, |read| {
        entry = read;
        Ok(())
    })?;
    Ok(entry)
}
