//! Hash of fixed capacity, chained, with an optional approximate LRU.
//!
//! Links are slot numbers plus one, so that zero ends a chain. Programs see only the values; keys and links
//! are out of their reach.
//!
//! Programs look up elements beside a change (see [`Version`]). So a change publishes a slot when it is
//! complete, and leaves a slot that it takes out of a chain unchanged. There is a slot more than elements, so
//! that no change reuses the slot that it gave up itself.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::array::store_value;
use super::version::Version;
use super::{Found, Key, MapDef, MapError, MapKind, Update, Value};
use crate::insn::Size;
use crate::words::Words;

/// Slots that an eviction visits before it takes any.
const EVICTION_LOOKS: usize = 32;

pub(super) struct Hash {
    version: Version,
    /// Secret seed. Guests choose block numbers, and so keys: without it they could choose keys that collide.
    seed: u64,
    key_size: usize,
    value_size: usize,
    key_words: usize,
    stride: usize,
    lru: bool,
    buckets: Box<[AtomicU32]>,
    slots: Box<[Slot]>,
    /// Numbers of the slots without an element, as a stack; never empty outside of a change.
    free: Box<[AtomicU32]>,
    free_count: AtomicU32,
    /// Slot at which the next eviction begins.
    hand: AtomicU32,
    keys: Words,
    values: Words,
}

#[derive(Default)]
struct Slot {
    next: AtomicU32,
    used: AtomicBool,
    /// Whether the element was looked up since the hand passed it.
    recent: AtomicBool,
}

/// Marks a step of a change, at which tests check the view of a program.
fn step() {
    #[cfg(test)]
    super::tests::at_step();
}

impl Hash {
    pub(super) fn new(def: &MapDef) -> Self {
        let slots = slots(def);
        let key_words = key_words(def);
        Self {
            version: Version::default(),
            seed: RandomState::new().hash_one(slots),
            key_size: def.key_size as usize,
            value_size: def.value_size as usize,
            key_words,
            stride: def.stride(),
            lru: def.kind == MapKind::LruHash,
            buckets: (0..buckets(def)).map(|_| AtomicU32::new(0)).collect(),
            slots: (0..slots).map(|_| Slot::default()).collect(),
            free: (0..slots as u32).rev().map(AtomicU32::new).collect(),
            free_count: AtomicU32::new(slots as u32),
            hand: AtomicU32::new(0),
            keys: Words::new(slots * key_words * 8),
            values: Words::new(slots * def.stride()),
        }
    }

    pub(super) fn values(&self) -> &Words {
        &self.values
    }

    /// Looks up a key for a program: never waits, and the result is true at some moment of the call.
    #[inline]
    pub(super) fn find(&self, key: &Key) -> Found {
        let bucket = self.bucket(key);
        let (number, links) = self.version.glance(|| self.walk(bucket, key));
        let at = number.map(|number| {
            if let Some(slot) = self.slot(number)
                && self.lru
                && !slot.recent.load(Relaxed)
            {
                slot.recent.store(true, Relaxed);
            }
            self.value_of(number)
        });
        Found { at, links }
    }

    /// Returns the value of a key for other threads; does not count as use.
    pub(super) fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, MapError> {
        let bucket = self.bucket(key);
        self.version.read(|| self.walk(bucket, key).0.map(|number| self.value_bytes(number)))
    }

    /// Changes an element. `links` grows by the length of the chain that was followed.
    pub(super) fn update(
        &self,
        key: &Key,
        value: Value<'_>,
        update: Update,
        links: &mut u64,
    ) -> Result<(), MapError> {
        let _claim = self.version.claim()?;
        let bucket = self.bucket(key);
        let (found, walked) = self.walk(bucket, key);
        *links += walked;
        match (found, update) {
            (Some(_), Update::NoExist) => Err(MapError::Exists),
            (None, Update::Exist) => Err(MapError::NotFound),
            (Some(number), _) => {
                store_value(&self.values, self.value_of(number), self.stride, value);
                Ok(())
            }
            (None, _) => self.insert(bucket, key, value),
        }
    }

    /// Removes an element; `links` as in [`update`](Self::update).
    pub(super) fn delete(&self, key: &Key, links: &mut u64) -> Result<(), MapError> {
        let _claim = self.version.claim()?;
        let bucket = self.bucket(key);
        let (found, walked) = self.walk(bucket, key);
        *links += walked;
        self.release(bucket, found.ok_or(MapError::NotFound)?);
        Ok(())
    }

