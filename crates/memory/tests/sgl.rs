//! The SGL walker against one that takes descriptor after descriptor and byte after byte.

mod common;

use common::{GUEST_PAGES, Guest, Region, base, cases, regions};
use proptest::prelude::*;
use sluice_memory::{
    Access, Backing, MAX_SEGMENTS, MAX_SGL_DESCRIPTORS, MAX_SGL_SEGMENTS, PAGE_SIZE, Permissions,
    SegmentList, SharedRegion, Space, walk_sgl,
};
use sluice_nvme::{SglDescriptor, SglType, Status};
use zerocopy::{FromBytes, IntoBytes};

const SPAN: u64 = (GUEST_PAGES * PAGE_SIZE) as u64;

/// Result of the naive walker for an SGL: the guest address of every byte, or none for a bit bucket.
struct Naive<'a> {
    guest: &'a Guest,
    access: Access,
    length: usize,
    bytes: Vec<Option<u64>>,
    /// Every segment that was begun is memory from end to end. If not, a walker that reads ahead may find the
    /// error earlier than this one.
    readable: bool,
}

impl Naive<'_> {
    fn walk(&mut self, first: SglDescriptor) -> Result<(), Status> {
        let mut next = Some(first);
        while let Some(descriptor) = next {
            next = match descriptor.kind() {
                SglType::SEGMENT | SglType::LAST_SEGMENT => self.segment(descriptor)?,
                _ => self.data(descriptor).map(|()| None)?,
            };
        }
        if self.bytes.len() == self.length { Ok(()) } else { Err(Status::SGL_DATA_LENGTH_INVALID) }
    }

    fn segment(&mut self, pointer: SglDescriptor) -> Result<Option<SglDescriptor>, Status> {
        if pointer.sub_type() != 0 {
            return Err(Status::SGL_TYPE_INVALID);
        }
        if pointer.length == 0 || !pointer.length.is_multiple_of(16) || !pointer.address.is_multiple_of(8) {
            return Err(Status::INVALID_SGL_SEGMENT);
        }
        let count = u64::from(pointer.length / 16);
        let read = |n: u64| pointer.address.checked_add(16 * n).and_then(|at| self.guest.bytes::<16>(at));
        self.readable &= (0..count).all(|n| read(n).is_some());
        for n in 0..count {
            if self.bytes.len() == self.length {
                return Ok(None);
            }
            let read = pointer.address.checked_add(16 * n).and_then(|at| self.guest.bytes::<16>(at));
            let descriptor =
                SglDescriptor::read_from_bytes(&read.ok_or(Status::DATA_TRANSFER_ERROR)?).expect("16 bytes");
            let last = n + 1 == count;
            match descriptor.kind() {
                SglType::SEGMENT | SglType::LAST_SEGMENT if !last => return Err(Status::INVALID_SGL_COUNT),
                SglType::SEGMENT | SglType::LAST_SEGMENT if pointer.kind() == SglType::LAST_SEGMENT => {
                    return Err(Status::INVALID_SGL_SEGMENT);
                }
                SglType::SEGMENT | SglType::LAST_SEGMENT => return Ok(Some(descriptor)),
                _ => self.data(descriptor)?,
            }
        }
        Ok(None)
    }

    fn data(&mut self, descriptor: SglDescriptor) -> Result<(), Status> {
        let known = [SglType::DATA_BLOCK, SglType::BIT_BUCKET].contains(&descriptor.kind());
        if !known || descriptor.sub_type() != 0 {
            return Err(Status::SGL_TYPE_INVALID);
        }
        let bucket = descriptor.kind() == SglType::BIT_BUCKET;
        let ignored = bucket && self.access == Access::Read;
        for n in 0..u64::from(descriptor.length) {
            if ignored || self.bytes.len() == self.length {
                break;
            }
            let address = descriptor.address.checked_add(n);
            let found = address.filter(|&at| self.guest.locate(at, Some(self.access)).is_some());
            if !bucket && found.is_none() {
                return Err(Status::DATA_TRANSFER_ERROR);
            }
            self.bytes.push(found.filter(|_| !bucket));
        }
        Ok(())
    }
}

