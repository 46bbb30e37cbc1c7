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
        if offset > self.region.len() || length > self.region.len() - offset {
            return None;
        }
        // SAFETY: inside and mapped while `self` lives; borrowed exclusively in this process, and the
        // other party keeps away from it, see `new`.
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
