//! Every kind of map against a plain model.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn map(def: MapDef) -> Map {
    def.check().expect("the definition is good");
    Map::new(def)
}

/// Returns the value that a program finds.
fn program_finds(map: &Map, key: &[u8]) -> Option<u64> {
    let at = map.find(&Key::new(key)?).expect("it has elements").at?;
    map.values()?.load(at, crate::insn::Size::B8)
}

/// Compares the announced size of a map's memory with the real one.
#[test]
fn memory_is_counted() {
    let lru = |def: MapDef| MapDef { kind: MapKind::LruHash, ..def };
    let mut defs = Vec::new();
    for entries in [1, 2, 7, 8, 9, 1023, 1024, 1025, 5000] {
        defs.push(MapDef::array("a", 12, entries));
        defs.push(MapDef::hash("h", 13, 3, entries));
        defs.push(lru(MapDef::hash("l", 4, 100, entries)));
        defs.push(MapDef::translation("t", entries, 3));
    }
    for def in defs {
        let map = map(def);
        let takes = match &map.storage {
            Storage::Array(array) => array.values().len(),
            Storage::Hash(hash) => hash.bytes(),
            Storage::Translation(cache) => cache.bytes(),
        };
        assert_eq!(map.def().bytes(), takes as u128, "{:?}", map.def());
    }
}

/// Refuses two GiB of values: they would reach from one region into the next, whatever the limit of memory
/// is.
#[test]
fn a_region_is_shorter_than_its_distance() {
    for kind in [MapKind::Array, MapKind::Hash, MapKind::LruHash] {
        let def = |entries| MapDef { kind, ..MapDef::hash("h", 4, 1 << 20, entries) };
        assert_eq!(def(2046).check_region(), Ok(()));
        for entries in [2047, 2048, u32::MAX] {
            let why = def(entries).check_region().expect_err("too large").to_string();
            assert!(why.contains("less than 2 GiB"), "{why}");
        }
    }
}

#[test]
fn array_elements_are_always_there() {
    let map = map(MapDef::array("a", 12, 3));
    assert_eq!(map.get(&2u32.to_le_bytes()), Ok(vec![0; 12]));
    assert_eq!(map.set(&2u32.to_le_bytes(), &[7; 12], Update::Any), Ok(()));
    assert_eq!(map.get(&2u32.to_le_bytes()), Ok(vec![7; 12]));
    assert_eq!(map.get(&1u32.to_le_bytes()), Ok(vec![0; 12]));
    assert_eq!(map.get(&3u32.to_le_bytes()), Err(MapError::NotFound));
    assert_eq!(map.set(&3u32.to_le_bytes(), &[7; 12], Update::Any), Err(MapError::Full));
    assert_eq!(map.set(&0u32.to_le_bytes(), &[7; 12], Update::NoExist), Err(MapError::Exists));
    assert_eq!(map.set(&0u32.to_le_bytes(), &[7; 11], Update::Any), Err(MapError::Invalid));
    assert_eq!(map.remove(&0u32.to_le_bytes()), Err(MapError::Invalid));
    assert_eq!(map.get(&[0; 5]), Err(MapError::Invalid));
}

#[test]
fn lru_forgets_what_was_not_used() {
    let map = map(MapDef { kind: MapKind::LruHash, ..MapDef::hash("l", 4, 4, 4) });
    for key in 0u32..4 {
        map.set(&key.to_le_bytes(), &key.to_le_bytes(), Update::Any).expect("there is room");
    }
    for key in [0u32, 2, 3] {
        assert!(program_finds(&map, &key.to_le_bytes()).is_some());
    }
    map.get(&1u32.to_le_bytes()).expect("looking from outside is no use");
    map.set(&9u32.to_le_bytes(), &[0; 4], Update::Any).expect("it makes room");
    assert_eq!(map.get(&1u32.to_le_bytes()), Err(MapError::NotFound));
    for key in [0u32, 2, 3, 9] {
        assert!(map.get(&key.to_le_bytes()).is_ok(), "{key} was used");
    }
    assert_eq!(map.entries().len(), 4);
}

