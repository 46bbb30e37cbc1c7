//! Maps: the memory of a program over its runs, shared with other threads.
//!
//! All memory of a map is reserved when its program is loaded; no operation of a program allocates or waits.
//! A map may be read and changed from any thread while programs run.
//!
//! A lookup of a program always returns a result: the old one while another thread changes the map, even if
//! that thread sleeps meanwhile. A translation cache returns a miss then. Changes exclude each other. A
//! change that finds another under way gives up after a moment with [`MapError::Busy`], which a program gets
//! as -16. A caller that must not disturb the changes of a program makes its own changes on the program's
//! thread. Only an array needs none of this: its elements always exist.

mod array;
mod def;
mod hash;
mod translation;
mod version;

use std::fmt;

pub use def::{MapDef, MapKind, flags};
pub use translation::{Translation, TranslationCache};

use crate::words::Words;
use array::Array;
use hash::Hash;

/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 64;
const KEY_WORDS: usize = KEY_BYTES_MAX / 8;

/// Map with its storage.
pub struct Map {
    def: MapDef,
    storage: Storage,
}

enum Storage {
    Array(Array),
    Hash(Hash),
    Translation(TranslationCache),
}

/// Condition of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Insert or replace.
    Any,
    /// Only insert.
    NoExist,
    /// Only replace.
    Exist,
}

impl Update {
    /// Parses the flags of `bpf_map_update_elem`.
    pub const fn from_flags(flags: u64) -> Option<Self> {
        match flags {
            0 => Some(Self::Any),
            1 => Some(Self::NoExist),
            2 => Some(Self::Exist),
            _ => None,
        }
    }
}

/// Reason why an operation on a map did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapError {
    /// The element does not exist.
    NotFound,
    /// The element exists already.
    Exists,
    /// No room for another element, or an index past the end.
    Full,
    /// Another thread is changing the map; try again.
    Busy,
    /// The kind of map does not support the operation, or a key or value has the wrong length.
    Invalid,
}

impl MapError {
    /// Returns the negative error number for a program, as from the kernel's helpers.
    pub const fn errno(self) -> u64 {
        let number: i64 = match self {
            Self::NotFound => -2,
            Self::Full => -7,
            Self::Busy => -16,
            Self::Exists => -17,
            Self::Invalid => -22,
        };
        number as u64
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "the map has no such key",
            Self::Exists => "the map has this key already",
            Self::Full => "the map is full, or the index is past its end",
            Self::Busy => "another thread is changing the map; try again",
            Self::Invalid => "the map cannot do this, or the key or value has the wrong length",
        })
    }
}

impl std::error::Error for MapError {}

/// Result of a lookup.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// Beginning of the value in [`Map::values`].
    pub(crate) at: Option<usize>,
    /// Links of a chain that were followed; zero for an array.
    pub(crate) links: u64,
}

/// Part of the content of a map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys with their values.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Beginning of the next page, if there is more.
    pub next: Option<usize>,
    /// Number of entries after these.
    pub left: usize,
}

/// Key, padded with zeros to whole words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Key {
    words: [u64; KEY_WORDS],
}

impl Key {
    /// Creates a key of at most [`KEY_BYTES_MAX`] bytes.
    pub(crate) fn new(bytes: &[u8]) -> Option<Self> {
        let mut key = Self::default();
        let mut padded = [0; KEY_BYTES_MAX];
        padded.get_mut(..bytes.len())?.copy_from_slice(bytes);
        for (word, chunk) in key.words.iter_mut().zip(padded.as_chunks().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        Some(key)
    }

    /// Creates a key of at most 8 bytes.
    pub(crate) fn of_word(word: u64) -> Self {
        let mut key = Self::default();
        key.words[0] = word;
        key
    }

    fn index(&self) -> usize {
        self.words[0] as u32 as usize
    }
}

/// Function that returns a value a word at a time: word `i` holds bytes `8 * i..`, zero-padded.
pub(crate) type Value<'a> = &'a dyn Fn(usize) -> u64;

/// Returns a word of a value's bytes.
fn word_of(bytes: &[u8], word: usize) -> u64 {
    let mut padded = [0; 8];
    let rest = bytes.get(word * 8..).unwrap_or_default();
    for (to, from) in padded.iter_mut().zip(rest) {
        *to = *from;
    }
    u64::from_le_bytes(padded)
}

impl Map {
    /// Reserves a map; `def` must have been [checked](MapDef::check).
    pub(crate) fn new(def: MapDef) -> Self {
        let storage = match def.kind {
            MapKind::Array => Storage::Array(Array::new(&def)),
            MapKind::Hash | MapKind::LruHash => Storage::Hash(Hash::new(&def)),
            MapKind::Translation => Storage::Translation(TranslationCache::new(&def)),
        };
        Self { def, storage }
    }

    /// Returns the definition.
    pub fn def(&self) -> &MapDef {
        &self.def
    }

    /// Returns whether this map can take the place of one with this definition: equal name and shape.
    pub fn matches(&self, def: &MapDef) -> bool {
        self.def == *def
    }

