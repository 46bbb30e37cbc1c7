//! The PRP walker against one that finds every byte by itself.

mod common;

use common::{GUEST_PAGES, Guest, base, cases, regions};
use proptest::prelude::*;
use sluice_memory::{Access, Backing, PAGE_SIZE, Permissions, SegmentList, SharedRegion, Space, walk_prp};
use sluice_nvme::Status;
use zerocopy::IntoBytes;

const PAGE: u64 = PAGE_SIZE as u64;

/// Returns the entry of page `n` of `count` pages, in the list at `list` (Base 2.0, 4.1.1).
fn naive_entry(guest: &Guest, list: u64, n: u64, count: u64, page: u64) -> Result<u64, Status> {
    let read = |at: u64| guest.bytes(at).map(u64::from_le_bytes).ok_or(Status::DATA_TRANSFER_ERROR);
    let room = (page - list % page) / 8;
    if count <= room || n < room - 1 {
        return read(list + 8 * n);
    }
    let next = read(list + 8 * (room - 1))?;
    match next % page {
        0 => naive_entry(guest, next, n - (room - 1), count - (room - 1), page),
        _ => Err(Status::PRP_OFFSET_INVALID),
    }
}

/// Returns the guest address of every byte, or all errors.
fn naive(
    guest: &Guest,
    [prp1, prp2]: [u64; 2],
    length: u64,
    page: u64,
    access: Access,
) -> Result<Vec<u64>, Vec<Status>> {
    let first = length.min(page - prp1 % page);
    let count = (length - first).div_ceil(page);
    let mut errors = Vec::new();
    let mut addresses = Vec::new();
    let no_list = count > 1 && !prp2.is_multiple_of(8);
    if !prp1.is_multiple_of(4) || no_list {
        errors.push(Status::PRP_OFFSET_INVALID);
    }
    let mut starts = vec![(prp1, first)];
    for n in if no_list { 0..0 } else { 0..count } {
        let bytes = (length - first - n * page).min(page);
        let entry = if count == 1 { Ok(prp2) } else { naive_entry(guest, prp2, n, count, page) };
        match entry {
            Ok(entry) if entry % page == 0 => starts.push((entry, bytes)),
            Ok(_) => errors.push(Status::PRP_OFFSET_INVALID),
            Err(status) => errors.push(status),
        }
    }
    for address in starts.iter().flat_map(|&(start, bytes)| (0..bytes).map(move |n| start.checked_add(n))) {
        match address.filter(|&address| guest.locate(address, Some(access)).is_some()) {
            Some(address) => addresses.push(address),
            None => errors.push(Status::DATA_TRANSFER_ERROR),
        }
    }
    if errors.is_empty() { Ok(addresses) } else { Err(errors) }
}

/// Walks with both walkers and compares status, bytes, and the destinations of bytes.
fn compare(guest: &mut Guest, prps: [u64; 2], length: u32, page: u64, access: Access) {
    let mut list = SegmentList::new();
    let walked = walk_prp(&guest.space, prps[0], prps[1], length, page as usize, access, &mut list);
    let addresses = match naive(guest, prps, u64::from(length), page, access) {
        Ok(addresses) => addresses,
        Err(errors) => {
            let status = walked.expect_err("the naive walker found an error");
            assert!(errors.contains(&status), "{status:?}, not one of {errors:?}");
            return;
        }
    };
    assert_eq!(walked, Ok(()));
    assert_eq!(list.len_bytes(), length as usize);
    compare_bytes(guest, &list, &addresses, access);
}

fn compare_bytes(guest: &mut Guest, list: &SegmentList, addresses: &[u64], access: Access) {
    let mut data: Vec<u8> = (0..addresses.len()).map(|n| (n ^ (n >> 7)) as u8 ^ 0x5a).collect();
    if access == Access::Write {
        assert_eq!(list.copy_from(0, &data), data.len());
        addresses.iter().zip(&data).for_each(|(&address, &byte)| guest.expect_byte(address, byte));
        assert!(guest.is_as_modelled());
    } else {
        assert_eq!(list.copy_to(0, &mut data), data.len());
        let wanted: Option<Vec<u8>> = addresses.iter().map(|&address| guest.byte(address)).collect();
        assert_eq!(Some(data), wanted);
    }
}