/// Checks that pages of every size are together the content of the map, and that none is too large.
#[test]
fn pages_are_the_map() {
    for def in [MapDef::array("a", 8, 13), MapDef::hash("h", 4, 8, 13), MapDef::translation("t", 13, 0)] {
        let map = map(def);
        for key in [0u32, 3, 4, 9, 12] {
            let _ = map.set(&key.to_le_bytes(), &u64::from(key + 1).to_le_bytes(), Update::Any);
        }
        let all = map.entries();
        for limit in 1..16 {
            let (mut entries, mut next) = (Vec::new(), Some(0));
            while let Some(from) = next {
                let page = map.page(from, limit);
                assert!(page.entries.len() <= limit);
                entries.extend(page.entries);
                assert_eq!(page.left, all.len() - entries.len());
                next = page.next;
                assert!(next.is_none_or(|next| next > from), "it goes on");
            }
            entries.sort();
            assert_eq!(entries, all, "{limit} at a time");
        }
        assert_eq!(map.page(usize::MAX, 5), Page::default());
    }
}

proptest! {
    #[test]
    fn hash_like_a_hash_map(
        width in prop::sample::select(vec![1usize, 4, 8, 12, 16, 24]),
        steps in prop::collection::vec((0u8..4, 0u64..24, any::<u64>()), 1..200),
    ) {
        let map = map(MapDef::hash("h", width as u32, 8, 16));
        let mut model = HashMap::new();
        for (what, key, value) in steps {
            // Some keys differ in their last byte alone, and some in their first.
            let mut bytes = vec![0; width];
            bytes[0] = key as u8 % 4;
            bytes[width - 1] |= (key as u8 / 4) << 4;
            let set = |update| map.set(&bytes, &value.to_le_bytes(), update);
            match what {
                0 => prop_assert_eq!(map.remove(&bytes).is_ok(), model.remove(&bytes).is_some()),
                1 => {
                    let there = model.contains_key(&bytes);
                    prop_assert_eq!(set(Update::Exist), if there { Ok(()) } else { Err(MapError::NotFound) });
                    model.entry(bytes.clone()).and_modify(|old| *old = value);
                }
                2 if model.contains_key(&bytes) => prop_assert_eq!(set(Update::NoExist), Err(MapError::Exists)),
                _ if model.len() == 16 && !model.contains_key(&bytes) => {
                    prop_assert_eq!(set(Update::Any), Err(MapError::Full));
                }
                _ => {
                    prop_assert_eq!(set(Update::Any), Ok(()));
                    model.insert(bytes.clone(), value);
                }
            }
            let expected = model.get(&bytes).map(|value| value.to_le_bytes().to_vec());
            prop_assert_eq!(map.get(&bytes).ok(), expected);
        }
        let entries = map.entries();
        let mut expected: Vec<_> =
            model.iter().map(|(key, value)| (key.clone(), value.to_le_bytes().to_vec())).collect();
        expected.sort();
        prop_assert_eq!(entries, expected);
    }

    /// Checks a cache block by block: it may miss, but a hit is the last insertion.
    #[test]
    fn translations_are_never_untrue(
        shift in 0u64..6,
        steps in prop::collection::vec((0u8..8, 0u64..200, 1u64..80, 0u64..1000, 0u32..4), 1..60),
    ) {
        let map = map(MapDef::translation("t", 32, shift));
        let cache = map.translations().expect("it is one");
        let mut model: HashMap<u64, (u64, u32)> = HashMap::new();
        for (what, start, count, target, flags) in steps {
            let blocks_end = start + count;
            let blocks = start..blocks_end;
            match what {
                0 => {
                    cache.invalidate(blocks.clone()).expect("no other change is under way");
                    blocks.for_each(|block| { model.remove(&block); });
                }
                1 => {
                    cache.clear_writable().expect("no other change is under way");
                    model.values_mut().for_each(|(_, flags)| *flags &= !Translation::WRITABLE);
                }
                _ => {
                    cache.insert(blocks.clone(), target, flags).expect("no other change is under way");
                    blocks.for_each(|block| { model.insert(block, (target + block - start, flags)); });
                    if start >> shift == (blocks_end - 1) >> shift {
                        let hit = cache.lookup(start).expect("it was said just now");
                        prop_assert_eq!((hit.target, hit.flags), (target, flags));
                    }
                }
            }
            for block in 0..300 {
                if let Some(hit) = cache.lookup(block) {
                    prop_assert!(hit.count > 0);
                    for i in 0..u64::from(hit.count) {
                        prop_assert_eq!(model.get(&(block + i)), Some(&(hit.target + i, hit.flags)));
                    }
                }
            }
        }
    }
}

