//! Storage with a volatile cache, and its contents after a power cut.

use sluice_functions::Random;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// Configuration of a [`Disk`]; all sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    pub size: u64,
    pub block_size: u32,
    /// Longest write that is never torn, not even by a power cut; a multiple of the block size.
    pub atomic_write: u32,
    /// Flag of a cache in which finished writes wait for a Flush. Without a cache they are durable when
    /// finished.
    pub volatile_cache: bool,
}

impl DiskConfig {
    /// Returns the bytes of the next part of a write with this much left to do: the part is applied at once,
    /// and survives as a whole or not at all.
    pub fn next_extent(&self, length: u64, done: u64) -> u64 {
        if length <= u64::from(self.atomic_write) {
            return length;
        }
        u64::from(self.block_size).min(length - done)
    }
}

/// Contents of the storage, which outlive the targets over it, as a drive outlives the daemon.
#[derive(Debug)]
pub struct Disk {
    config: DiskConfig,
    /// Contents that are there after every power cut.
    durable: Vec<u8>,
    /// Contents that reads return: the durable contents with all of `cache` over them.
    current: Vec<u8>,
    /// Parts of writes since, in the order they were applied.
    cache: Vec<Extent>,
    random: Random,
    power_cuts: u64,
    /// Flag of a disk that begins with content of its own, as do grown parts.
    used: bool,
}

/// A part of a write that survives as a whole or not at all.
#[derive(Debug)]
struct Extent {
    offset: u64,
    data: Vec<u8>,
}

impl Extent {
    fn overlaps(&self, bytes: &Range<u64>) -> bool {
        self.offset < bytes.end && bytes.start < self.offset + self.data.len() as u64
    }

    /// Returns the part of the extent that these bytes cover.
    fn within(&self, bytes: &Range<u64>) -> Range<usize> {
        let end = (self.offset + self.data.len() as u64).min(bytes.end);
        self.offset.max(bytes.start) as usize..end as usize
    }

    fn apply(&self, to: &mut [u8]) {
        to[self.offset as usize..][..self.data.len()].copy_from_slice(&self.data);
    }
}

impl Disk {
    fn new(config: DiskConfig, random: Random) -> Self {
        let zeroes = vec![0; config.size as usize];
        let (cache, power_cuts) = (Vec::new(), 0);
        Self { config, durable: zeroes.clone(), current: zeroes, cache, random, power_cuts, used: false }
    }

    /// Fills the disk from here on with content that no other disk has.
    fn fill(&mut self, from: usize) {
        let mut random = self.random.split();
        for chunk in self.durable[from..].chunks_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
        }
        self.current[from..].copy_from_slice(&self.durable[from..]);
    }

    pub fn config(&self) -> DiskConfig {
        self.config
    }

    pub fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.current[offset as usize..][..into.len()]);
    }

    /// Applies a part of a write to the cache.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let extent = Extent { offset, data: data.to_vec() };
        extent.apply(&mut self.current);
        self.cache.push(extent);
    }

    /// Makes these bytes durable as they are now: the end of a Force Unit Access write. Extents that overlap
    /// them become durable as a whole; all others may still be lost, or survive over those.
    pub fn persist(&mut self, bytes: Range<u64>) {
        let (durable, current) = (&mut self.durable, &self.current);
        let mut gone = Vec::new();
        self.cache.retain(|extent| {
            let goes = extent.overlaps(&bytes);
            if goes {
                extent.apply(durable);
                gone.push(extent.within(&bytes));
            }
            !goes
        });
        // An extent that was applied earlier may have been newer than one applied just now.
        for bytes in gone {
            durable[bytes.clone()].copy_from_slice(&current[bytes]);
        }
    }

    /// Makes everything durable.
    pub fn flush(&mut self) {
        let everything = 0..self.config.size;
        self.persist(everything);
    }

    /// Fails a flush: data in these bytes that is not durable is gone, and no later flush brings it back.
    pub fn lose(&mut self, bytes: Range<u64>) {
        self.cache.retain(|extent| !extent.overlaps(&bytes));
        let bytes = bytes.start as usize..bytes.end as usize;
        self.current[bytes.clone()].copy_from_slice(&self.durable[bytes]);
    }

    /// Fails a flush of a cache that can be read: its data in these bytes is read until the power fails, and
    /// then it is gone.
    pub fn forget(&mut self, bytes: Range<u64>) {
        self.cache.retain(|extent| !extent.overlaps(&bytes));
    }

    /// Opens the disk again: data that was [forgotten](Self::forget), and so is in no cache of the disk, is
    /// not read any more.
    pub fn reopen(&mut self) {
        self.current.clone_from(&self.durable);
        self.cache.iter().for_each(|extent| extent.apply(&mut self.current));
    }

    /// Cuts the power and restores it: any subset of the extents in the cache is lost.
    pub fn power_cut(&mut self) {
        // The extremes, nothing lost and everything lost, are cases of their own: among many extents they
        // would hardly ever occur by chance.
        let keep = *self.random.pick(&[0.0, 0.1, 0.5, 0.9, 1.0]);
        for extent in self.cache.drain(..) {
            if self.random.chance(keep) {
                extent.apply(&mut self.durable);
            }
        }
        self.current.clone_from(&self.durable);
        self.power_cuts += 1;
    }

    pub fn power_cuts(&self) -> u64 {
        self.power_cuts
    }

    /// Returns the number of extents that a power cut could destroy.
    pub fn volatile_extents(&self) -> usize {
        self.cache.len()
    }

    /// Resizes the disk. Grown parts are zeroes, or content of their own if the disk was
    /// [used](SimDisk::used); removed parts are gone at once.
    pub fn resize(&mut self, size: u64) {
        self.flush();
        let former = self.durable.len();
        self.config.size = size;
        self.durable.resize(size as usize, 0);
        self.current.resize(size as usize, 0);
        if self.used && former < self.durable.len() {
            self.fill(former);
        }
    }
}

