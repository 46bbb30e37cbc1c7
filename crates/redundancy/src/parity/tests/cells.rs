//! Tests of the arithmetic on cells of real sizes, and of the ends of chunks.

use super::*;
use crate::parity::ring::{Place, RING_MIN, Ring};

/// Computes the parities byte by byte.
fn slow_parities(bytes: &[u8], length: usize, columns: usize) -> [Vec<u8>; 2] {
    let byte = |column: usize, at: usize| bytes[column * length + at];
    let p = |at| (0..columns).fold(0, |sum, column| sum ^ byte(column, at));
    let power = |column: usize| (0..column).fold(1, |power, _| slow_product(power.into(), 2));
    let factors: Vec<u8> = (0..columns).map(power).collect();
    let q = |at| {
        (0..columns)
            .fold(0, |sum, column| sum ^ slow_product(byte(column, at).into(), factors[column].into()))
    };
    [(0..length).map(p).collect(), (0..length).map(q).collect()]
}

/// Covers cells of several tiles, the last one a part of one.
#[test]
fn parities_of_long_cells_are_those_of_each_byte() {
    let mut random = Random::new(9);
    for length in [2040, 2048, 2056, 4096, 6 * 1024 + 8] {
        for (members, parities) in [(3, 1), (4, 2), (7, 2)] {
            let columns = members - parities;
            let whole = random_cells(&mut random, length, members, parities);
            let slow = slow_parities(&whole, length, columns);
            for parity in 0..parities {
                assert!(
                    whole[(columns + parity) * length..][..length] == slow[parity],
                    "{length} {members} {parity}"
                );
            }
            for missing in (0u32..1 << members).filter(|mask| mask.count_ones() as usize == parities) {
                let mut bytes = whole.clone();
                let lost = (0..members).filter(|role| missing >> role & 1 == 1);
                lost.for_each(|role| bytes[role * length..][..length].fill(0x5a));
                Cells::new(&mut bytes, length, columns, parities).expect("long enough").recover(missing);
                assert!(bytes == whole, "{length} {members} {missing:b}");
            }
        }
    }
}

#[test]
fn a_run_ends_with_its_chunk() {
    for chunk in [4096, 8192, 1 << 20] {
        let geometry = Geometry::new(4, 1, chunk).expect("an array");
        for (offset, end, wanted) in [
            (0, 1, 1),
            (0, chunk, chunk),
            (0, 9 * chunk, chunk),
            (chunk - 1, 9 * chunk, chunk),
            (chunk, 9 * chunk, 2 * chunk),
            (5 * chunk + 7, 6 * chunk + 1, 6 * chunk),
            (5 * chunk + 7, 5 * chunk + 9, 5 * chunk + 9),
            (u64::MAX - 3, u64::MAX, u64::MAX),
        ] {
            assert_eq!(geometry.chunk_end(offset, end), wanted, "{offset} {end}");
        }
    }
}

/// Cuts whole stripes of zeros as one rectangle, and returns no rectangle without rows.
#[test]
fn whole_stripes_of_zeros_are_one_rectangle() {
    let geometry = Geometry::new(5, 2, 8192).expect("an array");
    let bytes = geometry.stripe_bytes();
    let cut = |range: std::ops::Range<u64>, whole: bool| {
        let (mut cut, mut found) = (Cut::new(range, 4096, whole), Vec::new());
        while let Some(rect) = cut.next(&geometry, 1 << 20) {
            assert!(!rect.rows.is_empty() && !rect.columns.is_empty());
            assert_eq!(rect.length(), rect.rows.end - rect.rows.start);
            found.push(rect.length());
        }
        found
    };
    for stripes in 1..6 {
        assert_eq!(cut(2 * bytes..(2 + stripes) * bytes, true), [stripes * 8192]);
        assert_eq!(cut(0..stripes * bytes, false), vec![4096; 2 * stripes as usize]);
    }
    // A part of a stripe comes before the whole ones, and another one behind them.
    let lengths = cut(bytes - 4096..5 * bytes + 4096, true);
    assert_eq!(lengths, [4096, 4 * 8192, 4096]);
    for start in (0..2 * bytes).step_by(1024) {
        for end in (start + 1024..2 * bytes).step_by(3072) {
            cut(start..end, end % 2048 == 0);
        }
    }
}

/// Batch of the model: its place, its blocks, and whether all its cells are written.
type Simple = (Place, u64, bool);

/// Compares the ring with a list of its batches.
#[test]
fn a_ring_is_as_full_as_its_batches() {
    const MOST: u64 = 128;
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let blocks = RING_MIN + random.below(300);
        let mut ring = Ring::new(blocks, Place { sequence: 1, block: 0 });
        // Batches from the tail on; the places of the tail, of the flushed batches, and of the next batch.
        let mut live: Vec<Simple> = Vec::new();
        let first = Place { sequence: 1, block: 0 };
        let (mut tail, mut flushed, mut head) = (first, first, first);
        let mut refused = 0;
        for _ in 0..3000 {
            let used = match live.first() {
                None => 0,
                Some((oldest, ..)) if oldest.block < head.block => head.block - oldest.block,
                Some((oldest, ..)) => blocks - oldest.block + head.block,
            };
            assert_eq!(ring.is_filling(), used > blocks / 2, "{used} of {blocks}");
            assert_eq!(ring.is_unflushed(), flushed.sequence != head.sequence);
            assert_eq!((ring.can_trim(), ring.flushed()), (flushed != tail, flushed));
            // A batch of any size needs room in front of the tail, and one block that stays free.
            let is_clear = live
                .first()
                .is_none_or(|(oldest, ..)| oldest.block < head.block || head.block + MOST < oldest.block);
            assert_eq!(ring.has_room(), is_clear);
            refused += u64::from(!is_clear);
            match random.below(6) {
                0..3 if is_clear => {
                    let length = random.between(1, MOST);
                    assert_eq!(ring.begin(2, length), head);
                    assert!(!ring.has_room(), "one batch is in flight at a time");
                    let good = !random.one_in(8);
                    ring.written(good);
                    if good {
                        live.push((head, length, false));
                        head = head.after(length, blocks);
                    }
                }
                3 => {
                    let Some(batch) = live.iter_mut().find(|batch| !batch.2) else { continue };
                    // Each batch has two entries.
                    ring.done(batch.0.sequence);
                    ring.done(batch.0.sequence);
                    batch.2 = true;
                }
                4 => {
                    ring.begin_flush();
                    let open = live.iter().find(|batch| !batch.2).map_or(head, |batch| batch.0);
                    let good = !random.one_in(3);
                    ring.end_flush(good);
                    flushed = if good { open } else { flushed };
                }
                _ => {
                    ring.trimmed(flushed);
                    tail = flushed;
                    live.retain(|batch| batch.0.sequence >= tail.sequence);
                }
            }
        }
        assert!(refused > 0, "the ring was never full");
    }
    for (block, length, next) in [(0, 1, 1), (256, 128, 384), (256, 129, 0), (384, 1, 0), (383, 1, 384)] {
        assert_eq!(Place { sequence: 4, block }.after(length, 512), Place { sequence: 5, block: next });
    }
}
