//! Fuzzing of stores that are damaged in ways that their checksums do not show.

use super::block::{BLOCK, number_32, sign};
use super::layout::{Layout, Shape};
use super::load::{Found, Load, Loaded};
use super::metadata_op::{Entry, Format, Write};
use super::table::Version;
use sluice_metadata::engine::{IO_MAX, Step};

const SHAPE: Shape = Shape { size: 16 << 12, chunk: 4096 };
const STORE: usize = 200 << 10;
const SALT: u64 = 7;

/// Makes a store, writes and damages it as in the input, and loads it. It is refused with a message, or
/// consistent and usable.
pub fn run(input: &[u8]) {
    let (orders, damage) = input.split_at(input.len().min(24));
    let mut disk = vec![0; STORE];
    write(&mut disk, orders);
    for patch in damage.chunks_exact(8) {
        let place = number_32(patch, 0) as usize % STORE;
        let end = (place + 4).min(STORE);
        disk[place..end].copy_from_slice(&patch[4..4 + end - place]);
        let block = place - place % BLOCK;
        sign(&mut disk[block..block + BLOCK], if block < 2 * BLOCK { 0 } else { SALT });
    }
    match load(&mut disk) {
        Ok(Some(loaded)) => work(*loaded),
        Ok(None) => {}
        Err(words) => assert!(!words.is_empty() && words.len() < 400, "{words:.400}"),
    }
}

/// Runs an operation to its end.
fn drain(disk: &mut [u8], mut next: impl FnMut(&mut [u8]) -> Result<Step, String>) -> Result<(), String> {
    let mut bytes = vec![0; IO_MAX];
    loop {
        match next(&mut bytes)? {
            Step::Read { at, length } => bytes[..length].copy_from_slice(&disk[at as usize..][..length]),
            Step::Write { at, length } => disk[at as usize..][..length].copy_from_slice(&bytes[..length]),
            Step::Flush => {}
            Step::Done => return Ok(()),
        }
    }
}

fn load(disk: &mut [u8]) -> Result<Option<Box<Loaded>>, String> {
    let mut load = Load::new(SHAPE, disk.len() as u64);
    drain(disk, |bytes| load.next(bytes))?;
    Ok(match load.found() {
        Found::Store(loaded) => Some(loaded),
        Found::Empty => None,
    })
}

/// Writes a store with some history: an order for each byte.
fn write(disk: &mut [u8], orders: &[u8]) {
    let mut store = make(disk, SHAPE);
    for order in orders {
        let (layout, table) = (store.layout, &mut store.table);
        let name = format!("v{}", order >> 5);
        let entry = match order % 8 {
            0 if table.may_create(&name).is_ok() => Entry::Create(Version { name, created: 0, epoch: 0 }),
            1 if table.version(&name).is_ok() => Entry::Delete(name),
            2 if table.may_roll_back(&name).is_ok() => Entry::Rollback(name),
            _ => {
                let logical = u32::from(order >> 3) % layout.logical;
                let Some(physical) = (!table.is_own(logical)).then(|| table.allocate()).flatten() else {
                    continue;
                };
                Entry::Changes(vec![(logical, Some(physical))])
            }
        };
        append(disk, &mut store, entry);
    }
}

/// Makes a store.
fn make(disk: &mut [u8], shape: Shape) -> Loaded {
    let bytes = disk.len() as u64;
    let layout = Layout::plan(shape, SALT, bytes, bytes).expect("it is large enough");
    let mut format = Format { layout, stage: 0 };
    drain(disk, |bytes| Ok(format.next(bytes))).expect("nothing fails");
    Loaded::made(layout)
}

/// Writes an entry, after a checkpoint if there is no room for it, and applies it.
fn append(disk: &mut [u8], store: &mut Loaded, entry: Entry) {
    let Loaded { layout, table, writer, .. } = store;
    if !writer.has_room() {
        let mut checkpoint = Write::checkpoint(table, writer);
        drain(disk, |bytes| Ok(checkpoint.next(layout, writer, table, bytes))).expect("nothing fails");
    }
    let applied = entry.clone();
    let mut append = Write::append(entry, writer);
    drain(disk, |bytes| Ok(append.next(layout, writer, table, bytes))).expect("nothing fails");
    applied.apply(table).expect("it was possible");
}