/// A [`Disk`] that a target, its engine and the test share.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<Disk>>);

impl SimDisk {
    /// Creates a disk of zeroes.
    pub fn new(config: DiskConfig, random: Random) -> Self {
        Self(Arc::new(Mutex::new(Disk::new(config, random))))
    }

    /// Creates a disk with content that no other disk has: a copy must be made explicitly.
    pub fn used(config: DiskConfig, random: Random) -> Self {
        let mut disk = Disk::new(config, random);
        disk.used = true;
        disk.fill(0);
        Self(Arc::new(Mutex::new(disk)))
    }

    /// Locks the disk itself, for the length of one statement.
    pub fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("not poisoned")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(seed: u64) -> SimDisk {
        let config = DiskConfig { size: 64, block_size: 8, atomic_write: 16, volatile_cache: true };
        SimDisk::new(config, Random::new(seed))
    }

    fn contents(disk: &SimDisk) -> Vec<u8> {
        let mut all = vec![0; 64];
        disk.lock().read(0, &mut all);
        all
    }

    #[test]
    fn a_power_cut_loses_any_subset_and_never_half_a_piece() {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let disk = disk(seed);
            disk.lock().write(0, &[1; 16]);
            disk.lock().write(8, &[2; 8]);
            disk.lock().power_cut();
            let found = contents(&disk);
            assert_eq!(found[0], found[7]);
            assert_eq!(found[8], found[15]);
            outcomes.insert((found[0], found[8]));
        }
        assert_eq!(Vec::from_iter(outcomes), [(0, 0), (0, 2), (1, 1), (1, 2)]);
    }

    #[test]
    fn what_was_persisted_survives_and_nothing_older_comes_back_over_it() {
        for seed in 0..100 {
            let disk = disk(seed);
            disk.lock().write(0, &[1; 16]);
            disk.lock().write(8, &[2; 8]);
            disk.lock().persist(8..16);
            disk.lock().write(32, &[3; 8]);
            disk.lock().power_cut();
            let found = contents(&disk);
            assert_eq!(found[8..16], [2; 8]);
            assert!(found[32] == 0 || found[32] == 3);
        }
    }

    #[test]
    fn a_flush_makes_durable_what_reads_return() {
        let disk = disk(1);
        disk.lock().write(8, &[1; 8]);
        disk.lock().write(0, &[2; 16]);
        // The second extent becomes durable, and the first, which is older, stays in the cache.
        disk.lock().persist(0..8);
        disk.lock().flush();
        disk.lock().power_cut();
        assert_eq!(contents(&disk)[..16], [2; 16]);
    }

    #[test]
    fn what_a_failed_flush_loses_does_not_come_back() {
        let disk = disk(1);
        disk.lock().write(0, &[1; 8]);
        disk.lock().flush();
        disk.lock().write(0, &[2; 8]);
        disk.lock().write(32, &[3; 8]);
        disk.lock().lose(0..16);
        assert_eq!(contents(&disk)[..8], [1; 8]);
        disk.lock().flush();
        disk.lock().power_cut();
        let found = contents(&disk);
        assert_eq!((found[0], found[32]), (1, 3));
    }

    #[test]
    fn what_was_forgotten_is_read_until_the_disk_is_opened_again() {
        let disk = disk(1);
        disk.lock().write(0, &[1; 8]);
        disk.lock().forget(0..64);
        disk.lock().write(16, &[2; 8]);
        assert_eq!((contents(&disk)[0], contents(&disk)[16]), (1, 2));
        disk.lock().reopen();
        assert_eq!((contents(&disk)[0], contents(&disk)[16]), (0, 2));
    }

    #[test]
    fn a_flush_leaves_nothing_to_lose() {
        let disk = disk(1);
        disk.lock().write(0, &[1; 16]);
        disk.lock().flush();
        assert_eq!(disk.lock().volatile_extents(), 0);
        disk.lock().power_cut();
        assert_eq!(contents(&disk)[..16], [1; 16]);
    }
}
