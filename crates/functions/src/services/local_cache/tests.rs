//! Tests of the format, the options and the choice of lines. The function is tested in `crates/sim`, against the
//! model.

use super::format::{self, BLOCK, Entry, Found, Geometry, NO_LINE, PAIR, SLOTS_OF_BLOCK, Superblock};
use super::settings::Settings;
use super::slots::Slots;
use crate::Random;
use sluice_memory::{Buffers, SharedRegion};
use sluice_nvme::Status;
use sluice_uif::{Below, Direct, Effect, Options};
use std::collections::{HashMap, VecDeque};

const GEOMETRY: Geometry = Geometry { id: 0x1122, line: 32 << 10, slots: 130 };

#[test]
fn every_block_and_every_slot_has_a_place_of_its_own() {
    for (size, line) in [(1 << 20, 16 << 10), ((64 << 20) + 5000, 64 << 10), (1 << 40, 32 << 10)] {
        let geometry = Geometry::of(size, line, 7);
        assert!(geometry.slots >= 8 && geometry.end() <= size, "{geometry:?}");
        assert!(size - geometry.end() < 3 * line + PAIR as u64, "{geometry:?} leaves no room unused");
        assert!(geometry.slot_at(0) >= geometry.block_at(geometry.blocks(), 0));
        assert_eq!(geometry.block_at(0, 0), 8192);
        assert_eq!(geometry.block_at(1, 1) - geometry.block_at(0, 0), 12288);
        assert!(geometry.slot_at(0).is_multiple_of(line));
        assert_eq!(geometry.slots_of(geometry.blocks() - 1).end, geometry.slots);
    }
    assert_eq!(Geometry::of(8191, 16 << 10, 7).slots, 0);
}

#[test]
fn masks_are_the_sectors_of_bytes() {
    assert_eq!(format::mask(0, 64 << 10), u128::MAX);
    assert_eq!(format::mask(512, 1536), 0b110);
    assert_eq!(format::mask(127 * 512, 64 << 10), 1 << 127);
    let runs: Vec<_> = format::runs(1 << 127 | 0b1011).collect();
    assert_eq!(runs, [0..1024, 1536..2048, 65024..65536]);
    assert!(format::runs(u128::MAX).eq(std::iter::once(0..65536)));
}

/// Compares the superblock with its bytes, which every later version must read.
#[test]
fn the_superblock_is_these_bytes() {
    let superblock = Superblock { geometry: GEOMETRY, sequence: 0x0203, storage: 9 << 64 | 8 };
    let mut copies = vec![0; 2 * BLOCK];
    assert_eq!(format::read_superblocks(&copies), (Found::Blank, 1));
    copies[..BLOCK].fill(0xff);
    assert_eq!(format::read_superblocks(&copies).0, Found::Other);
    format::write_superblock(&mut copies[..BLOCK], &superblock);
    let mut expected = vec![0; BLOCK];
    expected[..12].copy_from_slice(b"sluiceLC\x01\0\0\0");
    expected[16..18].copy_from_slice(&[0x22, 0x11]);
    expected[24..26].copy_from_slice(&[3, 2]);
    expected[33] = 0x80;
    expected[40] = 130;
    (expected[48], expected[56]) = (8, 9);
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&expected[..12]), &expected[16..]);
    expected[12..16].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(copies[..BLOCK], expected);
    assert_eq!(format::read_superblocks(&copies), (Found::Good(superblock), 0));
    // The newer of two counts, and a torn one does not.
    let newer = Superblock { sequence: 0x0204, ..superblock };
    format::write_superblock(&mut copies[BLOCK..], &newer);
    assert_eq!(format::read_superblocks(&copies), (Found::Good(newer), 1));
    copies[BLOCK + 2000] ^= 1;
    assert_eq!(format::read_superblocks(&copies), (Found::Good(superblock), 0));
    copies[8] = 2;
    assert_eq!(format::read_superblocks(&copies).0, Found::Later(2));
}