#[test]
fn translations_at_the_end_of_the_world() {
    let map = map(MapDef::translation("t", 8, 32));
    let cache = map.translations().expect("it is one");
    cache.insert(u64::MAX - 10..u64::MAX, 5, 1).expect("no other change is under way");
    let hit = cache.lookup(u64::MAX - 3).expect("it is there");
    assert_eq!(hit, Translation { target: 12, count: 3, flags: 1 });
    cache.insert(0..u64::MAX, u64::MAX - 5, 0).expect("no other change is under way");
    assert_eq!(cache.lookup(1 << 40), None);
    assert_eq!(cache.lookup(u64::MAX - 3), None);
    cache.clear().expect("no other change is under way");
    assert_eq!(cache.lookup(0), None);
}

/// Lookups of programs beside a change, at each of its steps.
mod beside {
    use std::cell::RefCell;

    use super::*;

    type Look = Box<dyn FnMut()>;

    thread_local! {
        static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
    }

    /// Runs the test's look at each step of a change.
    pub(in crate::maps) fn at_step() {
        let look = LOOK.with_borrow_mut(Option::take);
        if let Some(mut look) = look {
            look();
            LOOK.set(Some(look));
        }
    }

    fn finds(map: &Map) -> Vec<Option<u64>> {
        (0..12u64).map(|key| program_finds(map, &key.to_le_bytes())).collect()
    }

    proptest! {
        /// Checks that a change that is stopped at any step has happened or has not, key by key, and that no
        /// lookup waits.
        #[test]
        fn old_or_new(lru: bool, steps in prop::collection::vec((any::<bool>(), 0u64..12, 1u64..1000), 1..60)) {
            let def = MapDef::hash("h", 8, 8, 4);
            let kind = if lru { MapKind::LruHash } else { MapKind::Hash };
            let map = Arc::new(map(MapDef { kind, ..def }));
            for (remove, key, value) in steps {
                let before = finds(&map);
                let seen = Rc::new(RefCell::new(Vec::new()));
                let (beside, said) = (Arc::clone(&map), Rc::clone(&seen));
                LOOK.set(Some(Box::new(move || said.borrow_mut().push(finds(&beside)))));
                let _ = match remove {
                    true => map.remove(&key.to_le_bytes()),
                    false => map.set(&key.to_le_bytes(), &value.to_le_bytes(), Update::Any),
                };
                LOOK.set(None);
                let after = finds(&map);
                for found in seen.take() {
                    for key in 0..12 {
                        let right = [before[key], after[key]].contains(&found[key]);
                        prop_assert!(right, "key {key}: {:?}, {:?}, {:?}", before[key], found[key], after[key]);
                    }
                }
            }
        }
    }
}

pub(super) use beside::at_step;