/// Returns an entry: usually a page of the guest, sometimes with an offset, sometimes anything.
fn entry() -> impl Strategy<Value = u64> {
    prop_oneof![
        120 => (0..GUEST_PAGES as u64 + 1).prop_map(|page| page * PAGE),
        1 => 0..GUEST_PAGES as u64 * PAGE,
        1 => any::<u64>(),
    ]
}

/// Returns a list of entries; half of them continue from page to page.
fn entries() -> impl Strategy<Value = Vec<(u64, bool)>> {
    prop::collection::vec((entry(), any::<bool>()), 600)
}

/// Moves entries to pages of this size, from this address on.
fn lay_out(drawn: Vec<(u64, bool)>, page: u64, base: u64) -> Vec<u64> {
    let mut entries: Vec<u64> = Vec::with_capacity(drawn.len());
    for (entry, follow) in drawn {
        let next = entries.last().map(|last| last.wrapping_add(page));
        let entry = if entry % PAGE == 0 { entry / page * page } else { entry };
        entries.push(next.filter(|next| follow && next % page == 0).unwrap_or(entry));
    }
    entries.into_iter().map(|entry| base.wrapping_add(entry)).collect()
}

proptest! {
    #![proptest_config(cases(400))]

    /// Conformance: Base 4.1.1, PRP lists are followed from page to page, whatever the sizes and offsets.
    /// Conformance: Base 3.1.3.5, PRPs name pages of the size that CC.MPS says.
    #[test]
    fn agrees_with_the_naive_walker(
        regions in regions(),
        base in base(),
        page in prop::sample::select(vec![PAGE, PAGE, 2 * PAGE, 4 * PAGE]),
        entries in entries(),
        prp1 in 0..GUEST_PAGES as u64 * PAGE,
        // Near the end of a page, so that short lists are chained too.
        list_page in 0..GUEST_PAGES as u64,
        list_slot in prop_oneof![0u64..512, 504u64..512],
        odd in prop_oneof![30 => Just(0u64), 1 => 1u64..8],
        next_page in 0..GUEST_PAGES as u64,
        length in prop_oneof![1u32..5000, 1u32..20_000, 1u32..300_000],
        write in any::<bool>(),
    ) {
        let mut guest = Guest::new(base, &regions);
        let prp1 = base + prp1 / 4 * 4 + odd % 4;
        let access = if write { Access::Write } else { Access::Read };
        let list = base + list_page * PAGE + list_slot * 8 + odd;
        let next = base + next_page * PAGE / page * page;
        let entries = lay_out(entries, page, base);
        let room = (page - list % page).div_ceil(8) as usize;
        guest.poke(next, entries[..512].as_bytes());
        guest.poke(list, entries[..room.min(80)].as_bytes());
        if room <= 80 {
            guest.poke(list + 8 * (room as u64 - 1), &next.to_le_bytes());
        }
        compare(&mut guest, [prp1, list], length, page, access);
        // The same second pointer as a page, for a transfer of two.
        let two = length.min((2 * page - prp1 % page) as u32);
        compare(&mut guest, [prp1, list / page * page], two, page, access);
    }
}

/// Returns a guest of 8 MiB in one region.
fn large() -> (SharedRegion, Space) {
    let ram = SharedRegion::new("guest", 8 << 20).expect("a memfd");
    let mut space = Space::new();
    let backing = Backing::File { fd: common::fd(&ram), offset: 0 };
    space.map(0, 8 << 20, Permissions::READ_WRITE, backing).expect("a region");
    (ram, space)
}

fn walk(space: &Space, prp1: u64, prp2: u64, length: u32) -> Result<SegmentList, Status> {
    let mut list = SegmentList::new();
    walk_prp(space, prp1, prp2, length, PAGE_SIZE, Access::Write, &mut list)?;
    Ok(list)
}

#[test]
fn three_lists_in_a_row() {
    let (ram, space) = large();
    // 1,200 pages from 2 MiB on: 511 entries and a link, 511 and a link, 178.
    for n in 0..1200usize {
        let at = n / 511 * PAGE_SIZE + n % 511 * 8;
        ram.write(at, &((2 << 20) + n as u64 * PAGE).to_le_bytes());
    }
    (0..2).for_each(|n| ram.write(n * PAGE_SIZE + 511 * 8, &((n as u64 + 1) * PAGE).to_le_bytes()));
    let list = walk(&space, (2 << 20) - PAGE, 0, 1201 * PAGE as u32).expect("memory");
    assert_eq!(list.as_slice().len(), 1, "all neighbours");
    assert_eq!(list.len_bytes(), 1201 * PAGE_SIZE);
}

