//! Tests of a store on a disk in memory: a load returns the content that was written.

use super::block::{BLOCK, Kind, Label, seal};
use super::layout::{DELETIONS, Header, Layout, MAPPINGS_PER_BLOCK, Shape, VERSIONS_PER_BLOCK};
use super::left_out::LeftOut;
use super::load::{Found, Load, Loaded};
use super::metadata_op::{Entry, Format, MetadataOp, Write};
use super::table::{Table, VERSIONS_MAX, Version};
use sluice_metadata::engine::{IO_MAX, Step};

const SALT: u64 = 77;
const KIB: u64 = 1 << 10;
const SHAPE: Shape = Shape { size: 1 << 20, chunk: 64 * KIB };
const STORE: u64 = 4 << 20;

fn plan(shape: Shape, store: u64) -> Layout {
    Layout::plan(shape, SALT, store, store).expect("it is large enough")
}

struct Disk(Vec<u8>);

impl Disk {
    /// Makes a store.
    fn new() -> (Self, Loaded) {
        let layout = plan(SHAPE, STORE);
        let mut disk = Self(vec![0; STORE as usize]);
        let (mut format, mut bytes) = (Format { layout, stage: 0 }, vec![0; IO_MAX]);
        while disk.execute(format.next(&mut bytes), &bytes) {}
        (disk, Loaded::made(layout))
    }

    /// Executes a step. Returns whether it was not the last one.
    fn execute(&mut self, step: Step, bytes: &[u8]) -> bool {
        if let Step::Write { at, length } = step {
            self.0[at as usize..][..length].copy_from_slice(&bytes[..length]);
        }
        step != Step::Done
    }

    fn write(&mut self, store: &mut Loaded, mut write: Write) {
        let mut bytes = vec![0; IO_MAX];
        while self.execute(write.next(&store.layout, &mut store.writer, &store.table, &mut bytes), &bytes) {}
    }

    /// Writes an entry to the log, behind a checkpoint if it is full, and applies it.
    fn append(&mut self, store: &mut Loaded, entry: Entry) {
        if !store.writer.has_room() {
            self.checkpoint(store);
        }
        let write = Write::append(entry.clone(), &mut store.writer);
        self.write(store, write);
        entry.apply(&mut store.table).expect("it is possible");
    }

    fn checkpoint(&mut self, store: &mut Loaded) {
        let write = Write::checkpoint(&store.table, &mut store.writer);
        self.write(store, write);
    }

    fn load_with(&self, mut load: Load) -> Result<Loaded, String> {
        let mut bytes = vec![0; IO_MAX];
        loop {
            match load.next(&bytes)? {
                Step::Read { at, length } => {
                    bytes[..length].copy_from_slice(&self.0[at as usize..][..length])
                }
                Step::Done => break,
                Step::Write { .. } => assert!(load.writes()),
                Step::Flush => assert!(!load.writes()),
            }
        }
        match load.found() {
            Found::Store(loaded) => Ok(*loaded),
            Found::Empty => Err("empty".to_owned()),
        }
    }

    fn load(&self) -> Result<Loaded, String> {
        self.load_with(Load::new(SHAPE, STORE))
    }

    /// Checks that a load finds this store.
    fn check(&self, store: &Loaded) {
        let loaded = self.load().expect("no damage");
        assert_eq!(loaded.layout, store.layout);
        let versions = |table: &Table| {
            let of = |version: &Version| (version.clone(), table.map_of(version.epoch));
            table.versions().iter().map(of).collect::<Vec<_>>()
        };
        assert_eq!(versions(&loaded.table), versions(&store.table));
        assert_eq!(loaded.table.map_of(u32::MAX - 1), store.table.map_of(u32::MAX - 1));
        assert_eq!((loaded.table.epoch(), loaded.table.room()), (store.table.epoch(), store.table.room()));
        assert_eq!((loaded.deletions, loaded.table.deletions()), (store.deletions, store.table.deletions()));
        assert!(!loaded.writer.is_stale() && !loaded.left_out.is_some());
    }
}

/// Changes these chunks of the drive to free chunks of the store.
fn changes(store: &mut Loaded, chunks: &[u32]) -> Entry {
    Entry::Changes(chunks.iter().map(|logical| (*logical, store.table.allocate())).collect())
}

fn create(name: &str) -> Entry {
    Entry::Create(Version { name: name.to_owned(), created: 5, epoch: 0 })
}

