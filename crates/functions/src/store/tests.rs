use super::table::Table;
use proptest::prelude::*;
use std::collections::BTreeMap;

const LOGICAL: u32 = 8;
const PHYSICAL: u32 = 40;
const MAPPINGS_MAX: u64 = 200;

/// What an operator or a host does.
#[derive(Clone, Debug)]
enum Step {
    Write(u32),
    Unmap(u32),
    Create(u8),
    Delete(u8),
    Rollback(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..LOGICAL).prop_map(Step::Write),
        1 => (0..LOGICAL).prop_map(Step::Unmap),
        2 => (0..6u8).prop_map(Step::Create),
        1 => (0..6u8).prop_map(Step::Delete),
        1 => (0..6u8).prop_map(Step::Rollback),
    ];
    prop::collection::vec(step, 1..120)
}

/// The same as plain maps. A chunk of the store holds the number of the write that filled it.
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
                let Some(physical) = table.allocate() else { return };
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
            Step::Rollback(number) => {
                if table.roll_back(&name(number)).is_ok() {
                    self.now = self.versions[&name(number)].clone();
                }
            }
        }
    }

    /// Where the map leads, as plain numbers of writes.
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
        // Nothing is kept that nobody sees.
        let maps = table.versions().iter().map(|version| table.map_of(version.epoch)).chain([now]);
        let mut used: Vec<u32> = maps.flatten().filter(|chunk| *chunk != 0).collect();
        used.sort_unstable();
        used.dedup();
        let (all, free) = table.room();
        assert_eq!(used.len() as u64, all - free);
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
        // And so is one that was loaded from its checkpoint.
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
        prop_assert_eq!(loaded.count(), table.count());
    }
}
