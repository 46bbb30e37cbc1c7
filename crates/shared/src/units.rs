//! Owners of the units of an object, numbered from zero.

use crate::PortNumber;

/// Owner of a unit that is free, and of one that the object itself uses.
const FREE: u16 = u16::MAX;
const USED: u16 = u16::MAX - 1;

/// Units that one step of a reclaim looks at.
const SEEN_AT_ONCE: usize = 1 << 16;

/// Units with their owners: each is free, credit of a port, or in use by the object.
#[derive(Debug, Default)]
pub struct Units {
    /// Port with the unit, or [`FREE`], or [`USED`].
    owners: Vec<u16>,
    /// Free units; the next one is the last.
    free: Vec<u32>,
    /// Free units that are taken after all others.
    last: Vec<u32>,
    /// Number of units that ports have.
    held: u64,
    /// Next unit that the reclaim under way looks at.
    reclaimed: usize,
}

impl Units {
    /// Adds units, up to a number of `count`. New units without a use are free, and taken after earlier ones.
    pub fn grow(&mut self, count: u32, is_used: impl Fn(u32) -> bool) {
        let new = self.owners.len() as u32..count;
        self.owners.extend(new.clone().map(|unit| if is_used(unit) { USED } else { FREE }));
        let later: Vec<u32> = new.rev().filter(|unit| !is_used(*unit)).collect();
        self.free.splice(0..0, later);
    }

    /// Returns the number of free units.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len() + self.last.len()
    }

    /// Returns the number of units that ports have.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Takes a free unit for a port; none if there is none.
    pub fn take(&mut self, port: PortNumber) -> Option<u32> {
        let unit = self.free.pop().or_else(|| self.last.pop())?;
        self.owners[unit as usize] = port.0;
        self.held += 1;
        Some(unit)
    }

    /// Takes a unit back from a port that has it.
    pub fn give_back(&mut self, port: PortNumber, unit: u64) {
        if self.owners.get(unit as usize) == Some(&port.0) {
            self.held -= 1;
            self.release(unit as u32);
        } else {
            debug_assert!(false, "unit {unit} does not belong to its giver");
        }
    }

    /// Takes a unit back from a port that has it. It is taken again after all others. Returns false if the port does not
    /// have it.
    #[must_use]
    pub fn give_back_last(&mut self, port: PortNumber, unit: u32) -> bool {
        let is_held = self.use_up(port, unit);
        if is_held {
            self.owners[unit as usize] = FREE;
            self.last.push(unit);
        }
        is_held
    }

    /// Takes a unit of a port into use by the object. Returns false if the port does not have it.
    #[must_use]
    pub fn use_up(&mut self, port: PortNumber, unit: u32) -> bool {
        let owner = self.owners.get_mut(unit as usize).filter(|owner| **owner == port.0);
        let is_held = owner.map(|owner| *owner = USED).is_some();
        self.held -= u64::from(is_held);
        is_held
    }

    /// Frees a unit that the object has used.
    pub fn release(&mut self, unit: u32) {
        self.owners[unit as usize] = FREE;
        self.free.push(unit);
    }

    /// Takes back up to `limit` units of a closed port. Returns whether it has none left.
    pub fn reclaim(&mut self, port: PortNumber, limit: usize) -> bool {
        let (begin, mut left) = (self.reclaimed, limit);
        let end = (begin + SEEN_AT_ONCE).min(self.owners.len());
        for unit in begin..end {
            if left == 0 {
                self.reclaimed = unit;
                return false;
            }
            if self.owners[unit] == port.0 {
                self.held -= 1;
                self.release(unit as u32);
                left -= 1;
            }
        }
        let is_over = end == self.owners.len();
        self.reclaimed = if is_over { 0 } else { end };
        is_over
    }
}
