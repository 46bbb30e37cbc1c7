//! Lists, arenas and shared regions.

mod common;

use common::{cases, memfd};
use proptest::prelude::*;
use rustix::fs::SealFlags;
use sluice_memory::{
    Arena, Buffers, MAX_SEGMENTS, OutOfRange, PAGE_SIZE, Secret, Segment, SegmentList, SharedArray,
    SharedRegion, TooManySegments,
};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

const REGION: usize = 256 << 10;

/// Returns parts of a region, or bit buckets, and the region offset of each of their bytes.
fn list_of(region: &SharedRegion, pieces: &[(usize, u32, bool)]) -> (SegmentList, Vec<Option<usize>>) {
    let (mut list, mut places) = (SegmentList::new(), Vec::new());
    for &(offset, length, bucket) in pieces {
        let segment = if bucket { Segment::bit_bucket(length) } else { region.segment(offset, length) };
        list.push(segment).expect("few pieces");
        places.extend((offset..offset + length as usize).map(|at| (!bucket).then_some(at)));
    }
    (list, places)
}

fn pieces() -> impl Strategy<Value = Vec<(usize, u32, bool)>> {
    let piece = (0..REGION / 2, prop_oneof![0u32..100, 0u32..9000], prop::bool::weighted(0.1), any::<bool>());
    prop::collection::vec(piece, 0..12).prop_map(|drawn| {
        let mut pieces: Vec<(usize, u32, bool)> = Vec::new();
        for (offset, length, bucket, follow) in drawn {
            // Neighbours, half of the time.
            let end = pieces.last().map(|&(offset, length, _)| offset + length as usize);
            let offset = end.filter(|_| follow).unwrap_or(offset);
            if offset + length as usize <= REGION {
                pieces.push((offset, length, bucket));
            }
        }
        pieces
    })
}