/// Checks that a thread that sleeps in the middle of a change keeps others from changing, and no program from
/// looking.
#[test]
fn programs_look_beside_a_sleeping_writer() {
    let hash = map(MapDef::hash("h", 8, 8, 8));
    let key = 5u64.to_le_bytes();
    hash.set(&key, &7u64.to_le_bytes(), Update::Any).expect("it is empty");
    let Storage::Hash(storage) = &hash.storage else { panic!("it is a hash") };
    let sleeping = storage.claim();
    assert_eq!(program_finds(&hash, &key), Some(7));
    assert_eq!(program_finds(&hash, &[0; 8]), None);
    assert_eq!(hash.set(&key, &key, Update::Any), Err(MapError::Busy));
    assert_eq!(hash.get(&key), Err(MapError::Busy));
    drop(sleeping);
    assert_eq!(hash.get(&key), Ok(7u64.to_le_bytes().to_vec()));

    let cache = map(MapDef::translation("t", 8, 4));
    let cache = cache.translations().expect("it is one");
    cache.insert(0..8, 100, 0).expect("no other change is under way");
    let sleeping = cache.claim();
    assert_eq!(cache.lookup(3), None, "a miss is always true");
    assert_eq!(cache.invalidate(0..8), Err(MapError::Busy));
    drop(sleeping);
    assert!(cache.lookup(3).is_some());
}

/// Checks that no lookup returns a key's value under another key, whatever writers do, and that kept keys are
/// always found.
#[test]
fn readers_beside_writers() {
    let map = map(MapDef::hash("h", 8, 64, 8));
    let value = |key: u64| (key * 1000).to_le_bytes().repeat(8);
    map.set(&100u64.to_le_bytes(), &value(100), Update::Any).expect("it is empty");
    std::thread::scope(|scope| {
        for offset in 0..2u64 {
            let (map, value) = (&map, &value);
            scope.spawn(move || {
                for i in 0..20_000u64 {
                    let key = (i * 2 + offset) % 12;
                    let _ = map.set(&key.to_le_bytes(), &value(key), Update::NoExist);
                    let _ = map.remove(&key.to_le_bytes());
                }
            });
        }
        for i in 0..20_000u64 {
            assert_eq!(program_finds(&map, &100u64.to_le_bytes()), Some(100_000));
            let key = i % 12;
            if let Ok(found) = map.get(&key.to_le_bytes()) {
                assert_eq!(found, value(key));
            }
            for (key, found) in map.entries() {
                let key = key.try_into().map(u64::from_le_bytes).expect("eight bytes");
                assert_eq!(found, value(key));
            }
        }
    });
}

/// Checks that a program may invalidate any range.
#[test]
fn forgetting_no_block_looks_at_no_set() {
    for shift in [0, 3, 32] {
        let map = map(MapDef::translation("t", 8, shift));
        let cache = map.translations().expect("it is one");
        for block in [0, 1, 8, 1 << 32, u64::MAX] {
            assert_eq!(cache.sets_of(&(block..block)), 0);
        }
        assert_eq!(cache.sets_of(&(0..1)), 1);
    }
}

/// Checks that a change counts the links of the chain that it follows, as a lookup does.
#[test]
fn changes_count_the_links_that_they_follow() {
    let map = map(MapDef::hash("h", 4, 8, 64));
    let keys: Vec<Key> = (0u32..64).map(|key| Key::new(&key.to_le_bytes()).expect("a key")).collect();
    for key in &keys {
        map.update(key, &|_| 7, Update::Any, &mut 0).expect("there is room");
    }
    let mut longest = 0;
    for key in &keys {
        let followed = map.find(key).expect("a hash map").links;
        let mut links = 0;
        assert_eq!(map.update(key, &|_| 8, Update::Exist, &mut links), Ok(()));
        assert_eq!(links, followed);
        assert_eq!(map.update(key, &|_| 9, Update::NoExist, &mut links), Err(MapError::Exists));
        assert_eq!(links, 2 * followed);
        longest = longest.max(followed);
    }
    assert!(longest > 1, "no two of these keys are in one chain");
    for key in &keys {
        let followed = map.find(key).expect("a hash map").links;
        let mut links = 0;
        assert_eq!(map.delete(key, &mut links), Ok(()));
        assert_eq!(links, followed);
    }
}
