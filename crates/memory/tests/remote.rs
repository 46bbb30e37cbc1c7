//! Memory that only its client reaches: with bounce buffers a walk finds the same as in shared memory.

mod common;

use common::{GUEST_PAGES, Guest, Region, base, cases, regions};
use proptest::prelude::*;
use sluice_memory::{
    Access, Backing, BounceBuffers, MAX_MISSING, PAGE_SIZE, Role, SegmentList, SharedRegion, Space, walk_prp,
    walk_sgl,
};
use sluice_nvme::{SglDescriptor, SglType, Status};
use zerocopy::IntoBytes;

const PAGE: u64 = PAGE_SIZE as u64;

/// Maps the guest once more, with some of its regions as reachable by the client alone.
fn map(guest: &Guest, regions: &[Region], remote: u64) -> Space {
    let mut space = Space::new();
    for (n, region) in regions.iter().enumerate() {
        let backing = match region.file {
            None => Backing::None,
            Some(_) if remote >> (n % 64) & 1 == 1 => Backing::Remote,
            Some((file, page)) => guest.backing(file, page),
        };
        let (iova, length) = (guest.base + region.first as u64 * PAGE, region.pages as u64 * PAGE);
        space.map(iova, length, region.permissions, backing).expect("a region that does not overlap");
    }
    space
}

/// Walks until nothing is missing any more, setting a bounce buffer for each missing range. Returns the
/// outcome and the bytes found.
fn walk(
    space: &Space,
    guest: &Guest,
    staging: &SharedRegion,
    walk: impl Fn(&Space, &mut SegmentList) -> Result<(), Status>,
) -> (Result<(), Status>, Vec<u8>) {
    let (mut used, mut bounce_buffers) = (0, BounceBuffers::default());
    loop {
        let mut data = SegmentList::new();
        let held = space.use_bounce_buffers(bounce_buffers);
        let outcome = walk(space, &mut data);
        if outcome == Err(Status::DATA_TRANSFER_ERROR) {
            space.survey(|| {
                let _ = walk(space, &mut SegmentList::new());
            });
        }
        bounce_buffers = space.use_bounce_buffers(held);
        if !space.has_missing() {
            let mut bytes = vec![0; data.len_bytes()];
            data.copy_to(0, &mut bytes);
            return (outcome, bytes);
        }
        let missing = space.take_missing();
        assert!(missing.len() <= MAX_MISSING);
        for missing in missing {
            let mut bytes = vec![0; missing.length as usize];
            // The previous contents of a destination are copied as well, to check that the right offset is
            // found.
            guest.copy_out(missing.address, &mut bytes);
            let at = used + (missing.address % PAGE) as usize;
            staging.write(at, &bytes);
            bounce_buffers.insert(missing, staging.segment(at, missing.length));
            used = (at + bytes.len()).next_multiple_of(PAGE_SIZE);
            assert!(missing.role != Role::List || bytes.len().is_multiple_of(PAGE_SIZE));
        }
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn prps_lead_to_the_same_bytes(
        base in base(), regions in regions(), remote in any::<u64>(), writes in any::<bool>(),
        first in 0..GUEST_PAGES as u64, offset in 0..1024u64, list in 0..GUEST_PAGES as u64, at in 0..512u64,
        pages in prop::collection::vec(0..GUEST_PAGES as u64, 0..24), rest in 1..=PAGE as u32,
    ) {
        let mut guest = Guest::new(base, &regions);
        let address = |page: u64| base.wrapping_add(page * PAGE);
        let (prp1, prp2) = (address(first) + offset * 4, address(list) + at * 8);
        let entries: Vec<u64> = pages.iter().map(|&page| address(page)).collect();
        // The chain, if there is one, goes to the address in the last entry.
        guest.poke(prp2, entries.as_bytes());
        let length = (PAGE - offset * 4) as u32 + pages.len() as u32 * PAGE_SIZE as u32 + rest - PAGE as u32 * u32::from(!pages.is_empty());
        let access = if writes { Access::Write } else { Access::Read };
        let run = |space: &Space, out: &mut SegmentList| walk_prp(space, prp1, prp2, length, PAGE_SIZE, access, out);
        let staging = SharedRegion::new("staging", 4 << 20).expect("memory");
        let expected = walk(&guest.space, &guest, &staging, run);
        let space = map(&guest, &regions, remote);
        prop_assert_eq!(walk(&space, &guest, &staging, run), expected);
    }

    #[test]
    fn sgls_lead_to_the_same_bytes(
        base in base(), regions in regions(), remote in any::<u64>(), writes in any::<bool>(),
        list in 0..GUEST_PAGES as u64, at in 0..512u64,
        blocks in prop::collection::vec((0..GUEST_PAGES as u64 * PAGE, 1..9000u32), 1..40),
    ) {
        let mut guest = Guest::new(base, &regions);
        let list = base.wrapping_add(list * PAGE) + at * 8;
        let describe = |&(at, length): &(u64, u32)| {
            SglDescriptor::new(SglType::DATA_BLOCK, base.wrapping_add(at), length)
        };
        let descriptors: Vec<SglDescriptor> = blocks.iter().map(describe).collect();
        guest.poke(list, descriptors.as_bytes());
        let bytes = (descriptors.len() * SglDescriptor::SIZE) as u32;
        let dptr = SglDescriptor::new(SglType::LAST_SEGMENT, list, bytes).to_dptr();
        let length = blocks.iter().map(|(_, length)| length).sum();
        let access = if writes { Access::Write } else { Access::Read };
        let run = |space: &Space, out: &mut SegmentList| walk_sgl(space, dptr, length, access, out);
        let staging = SharedRegion::new("staging", 4 << 20).expect("memory");
        let expected = walk(&guest.space, &guest, &staging, run);
        let space = map(&guest, &regions, remote);
        prop_assert_eq!(walk(&space, &guest, &staging, run), expected);
    }
}

#[test]
fn without_a_survey_nothing_is_wanted_and_nothing_is_there() {
    let mut space = Space::new();
    let both = sluice_memory::Permissions::READ_WRITE;
    space.map(0, 4 * PAGE, both, Backing::Remote).expect("a map");
    let mut out = SegmentList::new();
    assert_eq!(space.translate(8, 16, Access::Read, &mut out), Err(Status::DATA_TRANSFER_ERROR));
    assert!(!space.has_missing() && out.is_empty());
    space.survey(|| assert_eq!(space.translate(8, 16, Access::Read, &mut out), Ok(())));
    assert!(space.has_missing() && out.is_empty());
    assert!(space.is_remote(PAGE, 3 * PAGE_SIZE, Access::Write));
    assert!(!space.is_remote(PAGE, 4 * PAGE_SIZE, Access::Write));
}
