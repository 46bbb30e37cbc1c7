//! A hash of fixed capacity, chained, with an approximate LRU on request.
//!
//! Links are slot numbers plus one, so that zero ends a chain. Programs see only the values; keys and links
//! are out of their reach.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use super::array::store_value;
use super::version::Version;
use super::{Key, MapDef, MapError, MapKind, Update, Value};
use crate::insn::Size;
use crate::words::Words;

/// Slots that an eviction looks at before it takes whatever comes.
const EVICTION_LOOKS: usize = 32;

pub(super) struct Hash {
    version: Version,
    /// Guests choose block numbers, and so keys: without a secret they could choose them to collide.
    seed: u64,
    key_size: usize,
    key_words: usize,
    stride: usize,
    lru: bool,
    buckets: Box<[AtomicU32]>,
    slots: Box<[Slot]>,
    free: AtomicU32,
    /// Where the next eviction begins to look.
    hand: AtomicU32,
    keys: Words,
    values: Words,
}

#[derive(Default)]
struct Slot {
    next: AtomicU32,
    used: AtomicBool,
    /// Looked up since the hand was here.
    recent: AtomicBool,
}

impl Hash {
    pub(super) fn new(def: &MapDef) -> Self {
        let entries = def.max_entries as usize;
        let key_words = (def.key_size as usize).div_ceil(8);
        let slots: Box<[Slot]> = (0..entries).map(|_| Slot::default()).collect();
        for (i, slot) in slots.iter().enumerate().take(entries - 1) {
            slot.next.store(i as u32 + 2, Relaxed);
        }
        Self {
            version: Version::default(),
            seed: RandomState::new().hash_one(entries),
            key_size: def.key_size as usize,
            key_words,
            stride: def.stride(),
            lru: def.kind == MapKind::LruHash,
            buckets: (0..entries.next_power_of_two()).map(|_| AtomicU32::new(0)).collect(),
            slots,
            free: AtomicU32::new(1),
            hand: AtomicU32::new(0),
            keys: Words::new(entries * key_words * 8),
            values: Words::new(entries * def.stride()),
        }
    }

    pub(super) fn values(&self) -> &Words {
        &self.values
    }

    pub(super) fn find(&self, key: &Key) -> Result<Option<usize>, MapError> {
        let found = self.version.read(|| self.walk(self.bucket(key), key))?;
        Ok(found.map(|number| {
            if let Some(slot) = self.slot(number)
                && self.lru
                && !slot.recent.load(Relaxed)
            {
                slot.recent.store(true, Relaxed);
            }
            self.value_of(number)
        }))
    }

    pub(super) fn update(&self, key: &Key, value: Value<'_>, update: Update) -> Result<(), MapError> {
        let _claim = self.version.claim()?;
        let bucket = self.bucket(key);
        match (self.walk(bucket, key), update) {
            (Some(_), Update::NoExist) => Err(MapError::Exists),
            (None, Update::Exist) => Err(MapError::NotFound),
            (Some(number), _) => {
                store_value(&self.values, self.value_of(number), self.stride, value);
                Ok(())
            }
            (None, _) => self.insert(bucket, key, value),
        }
    }

    pub(super) fn delete(&self, key: &Key) -> Result<(), MapError> {
        let _claim = self.version.claim()?;
        let bucket = self.bucket(key);
        let number = self.walk(bucket, key).ok_or(MapError::NotFound)?;
        self.release(bucket, number);
        Ok(())
    }

    pub(super) fn keys(&self) -> Vec<Vec<u8>> {
        let one = |number: usize| {
            let key = || self.slots.get(number)?.used.load(Relaxed).then(|| self.key_bytes(number));
            self.version.read(key).ok().flatten()
        };
        (0..self.slots.len()).filter_map(one).collect()
    }