fn noise(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|n| (((n + seed) * 0x9e37) >> 7) as u8).collect()
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn a_region_gathers_and_scatters_what_a_list_would(pieces in pieces(), from in 0usize..40_000, length in 0usize..60_000) {
        let host = SharedRegion::new("host", REGION).expect("a memfd");
        host.write(0, &noise(REGION, 1));
        let (list, _) = list_of(&host, &pieces);
        let private = SharedRegion::new("private", 8192 + 60_000).expect("a memfd");
        let mut expected = vec![0; length];
        let moved = list.copy_to(from, &mut expected);
        prop_assert_eq!(private.gather(8192, &list, from, length), moved);
        let mut gathered = vec![0; length];
        private.read(8192, &mut gathered);
        prop_assert_eq!(&gathered, &expected);

        private.write(8192, &noise(length, 7));
        let other = SharedRegion::new("other", REGION).expect("a memfd");
        other.write(0, &noise(REGION, 1));
        let (twin, _) = list_of(&other, &pieces);
        prop_assert_eq!(private.scatter(8192, &list, from, length), moved);
        twin.copy_from(from, &noise(length, 7)[..moved]);
        let (mut seen, mut wanted) = (vec![0; REGION], vec![0; REGION]);
        host.read(0, &mut seen);
        other.read(0, &mut wanted);
        prop_assert!(seen == wanted);
        private.fill(8192, length, 0);
        private.read(8192, &mut gathered);
        prop_assert!(gathered.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_list_moves_the_bytes_it_should(pieces in pieces(), offset in 0usize..40_000, length in 0usize..60_000) {
        let region = SharedRegion::new("list", REGION).expect("a memfd");
        let mut model = noise(REGION, 1);
        region.write(0, &model);
        let (list, places) = list_of(&region, &pieces);
        prop_assert_eq!(list.len_bytes(), places.len());
        prop_assert_eq!(list.as_slice().iter().map(|s| s.len() as usize).sum::<usize>(), places.len());
        let inside = places.get(offset..).unwrap_or_default();
        let inside = &inside[..length.min(inside.len())];

        let mut read = vec![1; length];
        prop_assert_eq!(list.copy_to(offset, &mut read), inside.len());
        for (byte, place) in read.iter().zip(inside) {
            prop_assert_eq!(*byte, place.map_or(0, |at| model[at]));
        }
        let source = noise(length, 5);
        prop_assert_eq!(list.copy_from(offset, &source), inside.len());
        inside.iter().zip(&source).for_each(|(place, byte)| if let Some(at) = place { model[*at] = *byte });
        let mut now = vec![0; REGION];
        region.read(0, &mut now);
        prop_assert!(now == model);

        let mut part = SegmentList::new();
        let sliced = list.slice(offset, length, &mut part);
        prop_assert_eq!(sliced.is_ok(), offset + length <= places.len());
        if sliced.is_ok() {
            part.fill(0, usize::MAX, 0xee);
            inside.iter().flatten().for_each(|at| model[*at] = 0xee);
            region.read(0, &mut now);
            prop_assert!(now == model);
        }
    }

    #[test]
    fn an_arena_is_a_vec(
        pieces in pieces(),
        // Both small arenas and arenas that are written past the caches.
        length in prop_oneof![200_000usize..300_000, (64usize << 20)..(64 << 20) + 9000],
        offset in prop_oneof![0u64..200_000, 0u64..300_000, any::<u64>()],
    ) {
        let arena = Arena::new(length).expect("memory");
        let region = SharedRegion::new("list", REGION).expect("a memfd");
        let mut guest = noise(REGION, 3);
        region.write(0, &guest);
        let (list, places) = list_of(&region, &pieces);
        let fits = offset.checked_add(places.len() as u64).is_some_and(|end| end <= length as u64);
        // Bytes before and behind the write, to check that they stay.
        let mut model = noise(300_000.min(length), 9);
        arena.write(0, &model).expect("inside");
        prop_assert_eq!(arena.write_from(offset, &list).is_ok(), fits);
        if fits {
            let start = offset as usize;
            if model.len() < start + places.len() {
                model.resize(start + places.len(), 0);
            }
            places.iter().enumerate().filter_map(|(n, at)| at.map(|at| (n, at))).for_each(|(n, at)| model[start + n] = guest[at]);
        }
        let mut now = vec![0; model.len()];
        arena.read(0, &mut now).expect("inside");
        prop_assert!(now == model);

        // And back, from another offset.
        let from = offset / 2;
        let fits = from + places.len() as u64 <= model.len() as u64;
        if fits {
            arena.prefetch(from, places.len());
            arena.read_into(from, &list).expect("inside");
            places.iter().enumerate().filter_map(|(n, at)| at.map(|at| (n, at))).for_each(|(n, at)| guest[at] = model[from as usize + n]);
            let mut now = vec![0; REGION];
            region.read(0, &mut now);
            prop_assert!(now == guest);
        }
    }

    #[test]
    fn an_arena_zeroes_and_resizes(steps in prop::collection::vec((any::<bool>(), 0usize..9 << 20, 0usize..9 << 20), 1..8)) {
        let mut arena = Arena::new(1 << 20).expect("memory");
        let mut model = vec![0u8; 1 << 20];
        for (n, &(resize, at, length)) in steps.iter().enumerate() {
            if resize {
                arena.resize(length).expect("memory");
                model.resize(length, 0);
                let fresh = noise(length / 2, n);
                arena.write((length / 4) as u64, &fresh).expect("inside");
                model[length / 4..][..fresh.len()].copy_from_slice(&fresh);
            } else {
                let fits = at + length <= model.len();
                prop_assert_eq!(arena.zero(at as u64, length).is_ok(), fits);
                model.get_mut(at..at + length).into_iter().for_each(|range| range.fill(0));
            }
            prop_assert_eq!(arena.len(), model.len());
            let mut now = vec![1; model.len()];
            arena.read(0, &mut now).expect("inside");
            prop_assert!(now == model);
        }
    }
}

/// Checks long and contiguous copies, which are done in two halves, or past the caches.
#[test]
fn large_copies_at_all_alignments() {
    let arena = Arena::new(80 << 20).expect("memory");
    let region = SharedRegion::new("large", 1 << 20).expect("a memfd");
    let source = noise(1 << 20, 2);
    region.write(0, &source);
    for (skew, length) in
        [(0, 512), (0, 4096), (0, 65536), (0, 131_072), (1, 70_001), (63, 1 << 19), (64, 65_600)]
    {
        for at in [0u64, 1, 4097, 70 << 20] {
            let list = list_of(&region, &[(skew, length, false)]).0;
            arena.write_from(at, &list).expect("inside");
            let mut bytes = vec![0; length as usize];
            arena.read(at, &mut bytes).expect("inside");
            assert!(bytes == source[skew..][..length as usize]);
            region.write(skew, &vec![0; length as usize]);
            arena.read_into(at, &list).expect("inside");
            region.read(skew, &mut bytes);
            assert!(bytes == source[skew..][..length as usize]);
        }
    }
}

#[test]
fn a_list_holds_so_many_and_no_more() {
    let region = SharedRegion::new("list", REGION).expect("a memfd");
    let mut list = SegmentList::new();
    for _ in 0..2 {
        for n in 0..MAX_SEGMENTS {
            list.push(region.segment(n * 128, 64)).expect("within the limit");
        }
        assert_eq!(list.push(region.segment(0, 64)), Err(TooManySegments));
        // A neighbour adds no segment, nor does an empty one.
        assert_eq!(list.push(region.segment((MAX_SEGMENTS - 1) * 128 + 64, 8)), Ok(()));
        assert_eq!(list.push(Segment::bit_bucket(0)), Ok(()));
        assert_eq!((list.as_slice().len(), list.len_bytes()), (MAX_SEGMENTS, MAX_SEGMENTS * 64 + 8));
        assert_eq!(list.as_iovecs()[1].iov_len, 64);
        list.clear();
        assert!(list.is_empty() && list.as_slice().is_empty());
    }
    // Neighbours that together are longer than a segment can be.
    (0..2).for_each(|_| list.push(Segment::bit_bucket(u32::MAX)).expect("two segments"));
    assert_eq!((list.as_slice().len(), list.len_bytes()), (2, 2 * u32::MAX as usize));
}

#[test]
fn alignment_is_of_address_and_length() {
    let region = SharedRegion::new("list", REGION).expect("a memfd");
    assert!(region.segment(512, 1024).is_aligned(512));
    assert!(!region.segment(512, 1000).is_aligned(512) && !region.segment(8, 1024).is_aligned(512));
    assert!(!Segment::bit_bucket(512).is_aligned(512));
    let slice = region.segment(512, 1024).slice(512, 512);
    assert_eq!((slice.len(), slice.pointer()), (512, region.segment(1024, 1).pointer()));
}

#[test]
fn an_empty_arena() {
    let mut arena = Arena::new(0).expect("an arena");
    assert_eq!(arena.write(0, &[1]), Err(OutOfRange));
    assert_eq!(arena.zero(0, 0), Ok(()));
    arena.resize(1).expect("memory");
    assert_eq!((arena.write(0, &[1]), arena.len()), (Ok(()), 1));
    assert!(Arena::new(usize::MAX).is_err() && arena.resize(usize::MAX / 2).is_err());
    let mut byte = [0];
    assert_eq!((arena.read(0, &mut byte), byte), (Ok(()), [1]));
}

/// Checks that zeroed memory goes back to the machine.
#[test]
fn zeroing_gives_back() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
        statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * PAGE_SIZE
    };
    let arena = Arena::new(256 << 20).expect("memory");
    (0..256 << 20).step_by(PAGE_SIZE).for_each(|at| arena.write(at, &[1]).expect("inside"));
    let full = resident();
    arena.zero(0, 256 << 20).expect("inside");
    // Other tests run at the same time, so not to the page.
    assert!(resident() + (128 << 20) < full);
    assert_eq!((arena.len(), arena.read(0, &mut [0; 8])), (256 << 20, Ok(())));
}