fn compare(guest: &mut Guest, first: SglDescriptor, length: u32, access: Access) {
    let mut list = SegmentList::new();
    let walked = walk_sgl(&guest.space, first.to_dptr(), length, access, &mut list);
    let mut naive = Naive { guest, access, length: length as usize, bytes: Vec::new(), readable: true };
    let wanted = naive.walk(first);
    let Naive { bytes, readable, .. } = naive;
    if !readable && walked == Err(Status::DATA_TRANSFER_ERROR) {
        return;
    }
    assert_eq!(walked, wanted);
    if wanted.is_ok() {
        assert_eq!(list.len_bytes(), length as usize);
        compare_bytes(guest, &list, &bytes, access);
    }
}

fn compare_bytes(guest: &mut Guest, list: &SegmentList, bytes: &[Option<u64>], access: Access) {
    let mut data: Vec<u8> = (0..bytes.len()).map(|n| (n ^ (n >> 7)) as u8 ^ 0xa5).collect();
    if access == Access::Write {
        assert_eq!(list.copy_from(0, &data), data.len());
        for (address, byte) in bytes.iter().zip(data).filter_map(|(at, byte)| at.map(|at| (at, byte))) {
            guest.expect_byte(address, byte);
        }
        assert!(guest.is_as_modelled());
    } else {
        assert_eq!(list.copy_to(0, &mut data), data.len());
        let wanted: Option<Vec<u8>> = bytes.iter().map(|at| at.and_then(|at| guest.byte(at))).collect();
        assert_eq!(Some(data), wanted);
    }
}

/// Returns a descriptor of data, usually a valid one.
fn data() -> impl Strategy<Value = SglDescriptor> {
    let kind = prop_oneof![80 => Just(0u8), 15 => Just(1), 1 => any::<u8>().prop_map(|kind| kind & 0xf)];
    let sub_type = prop_oneof![100 => Just(0u8), 1 => 0u8..16];
    let address = prop_oneof![100 => 0..SPAN, 1 => any::<u64>()];
    let length = prop_oneof![1 => Just(0u32), 6 => 1u32..600, 6 => 1u32..9000, 1 => any::<u32>()];
    (kind, sub_type, address, length).prop_map(|(kind, sub_type, address, length)| SglDescriptor {
        identifier: kind << 4 | sub_type,
        ..SglDescriptor::new(SglType(kind), address, length)
    })
}

/// Descriptors, their address, and the error of the descriptor that points at them.
type Segment = (Vec<SglDescriptor>, u64, Option<(u8, u32, u64)>);

fn segment() -> impl Strategy<Value = Segment> {
    let count = prop_oneof![8 => 1usize..6, 2 => 15usize..50];
    let descriptors = count.prop_flat_map(|count| prop::collection::vec(data(), count));
    let wrong = prop::option::weighted(0.05, (0u8..6, any::<u32>(), 0u64..16));
    (descriptors, 0..SPAN / 8, wrong).prop_map(|(descriptors, at, wrong)| (descriptors, at * 8, wrong))
}

/// Writes the chain into the guest, each segment but the last ending with a pointer to the next.
fn write_chain(guest: &mut Guest, segments: &[Segment]) -> SglDescriptor {
    let mut next: Option<SglDescriptor> = None;
    for (descriptors, at, wrong) in segments.iter().rev() {
        let kind = if next.is_none() { SglType::LAST_SEGMENT } else { SglType::SEGMENT };
        let all: Vec<SglDescriptor> = descriptors.iter().copied().chain(next).collect();
        let mut address = guest.base.wrapping_add(*at);
        guest.poke(address, all.as_bytes());
        let mut length = all.as_bytes().len() as u32;
        let mut kind = kind;
        match *wrong {
            Some((0, any, _)) => length = any,
            Some((1, _, off)) => address = address.wrapping_add(off),
            Some((2, any, _)) => kind = SglType((any & 0xf) as u8),
            Some((3, _, _)) => length = 0,
            Some((4, any, _)) => length = length.wrapping_sub(16 * (any % 3)),
            Some((_, any, _)) => length = length.wrapping_add(16 * (any % 3)),
            None => {}
        }
        next = Some(SglDescriptor::new(kind, address, length));
    }
    next.expect("at least one segment")
}

