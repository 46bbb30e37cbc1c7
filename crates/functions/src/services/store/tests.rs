use super::table::{Mapping, Table, Version};
use proptest::prelude::*;
use std::collections::BTreeMap;

const LOGICAL: u32 = 8;
const PHYSICAL: u32 = 40;
const MAPPINGS_MAX: u64 = 200;

/// Action of an operator or a host.
#[derive(Clone, Debug)]
enum Step {
    Write(u32),
    Unmap(u32),
    Create(u8),
    Delete(u8),
    /// A deletion whose chunks are freed by steps.
    Forget(u8),
    Sweep(usize),
    Rollback(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..LOGICAL).prop_map(Step::Write),
        1 => (0..LOGICAL).prop_map(Step::Unmap),
        2 => (0..6u8).prop_map(Step::Create),
        1 => (0..6u8).prop_map(Step::Delete),
        1 => (0..6u8).prop_map(Step::Forget),
        2 => (0..5usize).prop_map(Step::Sweep),
        1 => (0..6u8).prop_map(Step::Rollback),
    ];
    prop::collection::vec(step, 1..120)
}

/// Model of the table as plain maps. A chunk of the store holds the number of the write that filled it.
#[derive(Default)]
struct Model {
    now: BTreeMap<u32, u64>,
    versions: BTreeMap<String, BTreeMap<u32, u64>>,
    store: BTreeMap<u32, u64>,
    writes: u64,
}

impl Model {
    fn write(&mut self, table: &mut Table, logical: u32) {
        let place = match table.lookup(logical) {
            Some(physical) if table.is_own(logical) => physical,
            _ => {
                let Some(physical) = table.allocate_or_sweep() else { return };
                table.put(logical, Some(physical));
                physical
            }
        };
        self.writes += 1;
        self.now.insert(logical, self.writes);
        self.store.insert(place, self.writes);
    }

    fn take(&mut self, table: &mut Table, step: &Step) {
        let name = |number: &u8| format!("v{number}");
        match step {
            Step::Write(logical) => self.write(table, *logical),
            Step::Unmap(logical) => {
                if table.lookup(*logical).is_some() && !table.is_own(*logical) {
                    table.put(*logical, None);
                    self.now.remove(logical);
                }
            }
            Step::Create(number) => {
                if table.create(&name(number), 0).is_ok() {
                    assert!(self.versions.insert(name(number), self.now.clone()).is_none());
                }
            }
            Step::Delete(number) => {
                assert_eq!(
                    table.delete(&name(number)).is_ok(),
                    self.versions.remove(&name(number)).is_some()
                );
            }
            Step::Forget(number) => {
                assert_eq!(
                    table.forget_version(&name(number)).is_ok(),
                    self.versions.remove(&name(number)).is_some()
                );
            }
            Step::Sweep(most) => assert!(table.sweep(*most) <= *most),
            Step::Rollback(number) => {
                if table.roll_back(&name(number)).is_ok() {
                    self.now = self.versions[&name(number)].clone();
                }
            }
        }
    }

    /// Returns the numbers of the writes that a map leads to.
    fn seen(&self, map: &[u32]) -> BTreeMap<u32, u64> {
        let place = |(logical, chunk): (u32, &u32)| Some((logical, self.store[&chunk.checked_sub(1)?]));
        (0..).zip(map).filter_map(place).collect()
    }

    fn look(&self, table: &Table) {
        let now: Vec<u32> =
            (0..LOGICAL).map(|logical| table.lookup(logical).map_or(0, |it| it + 1)).collect();
        assert_eq!(self.seen(&now), self.now);
        for version in table.versions() {
            assert_eq!(self.seen(&table.map_of(version.epoch)), self.versions[&version.name]);
        }
        assert_eq!(table.versions().len(), self.versions.len());
        // No chunk is kept that no version sees, except unswept ones.
        let maps = table.versions().iter().map(|version| table.map_of(version.epoch)).chain([now]);
        let mut used: Vec<u32> = maps.flatten().filter(|chunk| *chunk != 0).collect();
        used.sort_unstable();
        used.dedup();
        match table.unswept() {
            0 => assert_eq!(used.len() as u64, table.used()),
            unswept => assert!((0..=unswept as u64).contains(&(table.used() - used.len() as u64))),
        }
    }
}