/// Checks a loaded store: one drive and its versions, each of which can be rolled back to and deleted.
fn work(loaded: Loaded) {
    let Loaded { layout, mut table, .. } = loaded;
    table.verify().expect("it was looked at");
    let names: Vec<String> = table.versions().iter().map(|version| version.name.clone()).collect();
    for name in &names {
        let chunks = table.map_of(table.version(name).expect("it is there").epoch);
        assert!(chunks.iter().all(|chunk| *chunk <= layout.physical));
        let _ = table.roll_back(name);
    }
    for logical in 0..layout.logical {
        if let Some(physical) = (!table.is_own(logical)).then(|| table.allocate()).flatten() {
            table.put(logical, Some(physical));
        }
    }
    for name in &names {
        table.delete(name).expect("it is there");
    }
    assert_eq!(table.used(), table.mapped(), "unmapped chunks are free");
    table.verify().expect("it is still so");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_damaged_store_is_refused_or_consistent(
            orders in prop::collection::vec(any::<u8>(), 24),
            damage in prop::collection::vec((0..45u32, 0..128u32, any::<bool>(), any::<u32>()), 0..6),
        ) {
            let mut input = orders;
            for (block, word, small, value) in damage {
                let place = block * 4096 + 8 + word * 4;
                input.extend(place.to_le_bytes());
                input.extend(if small { value % 20 } else { value }.to_le_bytes());
            }
            super::run(&input);
        }
    }

    /// Writes a log of so many blocks, each with a mapping. Returns the result of loading it.
    fn logged(blocks: u32, spoil: Option<u64>, only_reads: bool) -> Result<Loaded, String> {
        const LARGE: Shape = Shape { size: 4096 << 12, chunk: 4096 };
        let mut disk = vec![0; 8 << 20];
        let mut store = make(&mut disk, LARGE);
        for logical in 0..blocks {
            assert!(store.writer.has_room(), "all blocks are in one log");
            let physical = store.table.allocate().expect("there is room");
            append(&mut disk, &mut store, Entry::Changes(vec![(logical, Some(physical))]));
        }
        let (layout, table, store) = (store.layout, store.table, disk.len() as u64);
        if let Some(sequence) = spoil {
            disk[layout.halves.record_at(0, 0, sequence - 1) as usize + 100] ^= 1;
        }
        let mut load = match only_reads {
            true => Load::to_read(LARGE, store),
            false => Load::new(LARGE, store),
        };
        drain(&mut disk, |bytes| load.next(bytes))?;
        let Found::Store(loaded) = load.found() else { panic!("there is one") };
        for logical in 0..layout.logical {
            let expected = table.lookup(logical).filter(|_| u64::from(logical) < loaded.table.mapped());
            assert_eq!(loaded.table.lookup(logical), expected, "chunk {logical} of a log of {blocks}");
        }
        Ok(*loaded)
    }

    /// Checks logs around the 16 blocks of a buffer.
    #[test]
    fn a_log_of_any_length_is_loaded_to_its_end() {
        for blocks in [0, 1, 15, 16, 17, 31, 32, 33, 40] {
            for only_reads in [false, true] {
                let loaded = logged(blocks, None, only_reads).expect("it is whole");
                assert_eq!(loaded.table.mapped(), u64::from(blocks));
                let torn = logged(blocks, Some(blocks.max(1).into()), only_reads).expect("its last is torn");
                assert_eq!(torn.table.mapped(), u64::from(blocks.max(1) - 1));
            }
        }
        // A later one was written when the one before was durable.
        for (blocks, spoilt) in [(2, 1), (16, 15), (17, 16), (20, 3), (33, 17), (40, 32)] {
            let words = logged(blocks, Some(spoilt), false).map(drop).expect_err("it has a gap");
            assert!(words.contains("the log before block"), "{words}");
        }
    }

    /// Compares stores with checksums of stores that version 8125aff wrote for the same orders. The first log is
    /// full after eight orders.
    #[test]
    fn a_store_has_the_bytes_that_version_8125aff_wrote() {
        for (count, sum) in [
            (0, 0x8f5d_1b90_c84a_0bb9),
            (1, 0xc144_05d7_be40_aba7),
            (8, 0x5ddb_2b96_1ef5_9369),
            (9, 0xd9f1_1657_77b3_9a8c),
            (40, 0xdcae_f4fe_681c_1281),
            (300, 0x447a_25ea_80ee_566d),
        ] {
            let orders: Vec<u8> = (0..count).map(|n: usize| (n * 41 % 256) as u8).collect();
            let mut disk = vec![0; super::STORE];
            super::write(&mut disk, &orders);
            assert_eq!(twox_hash::XxHash3_64::oneshot(&disk), sum, "{count} orders");
            super::load(&mut disk).expect("it is whole").expect("there is one");
        }
    }

    #[test]
    fn a_store_that_nobody_damaged_is_loaded() {
        let orders: Vec<u8> = (0..24u8).map(|n| n.wrapping_mul(41)).collect();
        let mut disk = vec![0; super::STORE];
        super::write(&mut disk, &orders);
        let loaded = super::load(&mut disk).expect("it is whole").expect("there is one");
        assert!(loaded.table.mapped() > 0 && !loaded.table.versions().is_empty());
        super::work(*loaded);
        // And a damaged block that was read once is refused.
        disk[super::BLOCK * 2 + 100] ^= 1;
        assert!(super::load(&mut disk).expect_err("a checksum").contains("block 2"));
    }
}
