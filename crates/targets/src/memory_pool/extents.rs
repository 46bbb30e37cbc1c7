//! Owners of the extents of a pool, on the pool's home reactor.

use sluice_shared::{Object, PortNumber, Unit};

/// Owner of an extent that is free.
const FREE: u16 = u16::MAX;

/// Extents that one step of a reclaim looks at.
const SEEN_AT_ONCE: usize = 1 << 16;

/// The extents of a pool.
#[derive(Debug)]
pub(super) struct Extents {
    /// Port of each extent's user.
    owners: Vec<u16>,
    /// Free extents; the next one is the last.
    free: Vec<u32>,
    /// Next extent that the reclaim under way looks at.
    reclaimed: usize,
}

impl Extents {
    pub(super) fn new(count: u32) -> Self {
        Self { owners: vec![FREE; count as usize], free: (0..count).rev().collect(), reclaimed: 0 }
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }
}

impl Object for Extents {
    fn take(&mut self, port: PortNumber) -> Option<Unit> {
        let extent = self.free.pop()?;
        self.owners[extent as usize] = port.0;
        Some(extent.into())
    }

    fn give_back(&mut self, port: PortNumber, unit: Unit) {
        let extent = unit as usize;
        if self.owners.get(extent) == Some(&port.0) {
            self.owners[extent] = FREE;
            self.free.push(unit as u32);
        } else {
            debug_assert!(false, "extent {unit} does not belong to its giver");
        }
    }

    fn reclaim(&mut self, port: PortNumber, limit: usize) -> bool {
        let (begin, mut left) = (self.reclaimed, limit);
        let end = (begin + SEEN_AT_ONCE).min(self.owners.len());
        for extent in begin..end {
            if left == 0 {
                self.reclaimed = extent;
                return false;
            }
            if self.owners[extent] == port.0 {
                self.owners[extent] = FREE;
                self.free.push(extent as u32);
                left -= 1;
            }
        }
        let is_over = end == self.owners.len();
        self.reclaimed = if is_over { 0 } else { end };
        is_over
    }
}