/// Compares a block of the table with its bytes, which every later version must read.
#[test]
fn a_block_of_the_table_is_these_bytes() {
    let slots = [Entry { line: 0x0405, dirty: 3 << 100 | 1 }, Entry { line: NO_LINE, dirty: 0 }];
    let mut pair = vec![0xff; PAIR];
    format::write_block(&mut pair[..BLOCK], 0x1122, 1, 0x0607, slots.into_iter());
    let mut expected = vec![0; BLOCK];
    expected[..12].copy_from_slice(b"sluiceLT\x01\0\0\0");
    expected[16..18].copy_from_slice(&[0x22, 0x11]);
    expected[24..26].copy_from_slice(&[7, 6]);
    expected[32] = 1;
    expected[64..66].copy_from_slice(&[5, 4]);
    (expected[72], expected[72 + 12]) = (1, 0x30);
    expected[96..104].fill(0xff);
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&expected[..12]), &expected[16..]);
    expected[12..16].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(pair[..BLOCK], expected);
    assert_eq!(format::entries(&pair[..BLOCK]).take(2).collect::<Vec<_>>(), slots);
    assert_eq!(format::entries(&pair[..BLOCK]).count(), SLOTS_OF_BLOCK as usize);
    assert_eq!(format::read_pair(&pair, 0x1122, 1), Some((0, 0x0607)));
    assert_eq!(format::read_pair(&pair, 0x1122, 2), None, "it is another block");
    assert_eq!(format::read_pair(&pair, 0x1123, 1), None, "it is of another cache");
    format::write_block(&mut pair[BLOCK..], 0x1122, 1, 0x0608, slots.into_iter());
    assert_eq!(format::read_pair(&pair, 0x1122, 1), Some((1, 0x0608)));
    pair[BLOCK + 100] ^= 1;
    assert_eq!(format::read_pair(&pair, 0x1122, 1), Some((0, 0x0607)), "the newer one is torn");
}

#[test]
fn options_are_checked() {
    let of = |options: &[(&str, &str)]| {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Settings::of(&Options::new(options)).map(|it| (it.line, it.sequential, it.dirty, it.rate))
    };
    let mode = ("mode", "write-back");
    assert_eq!(of(&[mode]), Ok((64 << 10, 4 << 20, 75, 64 << 20)));
    let all = [mode, ("line", "16KiB"), ("sequential", "1MiB"), ("dirty", "100%"), ("rate", "1GiB")];
    assert_eq!(of(&all), Ok((16 << 10, 1 << 20, 100, 1 << 30)));
    assert_eq!(of(&[]), Err("mode is write-back or write-through".to_owned()));
    for wrong in [
        ("line", "8KiB"),
        ("line", "48KiB"),
        ("sequential", "4KiB"),
        ("dirty", "0%"),
        ("dirty", "101%"),
        ("dirty", "50"),
        ("rate", "0"),
        ("size", "1GiB"),
    ] {
        let refused = of(&[mode, wrong]).expect_err("it is wrong");
        assert!(refused.contains(wrong.0), "{refused}");
    }
}

const LINES: u64 = 4000;

/// Returns slots for so many lines of clean data, as after the first flush.
fn slots(count: u32) -> Slots {
    Slots::new(&Geometry { id: 1, line: 64 << 10, slots: count }, LINES)
}

/// Reads a line: returns whether it was there, and puts it there.
fn read(slots: &mut Slots, line: u64) -> bool {
    let found = slots.of_line(line);
    match found {
        Some(slot) => slots.touch(slot),
        None => drop(slots.allocate(line)),
    }
    found.is_some()
}

