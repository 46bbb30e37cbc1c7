//! A translation cache: where ranges of blocks are, as far as somebody has said.
//!
//! A storage function that maps blocks (snapshots, thin provisioning) fills it with its replies; the
//! classifier asks it first and so keeps hits on the fast path. It is a cache: it may forget anything at
//! any time and never says anything untrue. That makes it simple: a range is kept in pieces that do not
//! cross granules, a piece that is partly invalidated is dropped whole, and making everything read-only
//! is one step because "writable" is a number that must match the cache's.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::version::Version;
use super::{MapDef, MapError};

/// Pieces that share a set.
const WAYS: usize = 8;
/// Looks of a program at a cache that is being changed, before it counts as a miss.
const LOOKS: u32 = 16;
/// Pieces that one insertion makes at most; what is left of a longer range is not remembered.
const RANGES_MAX: u64 = 64;

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// The block's place at the target.
    pub target: u64,
    /// How many blocks from it on are contiguous there, at least.
    pub count: u32,
    /// The function's own bits, with [`WRITABLE`](Self::WRITABLE).
    pub flags: u32,
}

impl Translation {
    /// Writes may go there without asking.
    pub const WRITABLE: u32 = 1;
}

/// The cache. See the module's page.
#[derive(Debug)]
pub struct TranslationCache {
    version: Version,
    granule_shift: u64,
    ranges: Box<[CachedRange]>,
    /// Which writability counts.
    epoch: AtomicU64,
    /// The way that is replaced next when a set is full.
    victim: AtomicU64,
}

/// One cached piece; empty when its count is zero.
#[derive(Debug, Default)]
struct CachedRange {
    start: AtomicU64,
    target: AtomicU64,
    /// The count in the upper half, the flags in the lower.
    extent: AtomicU64,
    /// The epoch in which it was writable.
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

    /// Where a block is, if the cache knows. While somebody is changing it, it does not.
    pub fn lookup(&self, block: u64) -> Option<Translation> {
        let set = self.set(block >> self.granule_shift);
        self.version.read_within(LOOKS, || set.iter().find_map(|range| self.hit(range, block))).flatten()
    }

    /// Sets that are looked at for forgetting these blocks.
    pub fn sets_of(&self, blocks: &Range<u64>) -> u64 {
        // Whatever a program says: none, perhaps, in the middle of nowhere.
        if blocks.is_empty() {
            return 0;
        }
        let granules = ((blocks.end - 1) >> self.granule_shift) - (blocks.start >> self.granule_shift);
        granules.saturating_add(1).min((self.ranges.len() / WAYS) as u64)
    }

    /// As if a thread were put to sleep in the middle of a change.
    #[cfg(test)]
    pub(super) fn claim(&self) -> super::version::Claim<'_> {
        self.version.claim().expect("nobody else is here")
    }

    /// Bytes of its memory.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.ranges)
    }

    /// Remembers that `blocks` are at `target` on, in that order; whatever was known about them is forgotten.
    pub fn insert(&self, blocks: Range<u64>, target: u64, flags: u32) -> Result<(), MapError> {
        let _claim = self.version.claim()?;
        self.forget(&blocks);
        let mut start = blocks.start;
        for _ in 0..RANGES_MAX {
            if start >= blocks.end {
                break;
            }
            let end = self.granule_end(start).min(blocks.end);
            // A target that would wrap is a mistake of whoever filled the cache: remember nothing.
            let Some(target) = target.checked_add(start - blocks.start) else { break };
            self.place(start..end, target, flags);
            start = end;
        }
        Ok(())
    }

    /// Forgets whatever is known about any of `blocks`.
    pub fn invalidate(&self, blocks: Range<u64>) -> Result<(), MapError> {
        let _claim = self.version.claim()?;
        self.forget(&blocks);
        Ok(())
    }

    /// Nothing is writable any more, as when a snapshot is taken.
    pub fn clear_writable(&self) -> Result<(), MapError> {
        let _claim = self.version.claim()?;
        self.epoch.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Forgets everything.
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

    /// The first block behind the granule of `block`; pieces are at most 2^32 - 1 blocks long.
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

/// Sets are a power of two, so there may be twice as many pieces as were asked for.
fn ranges(def: &MapDef) -> usize {
    (def.max_entries as usize).div_ceil(WAYS).next_power_of_two() * WAYS
}

/// Bytes that such a cache takes.
pub(super) fn bytes_of(def: &MapDef) -> u128 {
    ranges(def) as u128 * size_of::<CachedRange>() as u128
}
