//! Sectors of checksums in memory.

use super::format::{self, Layout, Sums};
use std::collections::HashMap;

/// Most sectors in memory, unless more are in use.
const SECTORS_MAX: usize = 1024;

/// State of a sector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Load {
    /// The sector has to be read, or is being read.
    #[default]
    Reading,
    Good,
    /// The sector cannot be read, or cannot be relied on.
    Bad,
}

#[derive(Debug, Default)]
pub(super) struct Sector {
    pub(super) load: Load,
    pub(super) bytes: Vec<u8>,
    /// Operations that use the sector.
    pub(super) users: usize,
    /// Counts of changes: made, in the write in flight, durable.
    pub(super) made: u64,
    pub(super) issued: Option<u64>,
    pub(super) stored: u64,
    /// Number of times that the sector was written.
    pub(super) sequence: u64,
    /// Time of the last use.
    used: u64,
}

#[derive(Debug, Default)]
pub(super) struct Cache {
    sectors: HashMap<u64, Sector>,
    clock: u64,
}

impl Cache {
    /// Begins to use a sector. Returns whether it has to be read.
    pub(super) fn take(&mut self, number: u64) -> bool {
        self.clock += 1;
        let mut is_new = false;
        let clock = self.clock;
        let sector = self.sectors.entry(number).or_insert_with(|| {
            is_new = true;
            Sector::default()
        });
        // A sector that could not be read is tried again.
        if sector.load == Load::Bad && sector.users == 0 {
            (sector.load, is_new) = (Load::Reading, true);
        }
        (sector.users, sector.used) = (sector.users + 1, clock);
        if is_new {
            self.evict();
        }
        is_new
    }

    /// Ends the use of a sector.
    pub(super) fn give(&mut self, number: u64) {
        if let Some(sector) = self.sectors.get_mut(&number) {
            sector.users -= 1;
        }
    }

    fn evict(&mut self) {
        if self.sectors.len() <= SECTORS_MAX {
            return;
        }
        let is_idle =
            |sector: &Sector| sector.users == 0 && sector.issued.is_none() && sector.made == sector.stored;
        let idle = self.sectors.iter().filter(|(_, sector)| is_idle(sector));
        if let Some(oldest) = idle.min_by_key(|(_, sector)| sector.used).map(|(number, _)| *number) {
            self.sectors.remove(&oldest);
        }
    }

    pub(super) fn get(&mut self, number: u64) -> Option<&mut Sector> {
        self.sectors.get_mut(&number)
    }

    /// Returns the checksums of a block; none if they are unknown.
    pub(super) fn sums(&mut self, layout: Layout, block: u64) -> Option<Sums> {
        let (number, entry) = layout.place(block);
        let sector = self.sectors.get(&number).filter(|sector| sector.load == Load::Good)?;
        Some(format::sums(&sector.bytes, entry))
    }

    /// Sets the checksums of a block.
    pub(super) fn set_sums(&mut self, layout: Layout, block: u64, sums: Sums) {
        let (number, entry) = layout.place(block);
        if let Some(sector) = self.sectors.get_mut(&number) {
            format::set_sums(&mut sector.bytes, entry, sums);
            sector.made += 1;
        }
    }

    /// Returns the sectors with changes that are not stored, and that no operation waits for.
    pub(super) fn unstored(&self) -> Vec<u64> {
        let is_due = |sector: &Sector| sector.users == 0 && sector.made != sector.stored;
        self.sectors.iter().filter(|(_, sector)| is_due(sector)).map(|(number, _)| *number).collect()
    }
}
