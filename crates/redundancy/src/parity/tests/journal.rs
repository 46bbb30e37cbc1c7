//! Tests of the ring, and of its reading.

use crate::BLOCK;
use crate::parity::Geometry;
use crate::parity::ring::format::{self, BATCH_MAX, Entry};
use crate::parity::ring::{Found, Place, RING_MIN, Replay, Ring};
use crc32c::crc32c;
use sluice_sim::Random;

const ID: u64 = 77;

fn geometry() -> Geometry {
    Geometry::new(4, 2, 8192).expect("an array")
}

/// Returns a batch of these entries, whose content is noise.
fn batch(sequence: u64, entries: &mut [Entry], random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    for entry in entries.iter_mut().filter(|entry| entry.zeroes == 0) {
        let content: Vec<u8> = (0..entry.content_bytes()).map(|_| random.next_u64() as u8).collect();
        entry.checksum = crc32c(&content);
        bytes.extend(content);
    }
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    let blocks = (bytes.len() / BLOCK) as u32;
    format::seal(&mut bytes[..BLOCK], ID, sequence, blocks, entries);
    bytes
}

/// Uses the ring round and round: no batch overwrites one that is still needed.
#[test]
fn the_head_never_comes_to_the_tail() {
    let mut random = Random::new(1);
    let mut ring = Ring::new(RING_MIN, Place { sequence: 1, block: 0 });
    // Batches from the tail on, with their blocks.
    let (mut live, mut wraps): (Vec<(Place, u64)>, _) = (Vec::new(), 0);
    for _ in 0..20_000 {
        if ring.has_room() && random.one_in(2) {
            let blocks = random.between(1, (BATCH_MAX / BLOCK) as u64);
            let place = ring.begin(1, blocks);
            wraps += u64::from(place.block == 0);
            assert!(place.block + blocks <= RING_MIN);
            let is_apart = |(other, length): &(Place, u64)| {
                other.block >= place.block + blocks || place.block >= other.block + length
            };
            assert!(live.iter().all(is_apart), "{place:?} {blocks} {live:?}");
            let good = !random.one_in(10);
            ring.written(good);
            if good {
                live.push((place, blocks));
            }
        } else if random.one_in(3) {
            let done = random.below(live.len() as u64 + 1) as usize;
            live.iter().take(done).for_each(|(place, _)| ring.done(place.sequence));
            ring.begin_flush();
            let good = !random.one_in(4);
            ring.end_flush(good);
            if good && ring.can_trim() {
                let tail = ring.flushed();
                ring.trimmed(tail);
                live.retain(|(place, _)| place.sequence >= tail.sequence);
            }
        }
    }
    assert!(wraps > 100, "{wraps}");
}

#[test]
fn batches_are_read_back_up_to_the_torn_one() {
    let mut random = Random::new(2);
    let mut ring = vec![0; RING_MIN as usize * BLOCK];
    let mut entries = [
        Entry::new(0..4096, 0b1101, 0, 0b10),
        Entry::zeroes(8192..1 << 20, 0),
        // It ends with its chunk.
        Entry::new(15872..16384, 0b1, 0, 0),
    ];
    let mut at = Place { sequence: 5, block: 0 };
    for _ in 0..3 {
        let bytes = batch(at.sequence, &mut entries, &mut random);
        ring[at.block as usize * BLOCK..][..bytes.len()].copy_from_slice(&bytes);
        at = at.after((bytes.len() / BLOCK) as u64, RING_MIN);
    }
    let read = |ring: &[u8]| {
        let mut replay = Replay::new(geometry(), 1 << 20, ID, RING_MIN, Place { sequence: 5, block: 0 });
        let mut count = 0;
        loop {
            let (offset, length) = replay.next();
            match replay.take(&ring[offset as usize..][..length]) {
                Found::Batch(found) => {
                    assert_eq!(found.len(), 3);
                    count += 1;
                }
                Found::End => return (count, replay.at),
                Found::Refused(words) => panic!("{words}"),
            }
        }
    };
    assert_eq!(read(&ring), (3, at));
    // Any byte of a batch that differs ends the ring in front of it, but for the bytes that pad the last block.
    let content = BLOCK + 3 * 4096 + 512;
    for _ in 0..200 {
        let byte = random.below(content as u64) as usize;
        let mut torn = ring.clone();
        torn[byte] ^= 1;
        assert_eq!(read(&torn).0, 0, "byte {byte}");
    }
}

/// Reads batches with impossible entries: the reader ends in front of them.
#[test]
fn entries_that_cannot_be_are_the_end() {
    let mut random = Random::new(3);
    let good = Entry::new(0..4096, 0b11, 0, 0);
    let wrong = [
        Entry { row: 1 << 20, ..good },
        Entry { row: u64::MAX - 10, ..good },
        Entry { length: 0, ..good },
        Entry { length: 16384, ..good },
        Entry { row: 4096, length: 8192, ..good },
        Entry { roles: 0, ..good },
        Entry { roles: 1 << 4, ..good },
        Entry { zeroes: 2, ..good },
        Entry { zeroes: 1, ..good },
        Entry { length: u64::MAX, ..Entry::zeroes(0..1, 0) },
    ];
    for entry in wrong {
        let mut entries = [entry];
        let small = entry.content_bytes() < 1 << 20;
        let mut bytes = if small { batch(1, &mut entries, &mut random) } else { vec![0; BLOCK] };
        if !small {
            format::seal(&mut bytes, ID, 1, 1, &entries);
        }
        bytes.resize(BATCH_MAX, 0);
        let mut replay = Replay::new(geometry(), 1 << 20, ID, RING_MIN, Place { sequence: 1, block: 0 });
        assert!(matches!(replay.take(&bytes), Found::End), "{entry:?}");
    }
    // A later version is refused, and another log's batch is the end.
    let mut bytes = batch(1, &mut [good; 8], &mut random);
    let mut other = Replay::new(geometry(), 1 << 20, ID + 1, RING_MIN, Place { sequence: 1, block: 0 });
    assert!(matches!(other.take(&bytes), Found::End));
    bytes[8] = 2;
    let mut replay = Replay::new(geometry(), 1 << 20, ID, RING_MIN, Place { sequence: 1, block: 0 });
    assert!(matches!(replay.take(&bytes), Found::Refused(_)));
}
