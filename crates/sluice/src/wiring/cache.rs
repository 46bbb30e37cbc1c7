//! The translation cache of a drive's classifier, as a function fills it.

use sluice_classifier::{Map, MapError, MapKind, Translation as Place};
use sluice_functions::uif::{Translations, UifControl};
use sluice_uif::Translation;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Tries to clear a cache that nobody fills any more, while somebody else is changing it.
const TRIES: u32 = 1000;

/// Which cache a function fills.
#[derive(Debug)]
pub(super) struct CacheControl {
    /// Its name, if the function fills one.
    name: Option<String>,
    block_size: u32,
    /// The one that it has now.
    filled: Mutex<Option<Arc<Map>>>,
}

impl CacheControl {
    pub(super) fn new(name: Option<String>, block_size: u32) -> Self {
        Self { name, block_size, filled: Mutex::default() }
    }

    /// The drive's classifier has these maps now.
    pub(super) fn renew(&self, drive: &str, maps: &[Arc<Map>], function: &UifControl) {
        let Some(name) = &self.name else { return };
        let found = maps.iter().find(|map| map.def().name == *name);
        let next = found.filter(|map| map.def().kind == MapKind::Translation && !map.def().shared());
        if found.is_some() && next.is_none() {
            tracing::warn!(drive, map = name, "is no translation cache of the drive's own: it is not filled");
        }
        let mut filled = self.filled.lock().unwrap_or_else(PoisonError::into_inner);
        let same = match (&*filled, next) {
            (Some(before), Some(next)) => Arc::ptr_eq(before, next),
            (before, next) => before.is_none() && next.is_none(),
        };
        if !same {
            let cache = |map: &Arc<Map>| -> Box<dyn Translations> {
                Box::new(Cache { map: Arc::clone(map), block_shift: self.block_size.trailing_zeros() })
            };
            function.set_translations(next.map(cache));
            *filled = next.cloned();
        }
    }
}

/// A cache in the hands of the function's layer.
#[derive(Debug)]
struct Cache {
    map: Arc<Map>,
    block_shift: u32,
}

impl Cache {
    /// Blocks that lie in a range of bytes as a whole, or those that it touches.
    fn blocks(&self, from: u64, length: u64, whole: bool) -> Range<u64> {
        let end = from.saturating_add(length);
        let up =
            |bytes: u64| (bytes >> self.block_shift) + u64::from(bytes & ((1 << self.block_shift) - 1) != 0);
        match whole {
            true => up(from)..end >> self.block_shift,
            false => from >> self.block_shift..up(end),
        }
    }
}

impl Translations for Cache {
    fn note(&mut self, news: &Translation) -> bool {
        let Some(cache) = self.map.translations() else { return true };
        let done = match *news {
            Translation::Insert { from, length, to, writable } => {
                let blocks = self.blocks(from, length, true);
                // Where the first of them is.
                let to = to.saturating_add((blocks.start << self.block_shift) - from);
                let flags = if writable { Place::WRITABLE } else { 0 };
                match blocks.is_empty() || !to.is_multiple_of(1 << self.block_shift) {
                    true => Ok(()),
                    false => cache.insert(blocks, to >> self.block_shift, flags),
                }
            }
            Translation::Forget { from, length } => cache.invalidate(self.blocks(from, length, false)),
            // All of it, as when a snapshot is taken, is a word; a piece is asked for again.
            Translation::Protect { from: 0, length: u64::MAX } => cache.clear_writable(),
            Translation::Protect { from, length } => cache.invalidate(self.blocks(from, length, false)),
        };
        done != Err(MapError::Busy)
    }

    fn forget_all(&mut self) -> bool {
        self.map.translations().is_none_or(|cache| cache.clear() != Err(MapError::Busy))
    }
}

/// Nobody keeps it true any more.
impl Drop for Cache {
    fn drop(&mut self) {
        let _ = (0..TRIES).find(|_| self.forget_all());
    }
}
