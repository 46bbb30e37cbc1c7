//! The regions of the drive, and where the members may differ.

use crate::Members;
use std::ops::Range;

/// Ticks after its last write during which a region stays dirty.
const AGE: u8 = 2;

/// Part of the drive. A bit in a mask means that the member may lack the newest contents of the region.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Region {
    /// Mask that the log certainly has, whatever the result of the log write in flight.
    pub(crate) durable: Members,
    /// Mask that the log has once all changes are written.
    pub(crate) wanted: Members,
    /// Members to which the region has to be copied. A member in the mask that is not stale is dirty only
    /// because of a current or recent write.
    pub(crate) stale: Members,
    /// Ticks left until the region may be clean.
    age: u8,
    /// Writes in flight.
    writers: u16,
    /// Whether a flush of the source failed while the region was dirty: its writes may be lost on the source
    /// alone.
    pub(crate) doubtful: bool,
}

/// All regions of a drive.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    pub(crate) list: Vec<Region>,
    size: u64,
    region_bytes: u64,
    /// Members that may be stale in some region.
    behind: Members,
    /// Whether regions may be dirty without being stale.
    settling: bool,
}

impl Regions {
    /// Creates regions that are all dirty for `members`. The log does not have their masks yet.
    pub(crate) fn new(size: u64, region_bytes: u64, members: Members) -> Self {
        let mut regions =
            Self { list: Vec::new(), size: 0, region_bytes, behind: Members::NONE, settling: true };
        regions.resize(size, members);
        regions
    }

    /// Changes the size; added regions are dirty for `members`.
    pub(crate) fn resize(&mut self, size: u64, members: Members) {
        let count = size.div_ceil(self.region_bytes) as usize;
        // The last region may have been a part of one, and so unequal beyond its old end.
        if size > self.size
            && let Some(last) = self.list.last_mut()
        {
            (last.wanted, last.stale) = (last.wanted.with(members), last.stale.with(members));
        }
        self.behind = self.behind.with(members);
        self.list.resize(count, Region { wanted: members, stale: members, ..Region::default() });
        self.size = size;
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Returns the regions of a range of bytes.
    pub(crate) fn of(&self, bytes: &Range<u64>) -> Range<usize> {
        let end = bytes.end.div_ceil(self.region_bytes) as usize;
        let first = (bytes.start / self.region_bytes) as usize;
        first.min(self.list.len())..end.min(self.list.len())
    }

    /// Returns the bytes of a region.
    pub(crate) fn bytes(&self, region: usize) -> Range<u64> {
        let start = region as u64 * self.region_bytes;
        start..(start + self.region_bytes).min(self.size)
    }

    /// Makes these regions stale for `members`, so that they are copied.
    pub(crate) fn make_stale(&mut self, regions: Range<usize>, members: Members) {
        let end = regions.end.min(self.list.len());
        for region in &mut self.list[regions.start.min(end)..end] {
            region.stale = region.stale.with(members);
        }
        self.behind = self.behind.with(members);
    }

    /// Makes all regions stale for the `members` for which they are dirty.
    pub(crate) fn make_dirty_stale(&mut self, members: Members) {
        for region in &mut self.list {
            region.stale = region.stale.with(region.wanted.with(region.durable).and(members));
        }
        self.behind = self.behind.with(members);
    }

    /// Makes the dirty regions doubtful, because a flush of the source failed.
    pub(crate) fn doubt_dirty(&mut self) {
        for region in &mut self.list {
            region.doubtful |= !region.wanted.is_empty();
        }
    }

    /// Makes the doubtful regions stale for `members`. Returns whether there are any.
    pub(crate) fn make_doubtful_stale(&mut self, members: Members) -> bool {
        let mut any = false;
        for region in self.list.iter_mut().filter(|region| region.doubtful) {
            region.stale = region.stale.with(region.wanted.and(members));
            (region.doubtful, any) = (false, true);
        }
        self.behind = self.behind.with(if any { members } else { Members::NONE });
        any
    }

    /// Ends the copy of a region to `members`.
    pub(crate) fn is_copied(&mut self, number: usize, members: Members) {
        let region = &mut self.list[number];
        region.stale = region.stale.without(members);
        region.age = AGE;
        self.settling = true;
    }

    /// Sets the mask of these regions.
    pub(crate) fn mark(&mut self, regions: Range<usize>, members: Members) {
        self.list[regions].iter_mut().for_each(|region| region.wanted = members);
    }

    /// Keeps these regions dirty for a while, because writes to them are about to begin.
    pub(crate) fn keep(&mut self, regions: Range<usize>) {
        self.list[regions].iter_mut().for_each(|region| region.age = AGE);
        self.settling = true;
    }

    /// Counts a write that begins in these regions.
    pub(crate) fn enter(&mut self, regions: Range<usize>) {
        for region in &mut self.list[regions] {
            region.writers = region.writers.saturating_add(1);
        }
    }

    /// Counts a write that has ended in these regions. Some of the regions may have been removed.
    pub(crate) fn leave(&mut self, regions: Range<usize>) {
        let end = regions.end.min(self.list.len());
        for region in &mut self.list[regions.start.min(end)..end] {
            (region.writers, region.age) = (region.writers.saturating_sub(1), AGE);
        }
        self.settling = true;
    }

    /// Returns whether no write is in flight in these regions.
    pub(crate) fn are_quiet(&self, regions: Range<usize>) -> bool {
        self.list[regions].iter().all(|region| region.writers == 0)
    }

    /// Advances the age of all regions by a tick.
    pub(crate) fn tick(&mut self) {
        self.settling = false;
        for region in &mut self.list {
            region.age = region.age.saturating_sub(1);
            self.settling |= region.wanted != region.stale;
        }
    }

    /// Returns the regions that have no reason any more to be dirty.
    pub(crate) fn idle(&self) -> impl Iterator<Item = usize> {
        let idle = |region: &Region| region.writers == 0 && region.age == 0 && region.wanted != region.stale;
        self.list.iter().enumerate().filter(move |(_, region)| idle(region)).map(|(number, _)| number)
    }

    /// Returns whether regions may be dirty without being stale.
    pub(crate) fn are_settling(&self) -> bool {
        self.settling
    }

    /// Returns the members that may be stale in some region.
    pub(crate) fn behind(&self) -> Members {
        self.behind
    }

    /// Returns the next region to copy to one of `members`: the first from `from` on, and then from the
    /// beginning.
    pub(crate) fn next_stale(&mut self, from: usize, members: Members) -> Option<usize> {
        let from = from.min(self.list.len());
        let stale = |number: &usize| !self.list[*number].stale.and(members).is_empty();
        let found = (from..self.list.len()).chain(0..from).find(stale);
        if found.is_none() {
            self.behind = self.behind.without(members);
        }
        found
    }

    /// Returns the bytes of the regions that match.
    pub(crate) fn count(&self, which: impl Fn(&Region) -> bool) -> u64 {
        let regions = self.list.iter().enumerate().filter(|(_, region)| which(region));
        let bytes = regions.map(|(number, _)| self.bytes(number));
        bytes.map(|bytes| bytes.end - bytes.start).sum()
    }
}
