//! A disk with a volatile cache, which loses power before one of its writes.

use crate::Storage;
use sluice_functions::Random;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes that are written as a whole or not at all.
pub(super) const SECTOR: usize = 512;

#[derive(Debug)]
pub(super) struct Disk {
    /// Content after a power cut, without any of `cache`.
    durable: Vec<u8>,
    current: Vec<u8>,
    /// Sectors that were written since the last flush.
    cache: Vec<usize>,
    /// Writes and flushes until the power fails.
    left: Option<u64>,
    pub(super) is_dead: bool,
    /// Bytes that cannot be written.
    pub(super) bad: std::ops::Range<u64>,
    /// Writes to these bytes.
    pub(super) refused: u64,
    /// Writes and flushes so far.
    pub(super) count: u64,
    random: Random,
}

#[derive(Clone, Debug)]
pub(super) struct SharedDisk(pub(super) Arc<Mutex<Disk>>);

impl SharedDisk {
    /// Creates a disk whose first bytes are zeros, and all others are `rest`.
    pub(super) fn new(size: usize, blank: usize, rest: u8, random: Random) -> Self {
        let mut durable = vec![rest; size];
        durable[..blank].fill(0);
        let current = durable.clone();
        let (cache, left, is_dead, count) = (Vec::new(), None, false, 0);
        let (bad, refused) = (0..0, 0);
        Self(Arc::new(Mutex::new(Disk {
            durable,
            current,
            cache,
            left,
            is_dead,
            bad,
            refused,
            count,
            random,
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("not poisoned")
    }
}

impl Disk {
    pub(super) fn size(&self) -> u64 {
        self.current.len() as u64
    }

    /// Lets the power fail in the write or flush after this many further ones.
    pub(super) fn cut_after(&mut self, writes: u64) {
        self.left = Some(writes);
    }

    /// Counts a write; returns whether the power fails in it.
    fn fails(&mut self) -> bool {
        self.count += 1;
        match &mut self.left {
            Some(0) => self.is_dead = true,
            Some(left) => *left -= 1,
            None => {}
        }
        self.is_dead
    }

    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> bool {
        bytes.copy_from_slice(&self.current[at as usize..][..bytes.len()]);
        !self.is_dead
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> bool {
        if self.is_dead {
            return false;
        }
        if at < self.bad.end && self.bad.start < at + bytes.len() as u64 {
            self.refused += 1;
            return false;
        }
        let fails = self.fails();
        for (number, sector) in bytes.chunks(SECTOR).enumerate() {
            // A write under way may have reached the disk in any part.
            if !fails || self.random.below(2) == 0 {
                let at = at as usize + number * SECTOR;
                self.current[at..at + sector.len()].copy_from_slice(sector);
                self.cache.push(at);
            }
        }
        !fails
    }

    pub(super) fn flush(&mut self) -> bool {
        if self.is_dead || self.fails() {
            return false;
        }
        for at in self.cache.drain(..) {
            self.durable[at..at + SECTOR].copy_from_slice(&self.current[at..at + SECTOR]);
        }
        true
    }

    /// Makes these bytes durable.
    pub(super) fn persist(&mut self, at: u64, length: usize) {
        let end = at as usize + length;
        self.cache.retain(|sector| !(at as usize..end).contains(sector));
        self.durable[at as usize..end].copy_from_slice(&self.current[at as usize..end]);
    }

    /// Brings the power back: any part of the cache has survived.
    pub(super) fn restart(&mut self) {
        for at in std::mem::take(&mut self.cache) {
            if self.random.below(2) == 0 {
                self.durable[at..at + SECTOR].copy_from_slice(&self.current[at..at + SECTOR]);
            }
        }
        self.current.copy_from_slice(&self.durable);
        (self.is_dead, self.left) = (false, None);
    }
}

impl Storage for SharedDisk {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        if self.lock().read(at, bytes) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.lock().write(at, bytes) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.lock().flush() { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    }

    fn reserve(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }
}
