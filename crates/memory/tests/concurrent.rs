//! A guest that rewrites its lists while they are walked gets its commands wrong, and nothing else: whatever
//! the walkers read, every segment is memory of the map.

mod common;

use common::fd;
use sluice_memory::{
    Access, Backing, PAGE_SIZE, Permissions, SegmentList, SharedRegion, Space, walk_prp, walk_sgl,
};
use sluice_nvme::{SglDescriptor, SglType};
use std::sync::atomic::{AtomicBool, Ordering};

const PAGES: usize = 64;
const LISTS: usize = 4;

/// A generator of low quality.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a multiple of `step` below `end`.
    fn below(&mut self, end: usize, step: u64) -> u64 {
        self.next() % (end as u64 / step) * step
    }
}

/// Returns an entry that is now and then right.
fn prp_entry(noise: &mut Noise) -> u64 {
    let page = noise.next() % (PAGES as u64 + 2) * PAGE_SIZE as u64;
    match noise.next() % 64 {
        0 => noise.next(),
        1 => page + noise.next() % 4096,
        _ => page,
    }
}

fn sgl_half(noise: &mut Noise, half: usize) -> u64 {
    if half.is_multiple_of(2) {
        return noise.below(PAGES * PAGE_SIZE, 8);
    }
    let kind = [0, 0, 0, 0, 0, 1, 2, 3, noise.next() % 16][noise.next() as usize % 9];
    let length = noise.below(4096, 16);
    kind << 60 | length
}

/// Writes noise over the lists for as long as the walks last.
fn scribble(ram: &SharedRegion, stop: &AtomicBool, entry: &impl Fn(&mut Noise, usize) -> u64) {
    let mut noise = Noise(0x1234_5678_9abc_def1);
    while !stop.load(Ordering::Relaxed) {
        let slot = noise.next() as usize % (LISTS * PAGE_SIZE / 8);
        ram.atomic_u64(slot * 8).store(entry(&mut noise, slot), Ordering::Relaxed);
    }
}

/// Walks while another thread scribbles. Both successes and failures must have occurred.
fn run(
    entry: impl Fn(&mut Noise, usize) -> u64 + Sync,
    walk: impl Fn(&Space, &mut Noise, &mut SegmentList) -> bool,
) {
    let ram = SharedRegion::new("guest", PAGES * PAGE_SIZE).expect("a memfd");
    let mut space = Space::new();
    // One region in two, so that there are edges; the page behind the last is a hole.
    for n in 0..PAGES as u64 / 16 {
        let offset = n * 16 * PAGE_SIZE as u64;
        let backing = Backing::File { fd: fd(&ram), offset };
        space.map(offset, 16 * PAGE_SIZE as u64, Permissions::READ_WRITE, backing).expect("a region");
    }
    let mut start = Noise(99);
    for slot in 0..LISTS * PAGE_SIZE / 8 {
        ram.atomic_u64(slot * 8).store(entry(&mut start, slot), Ordering::Relaxed);
    }
    let stop = AtomicBool::new(false);
    let mut outcomes = [0usize; 2];
    std::thread::scope(|scope| {
        scope.spawn(|| scribble(&ram, &stop, &entry));
        let mut noise = Noise(42);
        let mut list = SegmentList::new();
        for _ in 0..30_000 {
            list.clear();
            outcomes[usize::from(walk(&space, &mut noise, &mut list))] += 1;
            let inside = |segment| space.contains(segment);
            assert!(list.as_slice().iter().filter(|segment| !segment.is_bit_bucket()).all(inside));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(outcomes.iter().all(|&count| count > 100), "{outcomes:?}");
}

#[test]
fn prp_lists_that_change() {
    run(
        |noise, _| prp_entry(noise),
        |space, noise, list| {
            let list_at = noise.below(LISTS * PAGE_SIZE, 8);
            let length = 3 * 4096 + noise.below(24 * 4096, 1) as u32;
            walk_prp(space, 0, list_at, length, PAGE_SIZE, Access::Write, list).is_ok()
        },
    );
}

#[test]
fn sgls_that_change() {
    run(sgl_half, |space, noise, list| {
        let at = noise.below(LISTS * PAGE_SIZE, 16);
        let segment = SglDescriptor::new(SglType::SEGMENT, at, 16 * (1 + noise.below(20, 1) as u32));
        walk_sgl(space, segment.to_dptr(), 1 + noise.below(20_000, 1) as u32, Access::Write, list).is_ok()
    });
}