    /// Returns the content of a slot, at a time without changes.
    pub(super) fn entry(&self, number: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        let slot = self.slot(number)?;
        let look = || slot.used.load(Relaxed).then(|| (self.key_bytes(number), self.value_bytes(number)));
        loop {
            match self.version.read(look) {
                Ok(seen) => return seen,
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// Returns whether a slot has an element now.
    pub(super) fn is_used(&self, number: usize) -> bool {
        self.slot(number).is_some_and(|slot| slot.used.load(Relaxed))
    }

    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Claims the right to change, like a thread that sleeps in the middle of a change.
    #[cfg(test)]
    pub(super) fn claim(&self) -> super::version::Claim<'_> {
        self.version.claim().expect("no other change is under way")
    }

    /// Returns the bytes of the map's memory.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let links = size_of_val(&*self.buckets) + size_of_val(&*self.free);
        links + size_of_val(&*self.slots) + self.keys.len() + self.values.len()
    }

    fn key_bytes(&self, number: usize) -> Vec<u8> {
        read(&self.keys, number * self.key_words * 8, self.key_size)
    }

    fn value_bytes(&self, number: usize) -> Vec<u8> {
        read(&self.values, self.value_of(number), self.value_size)
    }

    /// Returns the bucket of a key. Each word is folded in by a multiplication whose halves are mixed.
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

    /// Returns the key's slot, and the number of slots visited: at most all, whatever the links are
    /// meanwhile.
    fn walk(&self, bucket: usize, key: &Key) -> (Option<usize>, u64) {
        // Acquire, here and below: a slot is complete when it is linked to.
        let mut link = self.buckets.get(bucket).map_or(0, |head| head.load(Acquire));
        let mut links = 0;
        while let Some(slot) = (link as usize).checked_sub(1).and_then(|number| self.slot(number)) {
            links += 1;
            let number = link as usize - 1;
            if self.key_is(number, key) {
                return (Some(number), links);
            }
            if links > self.slots.len() as u64 {
                break;
            }
            link = slot.next.load(Acquire);
        }
        (None, links)
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
        let is_full = self.free_count.load(Relaxed) == 1;
        if is_full && !self.lru {
            return Err(MapError::Full);
        }
        let number = self.pop_free().ok_or(MapError::Invalid)?;
        if is_full {
            self.evict();
        }
        let (Some(slot), Some(head)) = (self.slot(number), self.buckets.get(bucket)) else {
            return Err(MapError::Invalid);
        };
        for (i, word) in key.words.iter().take(self.key_words).enumerate() {
            self.keys.store((number * self.key_words + i) * 8, Size::B8, *word);
            step();
        }
        store_value(&self.values, self.value_of(number), self.stride, value);
        slot.used.store(true, Relaxed);
        slot.recent.store(false, Relaxed);
        slot.next.store(head.load(Relaxed), Release);
        step();
        head.store(number as u32 + 1, Release);
        step();
        Ok(())
    }

    /// Takes a slot out of its chain and frees it. Its link, key and value stay: a program may be reading
    /// them.
    fn release(&self, bucket: usize, number: usize) {
        let Some(slot) = self.slot(number) else { return };
        let mut link = self.buckets.get(bucket);
        while let Some(place) = link {
            let at = place.load(Relaxed);
            if at as usize == number + 1 {
                place.store(slot.next.load(Relaxed), Release);
                break;
            }
            link = (at as usize).checked_sub(1).and_then(|before| Some(&self.slot(before)?.next));
        }
        step();
        slot.used.store(false, Relaxed);
        self.push_free(number);
    }

    fn pop_free(&self) -> Option<usize> {
        let last = self.free_count.load(Relaxed).checked_sub(1)?;
        self.free_count.store(last, Relaxed);
        Some(self.free.get(last as usize)?.load(Relaxed) as usize)
    }

    fn push_free(&self, number: usize) {
        let count = self.free_count.load(Relaxed);
        if let Some(place) = self.free.get(count as usize) {
            place.store(number as u32, Relaxed);
            self.free_count.store(count + 1, Relaxed);
        }
    }

    /// Evicts one element that was not looked up since the hand last passed it, or else any.
    fn evict(&self) {
        let start = self.hand.load(Relaxed) as usize;
        let used = |number: &usize| self.slot(*number).is_some_and(|slot| slot.used.load(Relaxed));
        let numbers = (0..self.slots.len()).map(|i| (start + i) % self.slots.len()).filter(used);
        let mut victim = None;
        for number in numbers.take(EVICTION_LOOKS) {
            victim = Some(number);
            if self.slot(number).is_some_and(|slot| !slot.recent.swap(false, Relaxed)) {
                break;
            }
        }
        let Some(victim) = victim else { return };
        self.hand.store((victim + 1) as u32, Relaxed);
        let key = Key::new(&self.key_bytes(victim)).unwrap_or_default();
        self.release(self.bucket(&key), victim);
    }
}

/// Copies bytes that are inside by construction.
fn read(words: &Words, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let _ = words.read(at, &mut bytes);
    bytes
}

fn slots(def: &MapDef) -> usize {
    def.max_entries as usize + 1
}

fn buckets(def: &MapDef) -> usize {
    (def.max_entries as usize).next_power_of_two()
}

fn key_words(def: &MapDef) -> usize {
    (def.key_size as usize).div_ceil(8)
}

/// Returns the bytes of such a map: of each slot itself, its place in the stack of free ones, key and value.
pub(super) fn bytes_of(def: &MapDef) -> u128 {
    let slot = size_of::<Slot>() + size_of::<u32>() + key_words(def) * 8 + def.stride();
    slots(def) as u128 * slot as u128 + (buckets(def) * size_of::<u32>()) as u128
}
