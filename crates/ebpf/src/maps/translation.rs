//! Translation cache: positions of ranges of blocks, as far as a function has announced them.
//!
//! A storage function that maps blocks (snapshots, thin provisioning) fills it with its replies; the
//! classifier looks it up first and so keeps hits on the fast path. It may drop entries at any time, and
//! never returns a wrong one. That makes it simple. A range is kept in parts that do not cross granules, and
//! a part that is partly invalidated is dropped whole. Making all parts read-only is one step, because
//! "writable" is a number that must match the cache's.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::version::Version;
use super::{MapDef, MapError};

/// Ranges that share a set.
const WAYS: usize = 8;
/// Looks of a program at a cache that is being changed, before the lookup counts as a miss.
const LOOKS: u32 = 16;
/// Most ranges that one insertion makes; the rest of a longer range is not cached.
const RANGES_MAX: u64 = 64;

/// Position of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// Position of the block at the target.
    pub target: u64,
    /// Number of blocks from it on that are contiguous there, at least.
    pub count: u32,
    /// Bits of the function, with [`WRITABLE`](Self::WRITABLE).
    pub flags: u32,
}

impl Translation {
    /// Flag of a block that may be written at its position directly.
    pub const WRITABLE: u32 = 1;
}

/// Translation cache, see the module's page.
#[derive(Debug)]
pub struct TranslationCache {
    version: Version,
    granule_shift: u64,
    ranges: Box<[CachedRange]>,
    /// Epoch whose ranges are writable.
    epoch: AtomicU64,
    /// Way that is replaced next when a set is full.
    victim: AtomicU64,
}

/// Cached range; empty when its count is zero.
#[derive(Debug, Default)]
struct CachedRange {
    start: AtomicU64,
    target: AtomicU64,
    /// Count in the upper half, flags in the lower.
    extent: AtomicU64,
    /// Epoch in which the range was writable.
    epoch: AtomicU64,
}

impl CachedRange {
    fn blocks(&self) -> Range<u64> {
        let start = self.start.load(Relaxed);
        start..start.saturating_add(self.extent.load(Relaxed) >> 32)
    }

    fn drop_if_touching(&self, blocks: &Range<u64>) {
        let own = self.blocks();
        if own.start < blocks.end && blocks.start < own.end {
            self.extent.store(0, Relaxed);
        }
    }
}

impl TranslationCache {
    pub(super) fn new(def: &MapDef) -> Self {
        Self {
            version: Version::default(),
            granule_shift: def.extra,
            ranges: (0..ranges(def)).map(|_| CachedRange::default()).collect(),
            epoch: AtomicU64::new(1),
            victim: AtomicU64::new(0),
        }
    }

    /// Returns the position of a block, if it is cached. While another thread changes the cache, the result
    /// is a miss.
    pub fn lookup(&self, block: u64) -> Option<Translation> {
        let set = self.set(block >> self.granule_shift);
        self.version.read_within(LOOKS, || set.iter().find_map(|range| self.hit(range, block))).flatten()
    }

    /// Returns the number of sets that are searched to drop these blocks.
    pub fn sets_of(&self, blocks: &Range<u64>) -> u64 {
        // A program may name any range, also an empty one.
        if blocks.is_empty() {
            return 0;
        }
        let granules = ((blocks.end - 1) >> self.granule_shift) - (blocks.start >> self.granule_shift);
        granules.saturating_add(1).min((self.ranges.len() / WAYS) as u64)
    }