proptest! {
    #![proptest_config(cases(1500))]

    /// Conformance: Base 4.1.2, SGLs mean what they say, whatever the segments.
    #[test]
    fn agrees_with_the_naive_walker(
        regions in regions(),
        base in base(),
        segments in prop::collection::vec(segment(), 1..5),
        length in prop_oneof![1u32..2000, 1u32..60_000],
        write in any::<bool>(),
    ) {
        let mut guest = Guest::new(base, &regions);
        let rebase = |d: &SglDescriptor| SglDescriptor { address: base.wrapping_add(d.address), ..*d };
        let segments: Vec<Segment> = segments
            .iter()
            .map(|(descriptors, at, wrong)| (descriptors.iter().map(rebase).collect(), *at, *wrong))
            .collect();
        let access = if write { Access::Write } else { Access::Read };
        let first = write_chain(&mut guest, &segments);
        compare(&mut guest, first, length, access);
        // A descriptor of data alone.
        compare(&mut guest, segments[0].0[0], length, access);
    }
}

/// Returns a guest without holes.
fn plain() -> Guest {
    let whole = |first, file| Region {
        first,
        pages: 48,
        file: Some((file, 0)),
        permissions: Permissions::READ_WRITE,
    };
    Guest::new(0, &[whole(0, 0), whole(48, 1)])
}

fn walk(guest: &Guest, first: SglDescriptor, length: u32) -> Result<SegmentList, Status> {
    let mut list = SegmentList::new();
    walk_sgl(&guest.space, first.to_dptr(), length, Access::Write, &mut list)?;
    Ok(list)
}

#[test]
fn a_segment_that_points_at_itself_ends() {
    let mut guest = plain();
    let itself = SglDescriptor::new(SglType::SEGMENT, 4096, 16);
    guest.poke(4096, itself.as_bytes());
    assert_eq!(walk(&guest, itself, 512).err(), Some(Status::INVALID_SGL_COUNT));
}

#[test]
fn a_segment_of_four_billion_nothings_ends() {
    let mut guest = plain();
    // Every byte zero: data blocks of no bytes.
    guest.poke(0, &vec![0; 48 * PAGE_SIZE]);
    let bomb = SglDescriptor::new(SglType::LAST_SEGMENT, 0, u32::MAX - 15);
    assert_eq!(walk(&guest, bomb, 512).err(), Some(Status::INVALID_SGL_COUNT));
}

/// Checks a bug found by fuzzing: descriptors are read in batches, and one batch ended exactly with the
/// address space.
#[test]
fn a_segment_does_not_go_on_at_the_beginning_of_the_address_space() {
    let page = PAGE_SIZE as u64;
    let ram = SharedRegion::new("guest", 2 * PAGE_SIZE).expect("a memfd");
    let mut space = Space::new();
    for (iova, offset) in [(0, 0), (page.wrapping_neg(), page)] {
        let backing = Backing::File { fd: common::fd(&ram), offset };
        space.map(iova, page, Permissions::READ_WRITE, backing).expect("a region");
    }
    // Sixteen blocks of no bytes up to the last address there is; at the first address, a valid block.
    let block = SglDescriptor::new(SglType::DATA_BLOCK, 0x800, 512);
    ram.write(0, block.as_bytes());
    let walk = |descriptors: u32| {
        let sgl = SglDescriptor::new(SglType::LAST_SEGMENT, 256u64.wrapping_neg(), 16 * descriptors);
        walk_sgl(&space, sgl.to_dptr(), 512, Access::Write, &mut SegmentList::new())
    };
    assert_eq!(walk(17), Err(Status::DATA_TRANSFER_ERROR));
    // The segment may end there.
    assert_eq!(walk(16), Err(Status::SGL_DATA_LENGTH_INVALID));
    ram.write(2 * PAGE_SIZE - 16, block.as_bytes());
    assert_eq!([walk(16), walk(17)], [Ok(()), Ok(())], "what comes behind is not needed");
}

