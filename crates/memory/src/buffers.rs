//! Memory whose parts two parties hand to and fro.

use crate::shared::SharedRegion;
use std::fmt;
use std::ops::Deref;

/// A region of data buffers. Each buffer has one owner at any time: the party that it was handed to, until it
/// is handed back.
///
/// The daemon hands a storage function the buffer of a command, and does not touch it until the function
/// answers; so the function may use it as a slice. The daemon does not do the same for memory that another
/// process holds, because that process is not trusted. The daemon copies ([`gather`](SharedRegion::gather),
/// [`scatter`](SharedRegion::scatter)) and never uses such memory as a slice.
pub struct Buffers {
    region: SharedRegion,
}

impl Buffers {
    /// Creates buffers that the caller hands out, or receives.
    ///
    /// A caller of [`bytes`](Self::bytes) has received the range from the only other party that has the
    /// memory. The caller trusts that party not to touch the range, as a function trusts the daemon.
    pub fn new(region: SharedRegion) -> Self {
        Self { region }
    }

    /// Returns a buffer that the caller owns now; none if it does not lie inside.
    pub fn bytes(&mut self, offset: usize, length: usize) -> Option<&mut [u8]> {
        self.windows(self.region.len()).0.into_bytes(offset, length)
    }

    /// Divides the buffers at `at` into two windows, each to be handed out by itself.
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

/// A part of [`Buffers`] that is handed out. No two that exist at a time overlap.
#[derive(Debug)]
pub struct Window<'a> {
    region: &'a SharedRegion,
    from: usize,
    to: usize,
}

impl<'a> Window<'a> {
    /// Returns a buffer in the window; none if it does not lie inside. `offset` counts from the beginning of
    /// all buffers.
    pub fn bytes(&mut self, offset: usize, length: usize) -> Option<&mut [u8]> {
        Window { ..*self }.into_bytes(offset, length)
    }

    /// Returns a buffer like [`bytes`](Self::bytes), for the life of the window.
    pub fn into_bytes(self, offset: usize, length: usize) -> Option<&'a mut [u8]> {
        if offset < self.from || offset > self.to || length > self.to - offset {
            return None;
        }
        // SAFETY: inside and mapped while the buffers live; borrowed exclusively in this process, because
        // windows do not overlap, and the other party does not touch it, see `Buffers::new`.
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