    /// Claims the right to change, like a thread that sleeps in the middle of a change.
    #[cfg(test)]
    pub(super) fn claim(&self) -> super::version::Claim<'_> {
        self.version.claim().expect("no other change is under way")
    }

    /// Returns the bytes of the cache's memory.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.ranges)
    }

    /// Caches that `blocks` are at `target` on, in that order. All earlier entries for them are dropped.
    pub fn insert(&self, blocks: Range<u64>, target: u64, flags: u32) -> Result<(), MapError> {
        let _claim = self.version.claim()?;
        self.forget(&blocks);
        let mut start = blocks.start;
        for _ in 0..RANGES_MAX {
            if start >= blocks.end {
                break;
            }
            let end = self.granule_end(start).min(blocks.end);
            // A target that would wrap is a mistake of the filler: cache nothing.
            let Some(target) = target.checked_add(start - blocks.start) else { break };
            self.place(start..end, target, flags);
            start = end;
        }
        Ok(())
    }

    /// Drops all entries for any of `blocks`.
    pub fn invalidate(&self, blocks: Range<u64>) -> Result<(), MapError> {
        let _claim = self.version.claim()?;
        self.forget(&blocks);
        Ok(())
    }

    /// Makes all entries read-only, as when a snapshot is taken.
    pub fn clear_writable(&self) -> Result<(), MapError> {
        let _claim = self.version.claim()?;
        self.epoch.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Drops all entries.
    pub fn clear(&self) -> Result<(), MapError> {
        self.invalidate(0..u64::MAX)
    }

    fn hit(&self, range: &CachedRange, block: u64) -> Option<Translation> {
        let blocks = range.blocks();
        if !blocks.contains(&block) {
            return None;
        }
        let mut flags = range.extent.load(Relaxed) as u32;
        if range.epoch.load(Relaxed) != self.epoch.load(Relaxed) {
            flags &= !Translation::WRITABLE;
        }
        let target = range.target.load(Relaxed).wrapping_add(block - blocks.start);
        Some(Translation { target, count: (blocks.end - block) as u32, flags })
    }

    /// Returns the first block behind the granule of `block`; a range has at most 2^32 - 1 blocks.
    fn granule_end(&self, block: u64) -> u64 {
        let granule = block >> self.granule_shift;
        let end = (u128::from(granule) + 1) << self.granule_shift;
        u64::try_from(end).unwrap_or(u64::MAX).min(block.saturating_add(u64::from(u32::MAX)))
    }

    fn set(&self, granule: u64) -> &[CachedRange] {
        let sets = self.ranges.len() / WAYS;
        let mixed = granule.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let first = (mixed as usize & (sets - 1)) * WAYS;
        self.ranges.get(first..first + WAYS).unwrap_or_default()
    }

    fn forget(&self, blocks: &Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let granules = blocks.start >> self.granule_shift..=(blocks.end - 1) >> self.granule_shift;
        let sets = (self.ranges.len() / WAYS) as u64;
        if granules.end() - granules.start() >= sets {
            self.ranges.iter().for_each(|range| range.drop_if_touching(blocks));
        } else {
            granules.for_each(|granule| {
                self.set(granule).iter().for_each(|range| range.drop_if_touching(blocks))
            });
        }
    }

    fn place(&self, blocks: Range<u64>, target: u64, flags: u32) {
        let set = self.set(blocks.start >> self.granule_shift);
        let empty = set.iter().find(|range| range.blocks().is_empty());
        let next = self.victim.fetch_add(1, Relaxed) as usize % WAYS;
        let Some(range) = empty.or(set.get(next)) else { return };
        range.start.store(blocks.start, Relaxed);
        range.target.store(target, Relaxed);
        range.extent.store((blocks.end - blocks.start) << 32 | u64::from(flags), Relaxed);
        let writable = flags & Translation::WRITABLE != 0;
        range.epoch.store(if writable { self.epoch.load(Relaxed) } else { 0 }, Relaxed);
    }
}

/// Returns the number of ranges. Sets are a power of two, so there may be twice as many ranges as were
/// requested.
fn ranges(def: &MapDef) -> usize {
    (def.max_entries as usize).div_ceil(WAYS).next_power_of_two() * WAYS
}

/// Returns the bytes of such a cache.
pub(super) fn bytes_of(def: &MapDef) -> u128 {
    ranges(def) as u128 * size_of::<CachedRange>() as u128
}
