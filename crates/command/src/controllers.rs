//! Controllers of a drive, by their number in a command.

use crate::Origin;

/// A set of controllers of one drive: see [`Origin::controller`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controllers(u32);

impl Controllers {
    /// Controllers that a drive can have at a time.
    pub const MAX: usize = u32::BITS as usize;

    /// Returns the set of a bitmap with one bit per controller.
    pub const fn of_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub fn insert(&mut self, controller: u8) {
        debug_assert!(usize::from(controller) < Self::MAX);
        self.0 |= 1 << controller;
    }

    pub fn remove(&mut self, controller: u8) {
        self.0 &= !(1 << controller);
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns false for [`Origin::SUBSYSTEM`], which is no controller.
    pub fn has(self, controller: u8) -> bool {
        controller != Origin::SUBSYSTEM && self.0 >> controller & 1 != 0
    }
}
