//! Translation cache of a drive's classifier, filled by a function.

use sluice_classifier::{Map, MapError, MapKind, Translation as Place};
use sluice_functions::host::{Translations, UifControl};
use sluice_uif::Translation;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of attempts to clear a dropped cache while another thread is changing it.
const TRIES: u32 = 1000;

/// Link between a function and the translation cache that it fills.
#[derive(Debug)]
pub(super) struct CacheControl {
    /// Name of the cache's map; `None` if the function fills no cache.
    name: Option<String>,
    block_size: u32,
    /// Map that the function fills at present.
    filled: Mutex<Option<Arc<Map>>>,
}

impl CacheControl {
    pub(super) fn new(name: Option<String>, block_size: u32) -> Self {
        Self { name, block_size, filled: Mutex::default() }
    }

    /// Returns whether the function fills a cache. Its translations are in blocks of the namespace's
    /// configured size.
    pub(super) fn is_filled(&self) -> bool {
        self.name.is_some()
    }

    /// Connects the function with its translation cache among `maps`, the maps of the drive's present
    /// classifier.
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
                let blocks = Blocks { shift: self.block_size.trailing_zeros() };
                Box::new(Cache { map: Arc::clone(map), blocks })
            };
            function.set_translations(next.map(cache));
            *filled = next.cloned();
        }
    }
}

/// Conversion of bytes to blocks. The numbers come from a function and are not trusted.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    shift: u32,
}

impl Blocks {
    /// Returns the blocks that overlap a range of bytes.
    fn touched(self, from: u64, length: u64) -> Range<u64> {
        from >> self.shift..self.up(from.saturating_add(length))
    }

    /// Returns the blocks that lie in a range as a whole, and the block to which the first of them is
    /// translated. Returns `None` if there are no such blocks, or if the translation is not aligned to a
    /// block.
    fn whole(self, from: u64, length: u64, to: u64) -> Option<(Range<u64>, u64)> {
        let blocks = self.up(from)..from.saturating_add(length) >> self.shift;
        if blocks.is_empty() {
            return None;
        }
        // The first block begins inside of the range, so its offset in bytes does not overflow.
        let to = to.checked_add((blocks.start << self.shift) - from)?;
        to.is_multiple_of(1 << self.shift).then_some((blocks, to >> self.shift))
    }

    fn up(self, bytes: u64) -> u64 {
        bytes.div_ceil(1 << self.shift)
    }
}

/// Cache as the function's layer holds it.
#[derive(Debug)]
struct Cache {
    map: Arc<Map>,
    blocks: Blocks,
}

impl Translations for Cache {
    fn note(&mut self, news: &Translation) -> bool {
        let Some(cache) = self.map.translations() else { return true };
        let done = match *news {
            Translation::Insert { from, length, to, writable } => {
                let flags = if writable { Place::WRITABLE } else { 0 };
                let whole = self.blocks.whole(from, length, to);
                whole.map_or(Ok(()), |(blocks, to)| cache.insert(blocks, to, flags))
            }
            Translation::Forget { from, length } => cache.invalidate(self.blocks.touched(from, length)),
            // Protection of everything, as for a new snapshot, changes one word. A part is invalidated, and
            // the function is queried for it again.
            Translation::Protect { from: 0, length: u64::MAX } => cache.clear_writable(),
            Translation::Protect { from, length } => cache.invalidate(self.blocks.touched(from, length)),
        };
        done != Err(MapError::Busy)
    }

    fn forget_all(&mut self) -> bool {
        self.map.translations().is_none_or(|cache| cache.clear() != Err(MapError::Busy))
    }

    fn places(&self, news: &Translation) -> u64 {
        let (Translation::Insert { from, length, .. }
        | Translation::Forget { from, length }
        | Translation::Protect { from, length }) = *news;
        let all =
            self.map.translations().map_or(0, |cache| cache.sets_of(&self.blocks.touched(from, length)));
        if *news == (Translation::Protect { from: 0, length: u64::MAX }) { 1 } else { all }
    }
}

/// Removal of all translations: no function keeps them up to date any more.
impl Drop for Cache {
    fn drop(&mut self) {
        let _ = (0..TRIES).find(|_| self.forget_all());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: Blocks = Blocks { shift: 9 };

    #[test]
    fn a_range_has_the_blocks_that_lie_in_it_as_a_whole() {
        assert_eq!(BLOCKS.whole(256, 1024, 5120 + 256), Some((1..2, 11)));
        assert_eq!(BLOCKS.whole(0, 1024, 512), Some((0..2, 1)));
        assert_eq!(BLOCKS.whole(0, 1024, 513), None, "at no block");
        assert_eq!(BLOCKS.whole(1, 1022, 1), None, "none");
        assert_eq!(BLOCKS.touched(256, 1024), 0..3);
    }

    #[test]
    fn a_function_may_say_any_number() {
        let edges = [0, 1, 511, 512, 1 << 63, u64::MAX - 512, u64::MAX - 511, u64::MAX - 1, u64::MAX];
        for (from, length) in edges.into_iter().flat_map(|from| edges.map(|length| (from, length))) {
            let end = u128::from(from.saturating_add(length));
            let touched = BLOCKS.touched(from, length);
            assert!(u128::from(touched.end) << 9 >= end, "{from} {length}");
            for to in edges {
                if let Some((blocks, at)) = BLOCKS.whole(from, length, to) {
                    let bytes = u128::from(blocks.start) << 9..u128::from(blocks.end) << 9;
                    assert!(bytes.start >= from.into() && bytes.end <= end && !blocks.is_empty());
                    assert_eq!(u128::from(at) << 9, u128::from(to) + bytes.start - u128::from(from));
                }
            }
        }
    }
}
