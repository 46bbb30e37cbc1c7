//! Costs of translation, the walkers and copying, in nanoseconds. To be run by hand, on a quiet machine:
//!
//!     cargo bench -p sluice-memory --profile dist

use sluice_memory::{
    Access, Arena, Backing, PAGE_SIZE, Permissions, SegmentList, SharedRegion, Space, walk_prp, walk_sgl,
};
use sluice_nvme::{SglDescriptor, SglType};
use std::hint::black_box;
use std::time::Instant;

const GUEST: usize = 64 << 20;
const DRIVE: usize = 512 << 20;
const READ_WRITE: Permissions = Permissions::READ_WRITE;

/// Returns the best of several runs, nanoseconds per call: disturbances only ever add.
fn time(name: &str, calls: usize, mut call: impl FnMut(usize)) -> f64 {
    let runs: Vec<f64> = (0..15)
        .map(|_| {
            let begin = Instant::now();
            (0..calls).for_each(&mut call);
            begin.elapsed().as_nanos() as f64 / calls as f64
        })
        .collect();
    let best = runs.iter().copied().fold(f64::INFINITY, f64::min);
    println!("{name:44} {best:9.1} ns");
    best
}

/// Returns a cheap sequence that no prefetcher follows.
fn scatter(n: usize) -> usize {
    (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 20
}

/// Returns low memory and high memory, as a guest of more than 3 GiB has.
fn guest(ram: &SharedRegion) -> Space {
    let half = GUEST as u64 / 2;
    let mut space = Space::new();
    for (iova, offset) in [(0, 0), (1 << 32, half)] {
        let fd = ram.fd().try_clone_to_owned().expect("a descriptor");
        space.map(iova, half, READ_WRITE, Backing::File { fd, offset }).expect("a region");
    }
    space
}

fn translations(space: &Space) {
    let mut list = SegmentList::new();
    time("translate, one page", 1_000_000, |n| {
        list.clear();
        let iova = (n * PAGE_SIZE % (GUEST / 2)) as u64;
        space.translate(black_box(iova), 4096, Access::Write, &mut list).expect("memory");
        black_box(&list);
    });
    time("translate, one page, regions alternating", 1_000_000, |n| {
        list.clear();
        let iova = (n as u64 & 1) << 32;
        space.translate(black_box(iova), 4096, Access::Write, &mut list).expect("memory");
        black_box(&list);
    });
}

fn walks(space: &Space) {
    let mut list = SegmentList::new();
    for (name, entry) in [("neighbours", 1), ("every second page", 2)] {
        let entries: Vec<u64> = (0..256).map(|n| (4096 + n * entry * 4096) as u64).collect();
        space.write(0, zerocopy::IntoBytes::as_bytes(entries.as_slice())).expect("memory");
        for pages in [1, 2, 32, 256] {
            let prp2 = if pages == 2 { entries[1] } else { 8 };
            time(&format!("walk_prp, {pages} pages, {name}"), 100_000, |_| {
                list.clear();
                walk_prp(space, black_box(4096), prp2, pages * 4096, PAGE_SIZE, Access::Write, &mut list)
                    .expect("memory");
                black_box(&list);
            });
        }
    }
    let block = SglDescriptor::new(SglType::DATA_BLOCK, 4096, 4096).to_dptr();
    time("walk_sgl, one data block", 1_000_000, |_| {
        list.clear();
        walk_sgl(space, black_box(block), 4096, Access::Write, &mut list).expect("memory");
        black_box(&list);
    });
}

fn drive(space: &Space) {
    let arena = Arena::new(DRIVE).expect("memory");
    arena.write(0, &[1]).expect("inside");
    (0..DRIVE).step_by(PAGE_SIZE).for_each(|at| arena.write(at as u64, &[1; 8]).expect("inside"));
    let mut list = SegmentList::new();
    for (size, lookahead) in [(512, 0), (4096, 0), (4096, 1), (16384, 0), (131_072, 0), (1 << 20, 0)] {
        for access in [Access::Write, Access::Read] {
            let place = |n: usize| (scatter(n) % (DRIVE / size) * size) as u64;
            let what = if access == Access::Write { "read_into" } else { "write_from" };
            let calls = (256 << 20) / size.max(4096);
            let name = format!("{what}, {size} bytes, prefetch {lookahead}");
            let ns = time(&name, calls, |n| {
                list.clear();
                let iova = (n % 32 * size) as u64;
                space.translate(iova, size as u32, access, &mut list).expect("memory");
                if lookahead > 0 {
                    arena.prefetch(place(n + lookahead), size);
                }
                match access {
                    Access::Write => arena.read_into(place(n), &list).expect("inside"),
                    Access::Read => arena.write_from(place(n), &list).expect("inside"),
                }
            });
            println!("{:44} {:9.1} GB/s", "", size as f64 / ns);
        }
    }
}

fn main() {
    let ram = SharedRegion::new("bench", GUEST).expect("memory");
    (0..GUEST).step_by(PAGE_SIZE).for_each(|at| ram.write(at, &[0; 8]));
    let space = guest(&ram);
    translations(&space);
    walks(&space);
    drive(&space);
}
