//! Owners of the extents of a pool, on the pool's home reactor.

use sluice_shared::{Object, PortNumber, Unit, Units};

/// The extents of a pool.
#[derive(Debug)]
pub(super) struct Extents(Units);

impl Extents {
    pub(super) fn new(count: u32) -> Self {
        let mut units = Units::default();
        units.grow(count, |_| false);
        Self(units)
    }

    pub(super) fn free(&self) -> usize {
        self.0.free()
    }
}

impl Object for Extents {
    fn take(&mut self, port: PortNumber) -> Option<Unit> {
        self.0.take(port).map(Unit::from)
    }

    fn give_back(&mut self, port: PortNumber, unit: Unit) {
        self.0.give_back(port, unit);
    }

    fn reclaim(&mut self, port: PortNumber, limit: usize) -> bool {
        self.0.reclaim(port, limit)
    }
}