/// Fills a store whose only free chunk is behind many mappings that a version has.
#[test]
fn a_write_to_a_full_store_sweeps_one_step_at_a_time() {
    const MANY: u32 = 3 * 4096;
    let mut table = Table::new(MANY, 2 * MANY + 1, 1 << 20);
    let write = |table: &mut Table, logical| {
        let chunk = table.allocate().expect("a free chunk");
        table.put(logical, Some(chunk));
    };
    (0..MANY).for_each(|logical| write(&mut table, logical));
    table.create("kept", 0).expect("a version");
    (0..MANY).for_each(|logical| write(&mut table, logical));
    table.create("gone", 0).expect("a version");
    write(&mut table, 0);
    assert_eq!(table.allocate(), None, "the store is full");
    table.forget_version("gone").expect("it is there");
    let mut left = table.unswept();
    assert_eq!(left, MANY as usize + 1);
    for _ in 0..3 {
        assert_eq!(table.allocate_or_sweep(), None);
        assert_eq!(left - table.unswept(), 4096, "one step");
        left = table.unswept();
    }
    assert!(table.allocate_or_sweep().is_some());
    assert_eq!((table.unswept(), table.allocate_or_sweep()), (0, None), "nothing is left to be swept");
}

/// Rolls back and deletes the version: its chunk belongs to the drive alone, in a log that is replayed at once.
#[test]
fn a_chunk_of_a_deleted_version_is_not_replaced_before_it_is_swept() {
    let mut table = Table::new(LOGICAL, PHYSICAL, MAPPINGS_MAX);
    let write = |table: &mut Table| {
        let chunk = table.allocate().expect("a free chunk");
        table.put(0, Some(chunk));
    };
    write(&mut table);
    table.create("v", 0).expect("a version");
    write(&mut table);
    table.roll_back("v").expect("it is there");
    assert!(!table.is_own(0) && !table.may_become_own(0), "the version has it");
    table.forget_version("v").expect("it is there");
    assert!(!table.is_own(0) && table.may_become_own(0), "the mapping of the version is there");
    table.sweep(usize::MAX);
    assert!(table.is_own(0) && !table.may_become_own(0));
    // Chunks that another version has are replaced at once, also during a sweep.
    table.create("kept", 0).expect("a version");
    table.create("gone", 0).expect("a version");
    write(&mut table);
    table.create("newest", 0).expect("a version");
    table.forget_version("gone").expect("it is there");
    assert!(table.unswept() > 0 && !table.is_own(0) && !table.may_become_own(0));
}

/// Grows a store without room to note mappings: its new chunks are not available.
#[test]
fn there_is_as_much_room_as_can_be_allocated() {
    let mut table = Table::new(LOGICAL, 1000, 100);
    let (mut all, mut taken) = (1000, 0);
    for version in 0..20 {
        table.create(&format!("v{version}"), 0).expect("a version");
        for logical in 0..LOGICAL {
            let (chunks, free) = table.room();
            let Some(physical) = table.allocate() else {
                assert_eq!((chunks, free), (all, 0));
                continue;
            };
            assert_eq!((chunks, free > 0), (all, true));
            table.put(logical, Some(physical));
            taken += 1;
        }
        all += 10;
        table.grow(all as u32);
    }
    assert_eq!(taken, 100 - u64::from(sluice_uif::abi::REQUESTS_MAX), "room is kept for those under way");
}

/// Loads a store as a reader, which does not have the store's present size.
#[test]
fn a_table_that_is_only_read_has_chunks_that_came_since() {
    let mapping = |logical, physical| Mapping { logical, born: 1, died: u32::MAX, physical };
    let begun = |table: Table| {
        let mut table = table;
        table.begin(1, 0).expect("an epoch");
        table
    };
    let mut table = begun(Table::new(LOGICAL, PHYSICAL, MAPPINGS_MAX));
    table.load_mapping(mapping(0, PHYSICAL)).expect_err("there is no such chunk");
    table.replay(0, Some(PHYSICAL)).expect_err("there is no such chunk");
    let mut table = begun(Table::new(LOGICAL, PHYSICAL, MAPPINGS_MAX).only_read());
    table.load_mapping(mapping(0, PHYSICAL)).expect("it may have come since");
    table.load_mapping(mapping(1, u32::MAX)).expect_err("no store has so many");
    table.create("v", 0).expect("a version");
    table.replay(0, Some(PHYSICAL)).expect_err("it is in use");
    table.replay(0, Some(u32::MAX - 2)).expect("it may have come since");
    table.delete("v").expect("it is there");
    assert_eq!((table.used(), table.lookup(0)), (0, Some(u32::MAX - 2)));
    table.replay(1, Some(PHYSICAL)).expect("it was freed with the version");
    table.load_mapping(mapping(2, PHYSICAL)).expect("what one mapping cannot show");
    assert!(table.verify().expect_err("two have a chunk").contains("two of the drive"));
}

