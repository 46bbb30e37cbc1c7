//! Every kind of map against a model that is obviously right.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn map(def: MapDef) -> Map {
    def.check().expect("the definition is good");
    Map::new(def)
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
        map.get(&key.to_le_bytes()).expect("it is there");
    }
    map.set(&9u32.to_le_bytes(), &[0; 4], Update::Any).expect("it makes room");
    assert_eq!(map.get(&1u32.to_le_bytes()), Err(MapError::NotFound));
    for key in [0u32, 2, 3, 9] {
        assert!(map.get(&key.to_le_bytes()).is_ok(), "{key} was used");
    }
    assert_eq!(map.entries().len(), 4);
}

proptest! {
    #[test]
    fn hash_like_a_hash_map(steps in prop::collection::vec((0u8..4, 0u64..24, any::<u64>()), 1..200)) {
        let map = map(MapDef::hash("h", 8, 8, 16));
        let mut model = HashMap::new();
        for (what, key, value) in steps {
            let bytes = key.to_le_bytes();
            let set = |update| map.set(&bytes, &value.to_le_bytes(), update);
            match what {
                0 => prop_assert_eq!(map.remove(&bytes).is_ok(), model.remove(&key).is_some()),
                1 => {
                    let there = model.contains_key(&key);
                    prop_assert_eq!(set(Update::Exist), if there { Ok(()) } else { Err(MapError::NotFound) });
                    model.entry(key).and_modify(|old| *old = value);
                }
                2 if model.contains_key(&key) => prop_assert_eq!(set(Update::NoExist), Err(MapError::Exists)),
                _ if model.len() == 16 && !model.contains_key(&key) => {
                    prop_assert_eq!(set(Update::Any), Err(MapError::Full));
                }
                _ => {
                    prop_assert_eq!(set(Update::Any), Ok(()));
                    model.insert(key, value);
                }
            }
            let expected = model.get(&key).map(|value| value.to_le_bytes().to_vec());
            prop_assert_eq!(map.get(&bytes).ok(), expected);
        }
        let mut entries = map.entries();
        let mut expected: Vec<_> =
            model.iter().map(|(k, v)| (k.to_le_bytes().to_vec(), v.to_le_bytes().to_vec())).collect();
        entries.sort();
        expected.sort();
        prop_assert_eq!(entries, expected);
    }

    /// A cache may forget, but what it says is what was said last, block by block.
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
                    cache.invalidate(blocks.clone()).expect("nobody else is here");
                    blocks.for_each(|block| { model.remove(&block); });
                }
                1 => {
                    cache.clear_writable().expect("nobody else is here");
                    model.values_mut().for_each(|(_, flags)| *flags &= !Translation::WRITABLE);
                }
                _ => {
                    cache.insert(blocks.clone(), target, flags).expect("nobody else is here");
                    blocks.for_each(|block| { model.insert(block, (target + block - start, flags)); });
                    if start >> shift == (blocks_end - 1) >> shift {
                        let hit = cache.lookup(start).expect("nobody else is here").expect("it was said just now");
                        prop_assert_eq!((hit.target, hit.flags), (target, flags));
                    }
                }
            }
            for block in 0..300 {
                if let Some(hit) = cache.lookup(block).expect("nobody else is here") {
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
    cache.insert(u64::MAX - 10..u64::MAX, 5, 1).expect("nobody else is here");
    let hit = cache.lookup(u64::MAX - 3).expect("nobody else is here").expect("it is there");
    assert_eq!(hit, Translation { target: 12, count: 3, flags: 1 });
    cache.insert(0..u64::MAX, u64::MAX - 5, 0).expect("nobody else is here");
    assert_eq!(cache.lookup(1 << 40), Ok(None));
    assert_eq!(cache.lookup(u64::MAX - 3), Ok(None));
    cache.clear().expect("nobody else is here");
    assert_eq!(cache.lookup(0), Ok(None));
}

/// Readers never see a key's value under another key, whatever writers do.
#[test]
fn readers_beside_writers() {
    let map = map(MapDef::hash("h", 8, 8, 8));
    map.set(&100u64.to_le_bytes(), &77u64.to_le_bytes(), Update::Any).expect("it is empty");
    std::thread::scope(|scope| {
        for offset in 0..2u64 {
            let map = &map;
            scope.spawn(move || {
                for i in 0..20_000u64 {
                    let key = (i * 2 + offset) % 12;
                    let _ = map.set(&key.to_le_bytes(), &(key * 1000).to_le_bytes(), Update::NoExist);
                    let _ = map.remove(&key.to_le_bytes());
                }
            });
        }
        // A key that nobody removes must be found each time: chains change around it.
        for _ in 0..20_000 {
            match map.get(&100u64.to_le_bytes()) {
                Ok(value) => assert_eq!(value, 77u64.to_le_bytes()),
                Err(error) => assert_eq!(error, MapError::Busy),
            }
        }
    });
}
