//! Regions of a DMA map, and their permissions.

use crate::mapping::Mapping;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Kind of access that *this process* is about to make to guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Data of a write command, a submission queue.
    Read,
    /// Data of a read command, a completion queue.
    Write,
}

/// Kinds of access that a region allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    pub read: bool,
    pub write: bool,
}

impl Permissions {
    pub const READ_WRITE: Permissions = Permissions { read: true, write: true };
    pub const READ_ONLY: Permissions = Permissions { read: true, write: false };
}

/// Part of a region that a translation needs, small enough to be copied.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) first: u64,
    /// Bytes from `first` on that may be accessed, by [`Access`]: bounds and permission in one compare.
    pub(crate) reach: [u64; 2],
    pub(crate) base: *mut u8,
    pub(crate) poisoned: &'static AtomicBool,
}

impl Window {
    pub(crate) const NOWHERE: Window = {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Window { first: 0, reach: [0; 2], base: std::ptr::null_mut(), poisoned: &NEVER }
    };

    /// Returns the address of `iova` in this process, and how many bytes follow it in this window.
    #[inline]
    pub(crate) fn at(&self, iova: u64, access: Access) -> Option<(*mut u8, u64)> {
        let offset = iova.wrapping_sub(self.first);
        let reach = self.reach[access as usize];
        if offset >= reach || self.poisoned.load(Ordering::Relaxed) {
            return None;
        }
        Some((self.base.wrapping_add(offset as usize), reach - offset))
    }
}

/// A region as it was mapped.
#[derive(Clone)]
pub(crate) struct Region {
    pub(crate) window: Window,
    pub(crate) length: u64,
    pub(crate) mapping: Option<Arc<Mapping>>,
    /// Kinds of access that the client executes for this process by DMA messages.
    pub(crate) remote: Option<Permissions>,
}

impl Region {
    pub(crate) fn last(&self) -> u64 {
        self.window.first + (self.length - 1)
    }

    pub(crate) fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.mapping.as_ref()
    }

    /// Returns the addresses of the region's memory in this process; empty if it has none.
    pub(crate) fn host_range(&self) -> Range<usize> {
        match self.mapping {
            Some(_) => self.window.base.addr()..self.window.base.addr() + self.length as usize,
            None => 0..0,
        }
    }
}
