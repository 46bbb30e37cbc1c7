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

    /// True if the function fills one, in blocks of the size that the namespace was given.
    pub(super) fn is_filled(&self) -> bool {
        self.name.is_some()
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
                let blocks = Blocks { shift: self.block_size.trailing_zeros() };
                Box::new(Cache { map: Arc::clone(map), blocks })
            };
            function.set_translations(next.map(cache));
            *filled = next.cloned();
        }
    }
}

/// Counts bytes in blocks. What a function says may be anything.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    shift: u32,
}

impl Blocks {
    /// Blocks that a range of bytes touches.
    fn touched(self, from: u64, length: u64) -> Range<u64> {
        from >> self.shift..self.up(from.saturating_add(length))
    }

    /// Blocks that lie in a range as a whole, and the block where the first of them is; none if there are
    /// none, or if that is no block.
    fn whole(self, from: u64, length: u64, to: u64) -> Option<(Range<u64>, u64)> {
        let blocks = self.up(from)..from.saturating_add(length) >> self.shift;
        if blocks.is_empty() {
            return None;
        }
        // The first block begins inside of the range, and so is a number of bytes again.
        let to = to.checked_add((blocks.start << self.shift) - from)?;
        to.is_multiple_of(1 << self.shift).then_some((blocks, to >> self.shift))
    }

    fn up(self, bytes: u64) -> u64 {
        bytes.div_ceil(1 << self.shift)
    }
}

/// A cache in the hands of the function's layer.
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
            // All of it, as when a snapshot is taken, is a word; a piece is asked for again.
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

/// Nobody keeps it true any more.
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