    fn key_bytes(&self, number: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.key_size];
        // A slot's key is inside `keys` by construction.
        let _ = self.keys.read(number * self.key_words * 8, &mut bytes);
        bytes
    }

    /// Each word is folded in by a multiplication whose halves are mixed.
    fn bucket(&self, key: &Key) -> usize {
        let mut hash = self.seed;
        for word in key.words.iter().take(self.key_words) {
            let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
            hash = product as u64 ^ (product >> 64) as u64;
        }
        hash as usize & (self.buckets.len() - 1)
    }

    fn slot(&self, number: usize) -> Option<&Slot> {
        self.slots.get(number)
    }

    fn value_of(&self, number: usize) -> usize {
        number * self.stride
    }

    fn head(&self, bucket: usize) -> usize {
        self.buckets.get(bucket).map_or(0, |head| head.load(Relaxed) as usize)
    }

    /// The key's slot. Ends after as many steps as there are slots, whatever the links say meanwhile.
    fn walk(&self, bucket: usize, key: &Key) -> Option<usize> {
        let mut link = self.head(bucket);
        for _ in 0..self.slots.len() {
            let number = link.checked_sub(1)?;
            if self.key_is(number, key) {
                return Some(number);
            }
            link = self.slot(number)?.next.load(Relaxed) as usize;
        }
        None
    }

    fn key_is(&self, number: usize, key: &Key) -> bool {
        let at = number * self.key_words;
        key.words
            .iter()
            .take(self.key_words)
            .enumerate()
            .all(|(i, word)| self.keys.load((at + i) * 8, Size::B8) == Some(*word))
    }

    fn insert(&self, bucket: usize, key: &Key, value: Value<'_>) -> Result<(), MapError> {
        if self.free.load(Relaxed) == 0 && self.lru {
            self.evict();
        }
        let number = (self.free.load(Relaxed) as usize).checked_sub(1).ok_or(MapError::Full)?;
        let (Some(slot), Some(head)) = (self.slot(number), self.buckets.get(bucket)) else {
            return Err(MapError::Invalid);
        };
        self.free.store(slot.next.load(Relaxed), Relaxed);
        for (i, word) in key.words.iter().take(self.key_words).enumerate() {
            self.keys.store((number * self.key_words + i) * 8, Size::B8, *word);
        }
        store_value(&self.values, self.value_of(number), self.stride, value);
        slot.used.store(true, Relaxed);
        slot.recent.store(false, Relaxed);
        slot.next.store(head.load(Relaxed), Relaxed);
        head.store(number as u32 + 1, Relaxed);
        Ok(())
    }

    /// Takes a slot out of its chain and makes it free.
    fn release(&self, bucket: usize, number: usize) {
        let Some(slot) = self.slot(number) else { return };
        let next = slot.next.load(Relaxed);
        let mut link = self.buckets.get(bucket);
        while let Some(place) = link {
            let at = place.load(Relaxed);
            if at as usize == number + 1 {
                place.store(next, Relaxed);
                break;
            }
            link = (at as usize).checked_sub(1).and_then(|before| Some(&self.slot(before)?.next));
        }
        slot.used.store(false, Relaxed);
        slot.next.store(self.free.load(Relaxed), Relaxed);
        self.free.store(number as u32 + 1, Relaxed);
    }

    /// Forgets one element that was not looked up since the hand last came by, or else any.
    fn evict(&self) {
        let start = self.hand.load(Relaxed) as usize;
        let numbers = (0..self.slots.len().min(EVICTION_LOOKS)).map(|i| (start + i) % self.slots.len());
        let mut victim = start % self.slots.len();
        for number in numbers {
            victim = number;
            if self.slot(number).is_some_and(|slot| !slot.recent.swap(false, Relaxed)) {
                break;
            }
        }
        self.hand.store((victim + 1) as u32, Relaxed);
        let key = Key::new(&self.key_bytes(victim)).unwrap_or_default();
        self.release(self.bucket(&key), victim);
    }
}