/// Loads the store after each block of its log, and from a checkpoint.
#[test]
fn each_kind_of_entry_is_loaded_from_the_log_and_from_a_checkpoint() {
    for has_checkpoints in [false, true] {
        let (mut disk, mut store) = Disk::new();
        disk.check(&store);
        let first = changes(&mut store, &[0, 3, 15]);
        disk.append(&mut store, first);
        for round in 0..2 {
            let (one, two) = (format!("one{round}"), format!("two{round}"));
            for number in 0..6 {
                let entry = match number {
                    0 => create(&one),
                    1 => changes(&mut store, &[3, 4]),
                    2 => create(&two),
                    3 => Entry::Changes(vec![(0, None), (4, None)]),
                    4 => Entry::Rollback(one.clone()),
                    _ => Entry::Delete(two.clone()),
                };
                let is_deletion = matches!(entry, Entry::Delete(_));
                disk.append(&mut store, entry);
                store.deletions += u64::from(is_deletion);
                disk.check(&store);
                if has_checkpoints {
                    disk.checkpoint(&mut store);
                    disk.check(&store);
                }
            }
        }
        assert_eq!(store.table.versions().len(), 2);
    }
}

/// Compares the places of a store with docs/internals/formats.md, and their limits.
#[test]
fn a_store_has_room_for_its_largest_checkpoint_in_front_of_its_chunks() {
    for (size, chunk, store) in
        [(1u64 << 20, 64 * KIB, 4u64 << 20), (1 << 30, 4 * KIB, 1 << 30), ((1 << 20) + 1, 1 << 20, 9 << 20)]
    {
        let layout = plan(Shape { size, chunk }, store);
        let logical = size.div_ceil(chunk);
        let mappings = 2 * logical + store / chunk;
        let body = (VERSIONS_MAX as u64).div_ceil(VERSIONS_PER_BLOCK as u64)
            + mappings.div_ceil(MAPPINGS_PER_BLOCK as u64);
        let log = (2 * body).clamp(8, 4096);
        assert_eq!((u64::from(layout.logical), layout.mappings_max), (logical, mappings));
        assert_eq!(
            (layout.halves.at, layout.halves.blocks, layout.halves.reserved),
            (16384, 1 + body + log, body)
        );
        let chunks = (16384 + 2 * (1 + body + log) * 4096).next_multiple_of(chunk);
        assert_eq!(u64::from(layout.physical), (store - chunks) / chunk);
        for number in [0, 1, layout.physical - 1] {
            assert_eq!(layout.chunk_at(number), chunks + u64::from(number) * chunk);
        }
        assert!(layout.chunk_at(layout.physical) <= store && layout.chunk_at(layout.physical + 1) > store);
        // The store may be longer than it was, and never shorter.
        let longer = Layout::plan(Shape { size, chunk }, SALT, store, store + chunk).expect("it is longer");
        assert_eq!((longer.physical, longer.mappings_max), (layout.physical + 1, mappings));
        assert!(Layout::plan(Shape { size, chunk }, SALT, store, store - 1).is_err());
    }
    let least = plan(SHAPE, STORE).chunk_at(1);
    assert_eq!(Layout::plan(SHAPE, SALT, 0, least).map(|layout| layout.physical), Ok(1));
    assert!(Layout::plan(SHAPE, SALT, 0, least - 1).expect_err("no chunk").contains("needs at least"));
    assert!(Layout::plan(SHAPE, SALT, 0, 0).is_err());
    let many = Shape { size: (1 << 31) * 4 * KIB, chunk: 4 * KIB };
    assert!(Layout::plan(many, SALT, 0, 1 << 50).expect_err("too many").contains("use larger ones"));
    assert_eq!((MAPPINGS_PER_BLOCK, VERSIONS_PER_BLOCK, DELETIONS), (254, 4064 / Version::BYTES, 8192));
}

