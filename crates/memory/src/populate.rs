//! Population of a client's memory before a command uses it.
//!
//! The first access to a page of a file in memory waits until the kernel has found a page, cleared it and
//! mapped it. With a huge page that takes milliseconds. Another thread may have the kernel do that
//! beforehand. The next access waits again if the client has punched a hole there.

use crate::mapping::Mapping;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use std::fmt;
use std::sync::{Arc, Weak};

/// Bytes that are populated at a time. Changes of the process's mappings wait for as long.
const PIECE: usize = 2 << 20;

/// Memory of a region that is yet to be populated. It keeps no mapping alive: when the region is gone,
/// nothing is left to do.
pub struct Unpopulated {
    mapping: Weak<Mapping>,
    /// Begin and end of the rest in the mapping.
    next: usize,
    end: usize,
}

impl Unpopulated {
    /// Describes `length` bytes of a mapping, all of which must be in it.
    pub(crate) fn new(mapping: &Arc<Mapping>, offset: usize, length: usize) -> Self {
        debug_assert!(offset.checked_add(length).is_some_and(|end| end <= mapping.length()));
        Self { mapping: Arc::downgrade(mapping), next: offset, end: offset + length }
    }

    /// Populates the next 2 MiB. Returns false if nothing is left.
    ///
    /// # Errors
    /// Fails if the file has no such page any more, its file system has none left, or the kernel is older
    /// than 5.14.
    pub fn populate_next(&mut self) -> Result<bool, Errno> {
        let Some(mapping) = self.mapping.upgrade() else { return Ok(false) };
        let length = PIECE.min(self.end - self.next);
        if length == 0 || mapping.is_poisoned() {
            return Ok(false);
        }
        let advice =
            if mapping.is_writable() { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        // SAFETY: inside the mapping, which is held. The advice changes no contents, and where there is no page it fails
        // without a signal.
        unsafe { madvise(mapping.base().wrapping_add(self.next).cast(), length, advice)? };
        self.next += length;
        Ok(self.next < self.end)
    }
}

impl fmt::Debug for Unpopulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unpopulated({:#x}..{:#x})", self.next, self.end)
    }
}