/// Loads mappings at the edge of the times that are possible.
#[test]
fn a_mapping_of_an_impossible_time_is_refused() {
    const NOW: u32 = u32::MAX;
    let load = |born, died| {
        let mut table = Table::new(LOGICAL, PHYSICAL, MAPPINGS_MAX);
        table.begin(3, 0).expect("an epoch");
        for epoch in [1, 2] {
            let mut bytes = [0; Version::BYTES];
            Version { name: format!("v{epoch}"), created: 0, epoch }.put(&mut bytes);
            table.load_version(&bytes).expect("a version");
        }
        table.load_mapping(Mapping { logical: 0, born, died, physical: 0 })
    };
    for (born, died) in [(1, NOW), (3, NOW), (1, 2), (2, 3)] {
        load(born, died).unwrap_or_else(|error| panic!("{born} to {died}: {error}"));
    }
    for (born, died) in [(0, NOW), (4, NOW), (NOW, NOW), (0, 2), (2, 2), (3, 2), (3, 3), (1, 4)] {
        load(born, died).expect_err("no version of this drive has it");
    }
}

proptest! {
    #[test]
    fn a_table_and_its_versions_are_what_plain_maps_say(steps in steps()) {
        let mut table = Table::new(LOGICAL, PHYSICAL, MAPPINGS_MAX);
        let mut model = Model::default();
        for step in &steps {
            model.take(&mut table, step);
            model.look(&table);
        }
        // A table that was loaded from its checkpoint is equal, too.
        let mut loaded = Table::new(LOGICAL, PHYSICAL, MAPPINGS_MAX);
        loaded.begin(table.epoch().into(), table.deletions()).expect("an epoch");
        for version in table.versions() {
            let mut bytes = [0; super::table::Version::BYTES];
            version.put(&mut bytes);
            loaded.load_version(&bytes).expect("a version");
        }
        for (_, mapping) in table.mappings(0) {
            loaded.load_mapping(mapping).expect("a mapping");
        }
        loaded.verify().expect("no mapping contradicts another");
        model.look(&loaded);
        prop_assert_eq!((loaded.count(), loaded.unswept()), (table.count_seen(), 0));
        table.sweep(usize::MAX);
        prop_assert_eq!((loaded.count(), loaded.used()), (table.count(), table.used()));
    }
}

/// Checks the limits of 128 versions of a drive, and of 64 letters of a name.
#[test]
fn there_are_so_many_versions_and_no_more() {
    let mut table = Table::new(LOGICAL, PHYSICAL, MAPPINGS_MAX);
    table.create(&"n".repeat(64), 0).expect("the longest name");
    for name in [String::new(), "n".repeat(65)] {
        table.create(&name, 0).expect_err("a name that is too short or too long");
    }
    let name = |number: usize| format!("v{number}");
    for number in 1..128 {
        table.create(&name(number), 0).expect("a version");
    }
    let refused = table.create("beyond", 0).expect_err("one too many");
    assert!(refused.contains("128 versions"), "{refused}");
    assert_eq!(table.versions().len(), 128);
    table.delete(&name(64)).expect("it is there");
    table.create("again", 0).expect("there is room again");
    table.create("beyond", 0).expect_err("one too many");
}

/// Checks that a store with more versions than the limit counts as damaged.
#[test]
fn so_many_versions_are_loaded_and_no_more() {
    let mut table = Table::new(LOGICAL, PHYSICAL, MAPPINGS_MAX);
    table.begin(1000, 0).expect("an epoch");
    let mut load = |epoch: u32| {
        let mut bytes = [0; Version::BYTES];
        Version { name: format!("v{epoch}"), created: 0, epoch }.put(&mut bytes);
        table.load_version(&bytes)
    };
    for epoch in 1..=128 {
        load(epoch).expect("a version");
    }
    load(129).expect_err("one too many");
}