#[test]
fn a_region_gives_pages_back_and_keeps_the_others() {
    let region = SharedRegion::new("lean", 64 * PAGE_SIZE).expect("a memfd");
    let taken = || rustix::fs::fstat(region.fd()).expect("it is a file").st_blocks as usize * 512 / PAGE_SIZE;
    (0..64).for_each(|page| region.write(page * PAGE_SIZE, &[1; 8]));
    assert_eq!(taken(), 64);
    region.give_back(3 * PAGE_SIZE, 60 * PAGE_SIZE);
    assert_eq!(taken(), 4);
    region.write(10 * PAGE_SIZE, &[2]);
    assert_eq!((taken(), region.len()), (5, 64 * PAGE_SIZE));
    let first = |page: usize| {
        let mut byte = [0];
        region.read(page * PAGE_SIZE, &mut byte);
        byte[0]
    };
    assert_eq!([0, 2, 3, 10, 62, 63].map(first), [1, 1, 0, 2, 0, 1]);
}

#[test]
fn a_region_is_shared_through_its_descriptor() {
    let ours = SharedRegion::new("shared", 3 * PAGE_SIZE).expect("a memfd");
    let fd = common::fd(&ours);
    assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "sealed");
    assert!(rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE).is_err(), "against seals too");
    let theirs = SharedRegion::from_fd(fd, PAGE_SIZE as u64, 2 * PAGE_SIZE).expect("a mapping");
    ours.atomic_u64(PAGE_SIZE + 8).store(0x1_0000_0002, Ordering::Release);
    assert_eq!(theirs.atomic_u32(8).load(Ordering::Acquire), 2);
    assert_eq!(theirs.atomic_u32(12).load(Ordering::Acquire), 1);
    for (offset, length) in
        [(0, 0), (1, PAGE_SIZE), (PAGE_SIZE as u64, 3 * PAGE_SIZE), (u64::MAX - 4095, PAGE_SIZE)]
    {
        assert!(SharedRegion::from_fd(common::fd(&ours), offset, length).is_err());
    }
}