    /// Returns the value of a key, from a time without changes. A program that writes to the value by its
    /// address is not waited for, but no aligned word is half old and half new.
    pub fn get(&self, key: &[u8]) -> Result<Vec<u8>, MapError> {
        let key = self.key(key)?;
        match &self.storage {
            Storage::Array(array) => array.find(key.index()).map(|at| self.value_at(at)).transpose()?,
            Storage::Hash(hash) => hash.get(&key)?,
            Storage::Translation(_) => return Err(MapError::Invalid),
        }
        .ok_or(MapError::NotFound)
    }

    /// Sets the value of a key.
    pub fn set(&self, key: &[u8], value: &[u8], update: Update) -> Result<(), MapError> {
        if value.len() != self.def.value_size as usize {
            return Err(MapError::Invalid);
        }
        self.update(&self.key(key)?, &|word| word_of(value, word), update, &mut 0)
    }

    /// Removes a key.
    pub fn remove(&self, key: &[u8]) -> Result<(), MapError> {
        self.delete(&self.key(key)?, &mut 0)
    }

    /// Returns a page of the map: at most `limit` keys with their values, from the `next` of an earlier page
    /// on, or from zero. An array's are in order, those of a translation cache are not shown.
    ///
    /// Each entry existed at some moment. Among keys that change meanwhile one may be missing, or appear
    /// twice if it was removed and inserted elsewhere. Waits for a change under way, so no reactor may call
    /// it.
    pub fn page(&self, from: usize, limit: usize) -> Page {
        let (places, is_used): (usize, &dyn Fn(usize) -> bool) = match &self.storage {
            Storage::Array(array) => (array.len(), &|_| true),
            Storage::Hash(hash) => (hash.slots(), &|slot| hash.is_used(slot)),
            Storage::Translation(_) => (0, &|_| false),
        };
        let mut page = Page::default();
        let mut place = from;
        while place < places && page.entries.len() < limit {
            page.entries.extend(self.entry(place));
            place += 1;
        }
        page.left = (place..places).filter(|place| is_used(*place)).count();
        page.next = (page.left > 0).then_some(place);
        page
    }

    /// Returns all keys with their values, those of a hash sorted by key. For small maps.
    pub fn entries(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut entries = self.page(0, usize::MAX).entries;
        if self.def.kind != MapKind::Array {
            entries.sort();
            entries.dedup_by(|one, other| one.0 == other.0);
        }
        entries
    }

    /// Returns the entry in a place of the storage.
    fn entry(&self, place: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        match &self.storage {
            Storage::Array(array) => {
                let value = self.value_at(array.find(place)?).ok()?;
                Some(((place as u32).to_le_bytes().to_vec(), value))
            }
            Storage::Hash(hash) => hash.entry(place),
            Storage::Translation(_) => None,
        }
    }

    /// Returns the translation cache, if the map is one.
    pub fn translations(&self) -> Option<&TranslationCache> {
        match &self.storage {
            Storage::Translation(cache) => Some(cache),
            _ => None,
        }
    }

    /// Returns the memory that programs may address: all values, one after the other.
    pub(crate) fn values(&self) -> Option<&Words> {
        match &self.storage {
            Storage::Array(array) => Some(array.values()),
            Storage::Hash(hash) => Some(hash.values()),
            Storage::Translation(_) => None,
        }
    }

    /// Looks up the beginning of a key's value in [`values`](Self::values), for programs.
    #[inline]
    pub(crate) fn find(&self, key: &Key) -> Result<Found, MapError> {
        match &self.storage {
            Storage::Array(array) => Ok(Found { at: array.find(key.index()), links: 0 }),
            Storage::Hash(hash) => Ok(hash.find(key)),
            Storage::Translation(_) => Err(MapError::Invalid),
        }
    }

    /// Changes an element. `links` grows by the length of the chain that was followed.
    pub(crate) fn update(
        &self,
        key: &Key,
        value: Value<'_>,
        update: Update,
        links: &mut u64,
    ) -> Result<(), MapError> {
        match &self.storage {
            Storage::Array(array) => array.update(key.index(), value, update),
            Storage::Hash(hash) => hash.update(key, value, update, links),
            Storage::Translation(_) => Err(MapError::Invalid),
        }
    }

    /// Removes an element; `links` as in [`update`](Self::update).
    pub(crate) fn delete(&self, key: &Key, links: &mut u64) -> Result<(), MapError> {
        match &self.storage {
            Storage::Hash(hash) => hash.delete(key, links),
            Storage::Array(_) | Storage::Translation(_) => Err(MapError::Invalid),
        }
    }

    fn key(&self, bytes: &[u8]) -> Result<Key, MapError> {
        if bytes.len() != self.def.key_size as usize {
            return Err(MapError::Invalid);
        }
        Key::new(bytes).ok_or(MapError::Invalid)
    }

    fn value_at(&self, at: usize) -> Result<Vec<u8>, MapError> {
        let mut bytes = vec![0; self.def.value_size as usize];
        let values = self.values().ok_or(MapError::Invalid)?;
        values.read(at, &mut bytes).ok_or(MapError::Invalid)?;
        Ok(bytes)
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("def", &self.def).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
