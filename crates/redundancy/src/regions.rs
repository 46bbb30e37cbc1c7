//! Where the members may differ: a region of the drive at a time.

use crate::Members;
use std::ops::Range;

/// Ticks after its last write that a region stays as it is.
const AGE: u8 = 2;

/// A part of the drive. A bit of a mask says that the member may not have what the newest has there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Region {
    /// What the log has for sure, whatever becomes of the write to it that is under way.
    pub(crate) durable: Members,
    /// What it will have when all is written.
    pub(crate) wanted: Members,
    /// Of these members: has to be copied to them. What is not stale is dirty only because it is, or was,
    /// being written.
    pub(crate) stale: Members,
    /// Ticks that are to go by before it is clean.
    age: u8,
    /// Writes that are under way.
    writers: u16,
    /// A flush of the source failed while it was dirty: what was written may be gone there, and nowhere else.
    pub(crate) doubtful: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    pub(crate) list: Vec<Region>,
    size: u64,
    region_bytes: u64,
    /// Members that may be stale somewhere.
    behind: Members,
    /// Regions may be dirty without being stale.
    settling: bool,
}

impl Regions {
    /// All dirty for `members`, which the log does not know yet.
    pub(crate) fn new(size: u64, region_bytes: u64, members: Members) -> Self {
        let mut regions =
            Self { list: Vec::new(), size: 0, region_bytes, behind: Members::NONE, settling: true };
        regions.resize(size, members);
        regions
    }

    /// Of another size; what comes to it is dirty for `members`.
    pub(crate) fn resize(&mut self, size: u64, members: Members) {
        let count = size.div_ceil(self.region_bytes) as usize;
        // The last one may have been a part only, and so unequal beyond its end.
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

    /// The regions of a range of bytes.
    pub(crate) fn of(&self, bytes: &Range<u64>) -> Range<usize> {
        let end = bytes.end.div_ceil(self.region_bytes) as usize;
        let first = (bytes.start / self.region_bytes) as usize;
        first.min(self.list.len())..end.min(self.list.len())
    }

    /// The bytes of a region.
    pub(crate) fn bytes(&self, region: usize) -> Range<u64> {
        let start = region as u64 * self.region_bytes;
        start..(start + self.region_bytes).min(self.size)
    }

    /// Of these members, they are to be copied from now on.
    pub(crate) fn make_stale(&mut self, regions: Range<usize>, members: Members) {
        let end = regions.end.min(self.list.len());
        for region in &mut self.list[regions.start.min(end)..end] {
            region.stale = region.stale.with(members);
        }
        self.behind = self.behind.with(members);
    }

    /// The same, for those that are dirty for them.
    pub(crate) fn make_dirty_stale(&mut self, members: Members) {
        for region in &mut self.list {
            region.stale = region.stale.with(region.wanted.with(region.durable).and(members));
        }
        self.behind = self.behind.with(members);
    }

    /// A flush of the source failed: what is dirty is doubtful.
    pub(crate) fn doubt_dirty(&mut self) {
        for region in &mut self.list {
            region.doubtful |= !region.wanted.is_empty();
        }
    }

    /// Of these members, what is doubtful is to be copied. True if anything is.
    pub(crate) fn make_doubtful_stale(&mut self, members: Members) -> bool {
        let mut any = false;
        for region in self.list.iter_mut().filter(|region| region.doubtful) {
            region.stale = region.stale.with(region.wanted.and(members));
            (region.doubtful, any) = (false, true);
        }
        self.behind = self.behind.with(if any { members } else { Members::NONE });
        any
    }

    /// A region was copied to these.
    pub(crate) fn is_copied(&mut self, number: usize, members: Members) {
        let region = &mut self.list[number];
        region.stale = region.stale.without(members);
        region.age = AGE;
        self.settling = true;
    }

    /// Has another mask for these.
    pub(crate) fn mark(&mut self, regions: Range<usize>, members: Members) {
        self.list[regions].iter_mut().for_each(|region| region.wanted = members);
    }

    /// Writes to these are about to begin: they stay dirty for a while.
    pub(crate) fn keep(&mut self, regions: Range<usize>) {
        self.list[regions].iter_mut().for_each(|region| region.age = AGE);
        self.settling = true;
    }

    /// Writes to these begin.
    pub(crate) fn enter(&mut self, regions: Range<usize>) {
        for region in &mut self.list[regions] {
            region.writers = region.writers.saturating_add(1);
        }
    }

    /// They are over. They may be in regions that are gone.
    pub(crate) fn leave(&mut self, regions: Range<usize>) {
        let end = regions.end.min(self.list.len());
        for region in &mut self.list[regions.start.min(end)..end] {
            (region.writers, region.age) = (region.writers.saturating_sub(1), AGE);
        }
        self.settling = true;
    }

    /// True if no write is under way in these.
    pub(crate) fn are_quiet(&self, regions: Range<usize>) -> bool {
        self.list[regions].iter().all(|region| region.writers == 0)
    }

    /// A while has gone by.
    pub(crate) fn tick(&mut self) {
        self.settling = false;
        for region in &mut self.list {
            region.age = region.age.saturating_sub(1);
            self.settling |= region.wanted != region.stale;
        }
    }

    /// Those that are dirty for no reason any more.
    pub(crate) fn idle(&self) -> impl Iterator<Item = usize> {
        let idle = |region: &Region| region.writers == 0 && region.age == 0 && region.wanted != region.stale;
        self.list.iter().enumerate().filter(move |(_, region)| idle(region)).map(|(number, _)| number)
    }

    /// False if none is dirty without being stale.
    pub(crate) fn are_settling(&self) -> bool {
        self.settling
    }

    /// Members that may be stale somewhere.
    pub(crate) fn behind(&self) -> Members {
        self.behind
    }

    /// The first from `from` on, and then from the beginning, that has to be copied to one of `members`.
    pub(crate) fn next_stale(&mut self, from: usize, members: Members) -> Option<usize> {
        let from = from.min(self.list.len());
        let stale = |number: &usize| !self.list[*number].stale.and(members).is_empty();
        let found = (from..self.list.len()).chain(0..from).find(stale);
        if found.is_none() {
            self.behind = self.behind.without(members);
        }
        found
    }

    /// Bytes of the regions of which this is true.
    pub(crate) fn count(&self, which: impl Fn(&Region) -> bool) -> u64 {
        let regions = self.list.iter().enumerate().filter(|(_, region)| which(region));
        let bytes = regions.map(|(number, _)| self.bytes(number));
        bytes.map(|bytes| bytes.end - bytes.start).sum()
    }
}