/// Loads stores whose header has each field at its limit, and beyond.
#[test]
fn a_header_that_counts_more_than_fits_is_damage() {
    let (disk, store) = Disk::new();
    let good = Header { generation: 1, epoch: 1, ..Header::default() };
    let load = |header: Header| {
        let mut disk = Disk(disk.0.clone());
        let at = store.layout.halves.header_at(0) as usize;
        header.seal(&mut disk.0[at..][..BLOCK], SALT);
        disk.load().map(drop)
    };
    let (sane, most) = (u64::MAX / 2, store.layout.mappings_max);
    assert_eq!(load(good), Ok(()));
    for generation in [0, sane, u64::MAX] {
        assert_eq!(load(Header { generation, ..good }), Err("the store is damaged: a header".to_owned()));
    }
    assert_eq!(load(Header { generation: sane - 1, ..good }), Ok(()));
    let wrong = load(Header { deletions: sane + 1, ..good }).expect_err("no program has done that");
    assert_eq!(wrong, "the store is damaged: a header");
    assert_eq!(load(Header { deletions: sane, ..good }).is_ok(), Disk(disk.0.clone()).load().is_ok());
    for (mappings, versions, fits) in [
        (most, 0, true),
        (most + 1, 0, false),
        (1, VERSIONS_MAX as u64, true),
        (0, VERSIONS_MAX as u64 + 1, false),
        (most + 1, VERSIONS_MAX as u64 + 1, false),
    ] {
        let words = load(Header { mappings, versions, ..good }).expect_err("there is no body");
        assert_eq!(words.contains("block 0 of the checkpoint"), fits, "{words}");
        assert_eq!(words.contains("counts more than fits"), !fits, "{words}");
    }
}

/// Loads checkpoints whose blocks are of another kind, or count more than a block has room for.
#[test]
fn a_block_of_a_checkpoint_that_is_something_else_is_damage() {
    let (mut disk, mut store) = Disk::new();
    let first = changes(&mut store, &[0, 1, 2]);
    disk.append(&mut store, first);
    disk.append(&mut store, create("one"));
    disk.checkpoint(&mut store);
    disk.check(&store);
    let halves = store.layout.halves;
    let half =
        (0..2).find(|half| disk.0[halves.header_at(*half) as usize..][..BLOCK].iter().any(|byte| *byte != 0));
    let half = half.expect("one header");
    let load = |number: u64, kind: Kind, count: usize| {
        let mut disk = Disk(disk.0.clone());
        let at = halves.body_at(half, number) as usize;
        let former = disk.0[at + 32..at + BLOCK].to_vec();
        seal(&mut disk.0[at..][..BLOCK], SALT, Label::new(kind, 2, number), |payload| {
            payload.copy_from_slice(&former);
            count
        });
        disk.load().map(drop)
    };
    assert_eq!((load(0, Kind::Versions, 1), load(1, Kind::Mappings, 3)), (Ok(()), Ok(())));
    let is_else =
        |found: Result<(), String>| found.expect_err("another block").contains("it is something else");
    assert!(is_else(load(0, Kind::Mappings, 1)) && is_else(load(1, Kind::Versions, 3)));
    assert!(is_else(load(0, Kind::Versions, VERSIONS_PER_BLOCK + 1)));
    assert!(is_else(load(1, Kind::Mappings, MAPPINGS_PER_BLOCK + 1)));
    assert!(!is_else(load(0, Kind::Versions, VERSIONS_PER_BLOCK)));
    assert!(!is_else(load(1, Kind::Mappings, MAPPINGS_PER_BLOCK)));
    let counts = load(1, Kind::Mappings, 2).expect_err("one is missing");
    assert!(counts.contains("counts otherwise"), "{counts}");
}

/// Loads superblocks, of which one is enough, and blocks of nothing.
#[test]
fn one_superblock_is_enough_and_other_bytes_are_refused() {
    let (disk, store) = Disk::new();
    assert!(Disk(vec![0; STORE as usize]).load().is_err_and(|words| words == "empty"));
    for at in [0, BLOCK] {
        let mut damaged = Disk(disk.0.clone());
        damaged.0[at..][..BLOCK].fill(9);
        damaged.check(&store);
        damaged.0[BLOCK - at..][..BLOCK].fill(0);
        assert!(damaged.load().expect_err("no superblock").contains("holds something else"));
    }
    let short = |store| disk.load_with(Load::new(SHAPE, store)).map(drop);
    assert!(short(4 * BLOCK as u64 - 1).expect_err("no room").contains("too small to be one"));
    assert!(short(4 * BLOCK as u64).expect_err("no chunk").contains("needs at least"));
    let other = Load::new(Shape { size: SHAPE.size + 1, ..SHAPE }, STORE);
    assert!(disk.load_with(other).expect_err("another drive").contains("was made for a drive of"));
    let mut damaged = Disk(disk.0.clone());
    damaged.0[DELETIONS as usize + 40] ^= 1;
    assert!(damaged.load().expect_err("no count").contains("block 2"));
    let mut damaged = Disk(disk.0.clone());
    damaged.0[store.layout.halves.header_at(0) as usize + 40] ^= 1;
    assert!(damaged.load().expect_err("no header").contains("both headers"));
}

