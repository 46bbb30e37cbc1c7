//! Memory that two parties hand to and fro, a piece at a time.

use crate::shared::SharedRegion;
use std::fmt;
use std::ops::Deref;

/// A region of data buffers, of which each is somebody's at any time: of whoever was handed it, until it
/// is handed back.
///
/// The daemon lends a storage function the buffer of a command and leaves it alone until the function
/// answers; so the function's side may see it as the slice it is. The daemon does not do the same for
/// memory that another process holds: that process may be anything, and so the daemon copies
/// ([`gather`](SharedRegion::gather), [`scatter`](SharedRegion::scatter)) and never looks at it as a slice.
pub struct Buffers {
    region: SharedRegion,
}

impl Buffers {
    /// Buffers that the caller lends out, or is lent.
    ///
    /// Whoever calls [`bytes`](Self::bytes) has been handed the range by the one other party that has
    /// the memory, and trusts that party to keep away from it, as a function trusts the daemon it serves.
    pub fn new(region: SharedRegion) -> Self {
        Self { region }
    }

    /// A buffer that is the caller's now; none if it does not lie inside.
    pub fn bytes(&mut self, offset: usize, length: usize) -> Option<&mut [u8]> {
        self.windows(self.region.len()).0.into_bytes(offset, length)
    }

    /// What comes before `at` and what comes from there on, each to be lent out by itself.
    ///
    /// # Panics
    /// `at` lies behind the end.
    pub fn windows(&mut self, at: usize) -> (Window<'_>, Window<'_>) {
        assert!(at <= self.region.len());
        (
            Window { region: &self.region, from: 0, to: at },
            Window { region: &self.region, from: at, to: self.region.len() },
        )
    }
}

/// A part of [`Buffers`] that is lent out. No two that exist at a time overlap.
#[derive(Debug)]
pub struct Window<'a> {
    region: &'a SharedRegion,
    from: usize,
    to: usize,
}

impl<'a> Window<'a> {
    /// A buffer in it; none if it does not lie inside. `offset` counts from the beginning of all buffers.
    pub fn bytes(&mut self, offset: usize, length: usize) -> Option<&mut [u8]> {
        Window { ..*self }.into_bytes(offset, length)
    }

    /// The same, for as long as the window was lent.
    pub fn into_bytes(self, offset: usize, length: usize) -> Option<&'a mut [u8]> {
        if offset < self.from || offset > self.to || length > self.to - offset {
            return None;
        }
        // SAFETY: inside and mapped while the buffers live; borrowed exclusively in this process, because
        // windows do not overlap, and the other party keeps away from it, see `Buffers::new`.
        Some(unsafe { std::slice::from_raw_parts_mut(self.region.at(offset, length), length) })
    }
}

impl Deref for Buffers {
    type Target = SharedRegion;

    fn deref(&self) -> &SharedRegion {
        &self.region
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffers({} bytes)", self.region.len())
    }
}