#[test]
#[should_panic(expected = "beyond the region")]
fn a_region_has_an_end() {
    SharedRegion::new("shared", 100).expect("a memfd").atomic_u32(100);
}

#[test]
fn records_are_handed_over() {
    #[derive(zerocopy::FromBytes, zerocopy::IntoBytes)]
    #[repr(C)]
    struct Record {
        number: u64,
        halves: [u32; 2],
    }
    let region = SharedRegion::new("records", 100 * size_of::<Record>() + 5).expect("a memfd");
    let mut records: SharedArray<Record> = region.into_array().expect("sealed");
    assert_eq!(records.len(), 100);
    records.iter_mut().enumerate().for_each(|(n, record)| record.number = n as u64);
    records[99].halves = [1, 2];
    let fd = records.fd().try_clone_to_owned().expect("a descriptor");
    drop(records);
    let region = SharedRegion::from_fd(fd, 0, 1600).expect("a mapping");
    let successor: SharedArray<Record> = region.into_array().expect("still sealed");
    assert!(successor.iter().enumerate().all(|(n, record)| record.number == n as u64));
    assert_eq!(successor[99].halves, [1, 2]);
    // A file that its owner can shrink cannot be records.
    let other = SharedRegion::from_fd(memfd(4096), 0, 4096).expect("a mapping");
    assert!(other.into_array::<u64>().is_err());
}

#[test]
fn a_buffer_outside_is_none() {
    let mut buffers = Buffers::new(SharedRegion::new("buffers", 8192).expect("a memfd"));
    buffers.bytes(4096, 4096).expect("it is inside").fill(7);
    let mut read = [0; 2];
    buffers.read(4095, &mut read);
    assert_eq!(read, [0, 7]);
    assert!(buffers.bytes(8192, 0).is_some());
    assert!(buffers.bytes(8192, 1).is_none() && buffers.bytes(1, 8192).is_none());
    assert!(buffers.bytes(usize::MAX, 2).is_none());
}

#[test]
fn a_secret_is_on_pages_that_are_not_dumped_and_not_inherited() {
    let secret = Secret::new([0x5au8; 5000]).expect("memory");
    assert!(secret.iter().all(|byte| *byte == 0x5a));
    assert_eq!(format!("{secret:?}"), "Secret");
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("it is there");
    let start = format!("{:x}-", secret.as_ptr().addr());
    let flags = maps.split_once(&start).and_then(|(_, rest)| rest.split_once("VmFlags:")).expect("its map").1;
    let flags = flags.lines().next().expect("a line");
    assert!(flags.contains(" dd") && (flags.contains(" dc") || flags.contains(" wf")), "{flags}");
    if flags.contains(" dc") {
        // Of `memfd_secret`: not even through the file that debuggers use.
        let memory = std::fs::File::open("/proc/self/mem").expect("it is there");
        let read = memory.read_at(&mut [0; 16], secret.as_ptr().addr() as u64);
        assert!(read.is_err(), "{read:?}");
    }
}

#[test]
fn a_secret_can_be_written_in_place() {
    let mut secret = Secret::<[u8; 100]>::zeros().expect("memory");
    assert_eq!(*secret, [0; 100]);
    secret[99] = 1;
    assert_eq!(secret[99], 1);
}

/// Checks that a dropped arena gives its addresses back. Larger ones do so on a thread.
#[test]
fn a_dropped_arena_leaves_its_addresses() {
    const LENGTH: usize = 32 << 20;
    const COUNT: usize = 1 << 12;
    let mapped = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
        statm.split(' ').next().and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * PAGE_SIZE
    };
    let before = mapped();
    (0..COUNT).for_each(|_| drop(Arena::new(LENGTH).expect("addresses")));
    // Other tests run at the same time, and map less than this.
    assert!(mapped() < before + COUNT * LENGTH / 2);
}

/// Compares the address of each offset, and the bytes behind it: none beyond the pages that are mapped.
#[test]
fn the_address_of_a_byte_is_behind_the_first_by_its_offset() {
    for length in [1, 4096, 5000, Arena::HUGE_PAGE, Arena::HUGE_PAGE + 1] {
        let arena = Arena::new(length).expect("memory");
        let (first, mapped) = arena.address_of(0, usize::MAX);
        assert!(mapped >= length && mapped - length < Arena::HUGE_PAGE);
        for offset in [0, 1, length / 2, length - 1, length] {
            let (address, bytes) = arena.address_of(offset as u64, usize::MAX);
            assert_eq!((address.addr(), bytes), (first.addr() + offset, mapped - offset));
            assert_eq!(arena.address_of(offset as u64, 1).1, 1.min(mapped - offset));
        }
        assert_eq!(arena.address_of(u64::MAX, 1).0.addr(), first.addr() + length);
    }
}
