//! A region of a DMA map, and what may be done there.

use crate::mapping::Mapping;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What *we* are about to do with guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Data of a write command, a submission queue.
    Read,
    /// Data of a read command, a completion queue.
    Write,
}

/// What a region allows us to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    pub read: bool,
    pub write: bool,
}

impl Permissions {
    pub const READ_WRITE: Permissions = Permissions { read: true, write: true };
    pub const READ_ONLY: Permissions = Permissions { read: true, write: false };
}

/// What a translation needs of a region, small enough to be copied.
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

    /// Where `iova` is, and how many bytes follow it in this window.
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
    /// What the client does for us if asked to.
    pub(crate) remote: Option<Permissions>,
}

impl Region {
    pub(crate) fn last(&self) -> u64 {
        self.window.first + (self.length - 1)
    }

    pub(crate) fn mapping(&self) -> Option<&Arc<Mapping>> {
        self.mapping.as_ref()
    }

    /// Where its memory is in this process; empty if it has none.
    pub(crate) fn host_range(&self) -> Range<usize> {
        match self.mapping {
            Some(_) => self.window.base.addr()..self.window.base.addr() + self.length as usize,
            None => 0..0,
        }
    }
}