#[test]
fn the_last_page_and_the_first() {
    let (ram, mut space) = large();
    let last = PAGE.wrapping_neg();
    let backing = Backing::File { fd: common::fd(&ram), offset: 3 * PAGE };
    space.map(last, PAGE, Permissions::READ_WRITE, backing).expect("a region");
    ram.write(PAGE_SIZE, &[last, 0, 0].map(u64::to_le_bytes).concat());
    let list = walk(&space, 2 * PAGE, PAGE, 4 * PAGE as u32).expect("memory");
    let lengths: Vec<u32> = list.as_slice().iter().map(|segment| segment.len()).collect();
    assert_eq!(lengths, [2 * PAGE as u32, PAGE as u32, PAGE as u32]);
}

#[test]
fn the_longest_transfer_there_is() {
    let fd = common::memfd(6 << 30);
    let mut space = Space::new();
    let backing = Backing::File { fd: fd.try_clone().expect("a descriptor"), offset: 0 };
    space.map(0, 6 << 30, Permissions::READ_WRITE, backing).expect("a region");
    // Two MiB of entries, for a million pages and more; the lists are at the end.
    let (lists, pages) = (5u64 << 30, 1u64 << 20);
    for n in 0..pages {
        let at = lists + n / 511 * PAGE + n % 511 * 8;
        space.write(at, &(n * PAGE).to_le_bytes()).expect("memory");
    }
    for n in 0..pages / 511 {
        let link = lists + n * PAGE + 511 * 8;
        space.write(link, &(lists + (n + 1) * PAGE).to_le_bytes()).expect("memory");
    }
    let mut all = SegmentList::new();
    let walked = walk_prp(&space, 4 << 30, lists, u32::MAX, PAGE_SIZE, Access::Read, &mut all);
    assert_eq!((walked, all.len_bytes()), (Ok(()), u32::MAX as usize));
}

#[test]
fn a_list_that_points_at_itself_ends() {
    let (ram, space) = large();
    (0..512).for_each(|n| ram.write(n * 8, &0u64.to_le_bytes()));
    // All entries, the link too, are page 0: the same page again and again is not contiguous.
    assert_eq!(walk(&space, 0, 0, 16 << 20).err(), Some(Status::INTERNAL_ERROR));
}

/// Conformance: Base 4.1.1, the last entry of a list's page is a link only if more data follow.
#[test]
fn a_full_last_entry_is_not_a_link() {
    let (ram, space) = large();
    (0..512).for_each(|n| ram.write(n * 8, &(PAGE + n as u64 * PAGE).to_le_bytes()));
    let list = walk(&space, 2 << 20, 0, 513 * PAGE as u32).expect("the list is exactly one page");
    assert_eq!(list.len_bytes(), 513 * PAGE_SIZE);
    // With one page more the last entry is the link to the rest of the list: page 512, full of zeros.
    ram.write(0x20_0000, &[0; 8]);
    assert!(walk(&space, 2 << 20, 0, 514 * PAGE as u32).is_ok());
}

#[test]
fn offsets_that_no_entry_may_have() {
    let (ram, space) = large();
    let refused = |prp1, prp2, length| walk(&space, prp1, prp2, length).err();
    assert_eq!(refused(2, 0, 512), Some(Status::PRP_OFFSET_INVALID));
    assert_eq!(refused(0, 4100, 8192), Some(Status::PRP_OFFSET_INVALID));
    assert_eq!(refused(0, 4100, 12288), Some(Status::PRP_OFFSET_INVALID));
    ram.write(4096, &[0x1000u64, 0x2008].map(u64::to_le_bytes).concat());
    assert_eq!(refused(0, 4096, 12288), Some(Status::PRP_OFFSET_INVALID));
    // A link with an offset.
    ram.write(8184, &0x3008u64.to_le_bytes());
    assert_eq!(refused(0, 8184, 12288), Some(Status::PRP_OFFSET_INVALID));
    // An entry that is not needed is not checked.
    assert_eq!(refused(0, u64::MAX, 4096), None);
}