/// Loses a block of the log: the store is refused, and opened without the blocks behind it by order.
#[test]
fn blocks_behind_a_lost_one_are_left_out_by_order_alone() {
    let (mut disk, mut store) = Disk::new();
    disk.append(&mut store, create("one"));
    let before = store.table.versions().to_vec();
    for entry in [create("two"), Entry::Rollback("one".into()), Entry::Delete("two".into())] {
        disk.append(&mut store, entry);
    }
    let last = changes(&mut store, &[2, 7, 5]);
    disk.append(&mut store, last);
    let at = store.layout.halves.record_at(0, 0, 1) as usize;
    disk.0[at + 100] ^= 1;
    let words = disk.load().map(drop).expect_err("a block is lost");
    assert!(
        words.contains("the log before block 3:") && words.contains("`open at last durable point`"),
        "{words}"
    );
    let loaded = disk.load_with(Load::up_to(SHAPE, STORE, true)).expect("by order");
    assert_eq!(loaded.table.versions(), before);
    assert!(loaded.left_out.is_some() && loaded.writer.is_stale());
    let words = loaded.left_out.describe(4096);
    assert!(words.contains("before block 2 of its log; blocks 2 to 5 are left out"), "{words}");
    assert!(words.contains("changes of 3 chunks of 4096 bytes between bytes 8192 and 32768"), "{words}");
    assert!(words.contains("orders rollback one, delete two"), "{words}");
    assert!(LeftOut::default().describe(4096).contains("nothing was left out"));
    // A log that could not be written again is begun anew.
    disk.0[at + 100] ^= 1;
    let mut load = Load::new(SHAPE, STORE);
    let mut bytes = vec![0; IO_MAX];
    while !load.writes() {
        let Ok(Step::Read { at, length }) = load.next(&bytes) else { panic!("there is a log") };
        bytes[..length].copy_from_slice(&disk.0[at as usize..][..length]);
        if at == store.layout.halves.record_at(0, 0, 0) {
            load.next(&bytes).expect("no damage");
        }
    }
    let Found::Store(unwritten) = Box::new(load).unwritten().found() else { panic!("there is a store") };
    assert!(unwritten.writer.is_stale());
}

/// Fails each step of a block of the log: without its flush nothing is sure, and behind it only readers of old
/// versions lack the deletion.
#[test]
fn an_entry_that_failed_is_durable_after_its_flush() {
    let (disk, _) = Disk::new();
    for (is_deletion, steps) in [(false, 2), (true, 3)] {
        for fails_at in 0..=steps {
            let mut store = disk.load().expect("no damage");
            store.table.create("one", 0).expect("the first");
            let entry = if is_deletion { Entry::Delete("one".into()) } else { create("two") };
            let mut write = Write::append(entry.clone(), &mut store.writer);
            let mut bytes = vec![0; IO_MAX];
            let mut places = Vec::new();
            // Flush, the block, flush, and block 2 after a deletion.
            for _ in 0..=fails_at {
                places.push(write.next(&store.layout, &mut store.writer, &store.table, &mut bytes));
            }
            let announces = Step::Write { at: DELETIONS, length: BLOCK };
            assert_eq!(places.last() == Some(&announces), fails_at == 3, "{places:?}");
            assert_eq!(write.failed(&mut store.writer), (Some(entry), fails_at == 3));
            assert_eq!(store.writer.is_stale(), fails_at > 0, "{fails_at}");
        }
    }
    let mut store = disk.load().expect("no damage");
    let checkpoint = Write::checkpoint(&store.table, &mut store.writer);
    assert!(MetadataOp::Write(checkpoint).is_checkpoint());
    let mut store = disk.load().expect("no damage");
    let append = Write::append(create("two"), &mut store.writer);
    assert!(!MetadataOp::Write(append).is_checkpoint() && !MetadataOp::Sync(true).is_checkpoint());
}

/// Loads a checkpoint with as many versions as there can be, which take several blocks.
#[test]
fn all_versions_are_in_a_checkpoint() {
    let (mut disk, mut store) = Disk::new();
    for number in 0..VERSIONS_MAX as u64 {
        let version = Version { name: format!("v{number}"), created: number, epoch: 0 };
        disk.append(&mut store, Entry::Create(version));
    }
    disk.checkpoint(&mut store);
    let loaded = disk.load_with(Load::new(SHAPE, STORE)).expect("it is whole");
    assert_eq!(loaded.table.versions(), store.table.versions());
    assert_eq!(loaded.table.versions().len(), VERSIONS_MAX);
}