#[test]
fn as_many_as_the_limits_permit() {
    let mut guest = plain();
    let mut block = |n: usize, address: u64| {
        let descriptor = SglDescriptor::new(SglType::DATA_BLOCK, address, 1);
        guest.poke(0x10000 + 16 * n as u64, descriptor.as_bytes());
    };
    // Bytes that do not touch, as many as a list holds and one more; then all at one address.
    (0..MAX_SEGMENTS + 1).for_each(|n| block(n, 2 * n as u64));
    let sgl = |count: usize| SglDescriptor::new(SglType::LAST_SEGMENT, 0x10000, 16 * count as u32);
    let list = walk(&guest, sgl(MAX_SEGMENTS), MAX_SEGMENTS as u32).expect("within the limit");
    assert_eq!(list.as_slice().len(), MAX_SEGMENTS);
    let one_more = walk(&guest, sgl(MAX_SEGMENTS + 1), MAX_SEGMENTS as u32 + 1);
    assert_eq!(one_more.err(), Some(Status::INVALID_SGL_COUNT));

    let mut block = |n: usize, address: u64| {
        let descriptor = SglDescriptor::new(SglType::DATA_BLOCK, address, 1);
        guest.poke(0x10000 + 16 * n as u64, descriptor.as_bytes());
    };
    (0..MAX_SGL_DESCRIPTORS + 16).for_each(|n| block(n, n as u64));
    let most = MAX_SGL_DESCRIPTORS;
    assert!(walk(&guest, sgl(most), most as u32).is_ok(), "neighbours are one segment");
    assert_eq!(walk(&guest, sgl(most + 1), most as u32 + 1).err(), Some(Status::INVALID_SGL_COUNT));
}

#[test]
fn as_long_a_chain_as_the_limit_permits() {
    let mut guest = plain();
    let mut chain = |links: usize| {
        let mut next = SglDescriptor::new(SglType::DATA_BLOCK, 0x8000, 512);
        for n in 0..links {
            let at = 0x10000 + 16 * n as u64;
            guest.poke(at, next.as_bytes());
            let kind = if n == 0 { SglType::LAST_SEGMENT } else { SglType::SEGMENT };
            next = SglDescriptor::new(kind, at, 16);
        }
        walk(&guest, next, 512).map(|list| list.len_bytes())
    };
    assert_eq!(chain(MAX_SGL_SEGMENTS), Ok(512));
    assert_eq!(chain(MAX_SGL_SEGMENTS + 1), Err(Status::INVALID_SGL_COUNT));
}

#[test]
fn bit_buckets() {
    let mut guest = plain();
    let all = [
        SglDescriptor::new(SglType::DATA_BLOCK, 0x8000, 512),
        SglDescriptor::new(SglType::BIT_BUCKET, 0, 512),
        SglDescriptor::new(SglType::DATA_BLOCK, 0x9000, 512),
    ];
    guest.poke(0, all.as_bytes());
    let sgl = SglDescriptor::new(SglType::LAST_SEGMENT, 0, 48);
    let list = walk(&guest, sgl, 1536).expect("enough");
    assert!(list.as_slice()[1].is_bit_bucket() && list.has_bit_bucket() && !list.is_aligned(512));
    // For a write the bucket is no data.
    let mut source = SegmentList::new();
    let enough = walk_sgl(&guest.space, sgl.to_dptr(), 1024, Access::Read, &mut source);
    assert_eq!((enough, source.len_bytes(), source.has_bit_bucket()), (Ok(()), 1024, false));
    source.clear();
    let short = walk_sgl(&guest.space, sgl.to_dptr(), 1536, Access::Read, &mut source);
    assert_eq!(short, Err(Status::SGL_DATA_LENGTH_INVALID));
}