/// Fills the slots: lines that are in use, dirty, or in the table on the disk stay.
#[test]
fn only_clean_lines_leave() {
    let mut slots = slots(8);
    let held: Vec<u32> = (0..8).map(|line| slots.allocate(line).expect("room")).collect();
    slots.write(held[0], 1);
    slots.get_mut(held[1]).pins = 1;
    slots.get_mut(held[2]).written = 1;
    slots.table.load(0, 0, 1);
    slots.table_flushed(&Geometry { slots: 8, ..GEOMETRY });
    for line in 8..200 {
        assert!(slots.allocate(line).is_some());
    }
    assert_eq!((0..8).filter(|line| slots.of_line(*line).is_some()).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(slots.dirty(), (1, 1));
    // The table may have named a line until a flush follows its write.
    let slot = slots.of_line(199).expect("it came last");
    slots.image(slot);
    assert!(slots.is_clean(slot));
    slots.write(slot, 1);
    slots.image(slot);
    slots.pend(slot, 1);
    assert_eq!((slots.clean(slot, 1), slots.is_clean(slot)), (1, false));
    slots.table.load(0, 0, 1);
    slots.table_flushed(&Geometry { slots: 8, ..GEOMETRY });
    assert!(slots.is_clean(slot));
}

/// Runs reads over the slots, a least recently used list, and the best choice that there is. Returns hits in
/// thousandths.
fn ratios(lines: &[u64], count: u32) -> [u64; 3] {
    let mut slots = slots(count);
    let ours = lines.iter().filter(|line| read(&mut slots, **line)).count();
    let (mut last, mut order, mut lru) = (HashMap::new(), VecDeque::new(), 0);
    for (now, line) in lines.iter().enumerate() {
        lru += usize::from(last.insert(*line, now).is_some());
        order.push_back((*line, now));
        while last.len() > count as usize {
            let Some((line, then)) = order.pop_front() else { break };
            if last.get(&line) == Some(&then) {
                last.remove(&line);
            }
        }
    }
    // Belady's choice: the line whose next read is the farthest leaves.
    let mut next = vec![usize::MAX; lines.len()];
    let mut seen = HashMap::new();
    for (now, line) in lines.iter().enumerate().rev() {
        next[now] = seen.insert(*line, now).unwrap_or(usize::MAX);
    }
    let (mut held, mut best) = (std::collections::BTreeMap::new(), 0);
    for (now, line) in lines.iter().enumerate() {
        best += usize::from(held.remove(&(now, *line)).is_some());
        held.insert((next[now], *line), ());
        if held.len() > count as usize {
            held.pop_last();
        }
    }
    [ours, lru, best].map(|hits| hits as u64 * 1000 / lines.len() as u64)
}

/// Reads of lines whose frequency falls with their rank.
fn zipf(random: &mut Random, lines: u64) -> u64 {
    // The logarithm of a rank of Zipf's law with exponent 1 is uniform.
    let uniform = random.below(1 << 30) as f64 / f64::from(1 << 30);
    let rank = (lines as f64).powf(uniform) as u64 - 1;
    rank.wrapping_mul(2_654_435_761) % lines
}

/// Compares hits with those of a least recently used list. A scan or a loop must not displace frequent lines.
#[test]
fn the_choice_of_lines_is_scan_resistant() {
    let mut random = Random::new(4);
    let reads = 60_000;
    let plain: Vec<u64> = (0..reads).map(|_| zipf(&mut random, LINES)).collect();
    // A half of all reads are of scans that read each line once.
    let scan = |at: u64| LINES + at;
    let mixed: Vec<u64> =
        (0..reads).map(|at| if at / 200 % 2 == 0 { zipf(&mut random, LINES) } else { scan(at) }).collect();
    let around: Vec<u64> = (0..reads).map(|at| at % 600).collect();
    for (name, lines, least) in [("zipf", &plain, 0), ("scan", &mixed, 20), ("loop", &around, 0)] {
        let [ours, lru, best] = ratios(lines, 400);
        println!("{name}: {ours} of 1000 reads hit; least recently used {lru}; optimum {best}");
        assert!(ours >= lru + least && best >= ours, "{name}: {ours} {lru} {best}");
    }
}

/// Starts with drives whose set of lines would take all memory.
#[test]
fn a_drive_that_is_too_large_is_refused() {
    let settings = Settings::of(&Options::new([("mode".to_owned(), "write-back".to_owned())]));
    for (size, serves) in [(1 << 30, true), (format::DRIVE_MAX + 512, false), (i64::MAX as u64, false)] {
        let arena = 5 << 20;
        let cache = super::LocalCache::new(settings.clone().expect("good ones"));
        let mut function = Direct::new(Box::new(cache), arena);
        let mut memory = Buffers::new(SharedRegion::new("arena", arena).expect("memory"));
        for (number, size) in [size, 64 << 20].into_iter().enumerate() {
            function.set_layer(number, Below { size, block_size: 512, atomic: 512, id: 3, is_new: false });
        }
        function.start(&mut memory, 1);
        match function.take_effect() {
            Some(Effect::Ready(status)) => assert!(!serves && status == Status::NAMESPACE_NOT_READY),
            other => assert!(serves && matches!(other, Some(Effect::Request { .. })), "{other:?}"),
        }
    }
}
