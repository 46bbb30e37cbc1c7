//! Protocol for the race between a device going to sleep and a host moving a shadow doorbell (NVMe Base 2.1,
//! Doorbell Buffer Config command).
//!
//! The protocol is Dekker's: each side writes its own word, passes a full barrier, and only then reads the
//! other's. At least one of the two therefore sees the other's write: either the device finds the doorbell
//! moved, or the host finds that it must ring. The functions are generic over the word. So the same lines run
//! on a page shared with a guest and in the model checker (`crates/reactor/tests/park_model.rs`).

use crate::Pages;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A 32-bit word that two parties share.
pub trait SharedWord {
    /// Reads the word with acquire: writes of the other side before this value are visible.
    fn read(&self) -> u32;
    /// Writes the word with release: earlier writes of this side are visible to a reader of the value.
    fn write(&self, value: u32);
    /// Passes a full barrier between everything before and everything after.
    fn full_barrier();
}

impl SharedWord for AtomicU32 {
    #[inline]
    fn read(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn write(&self, value: u32) {
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn full_barrier() {
        fence(Ordering::SeqCst);
    }
}

impl<W: SharedWord> SharedWord for &W {
    #[inline]
    fn read(&self) -> u32 {
        W::read(self)
    }

    #[inline]
    fn write(&self, value: u32) {
        W::write(self, value);
    }

    #[inline]
    fn full_barrier() {
        W::full_barrier();
    }
}

/// A word of queue memory: the offset comes from this process, and is a multiple of 4 inside.
#[derive(Clone, Copy, Debug)]
pub struct PageWord<'a> {
    pub pages: &'a Pages,
    pub offset: usize,
}

impl SharedWord for PageWord<'_> {
    #[inline]
    fn read(&self) -> u32 {
        self.pages.load_u32(self.offset, Ordering::Acquire)
    }

    #[inline]
    fn write(&self, value: u32) {
        self.pages.store_u32(self.offset, value, Ordering::Release);
    }

    #[inline]
    fn full_barrier() {
        AtomicU32::full_barrier();
    }
}

/// Requests, as a device that is about to sleep, that the host rings when it moves any of these doorbells.
/// Each is given by its event index and the value last acted on.
///
/// The device must then look at the doorbells once more, and may only sleep if none of them brings work. The
/// doorbells contain whatever the host wrote; check them.
pub fn request_rings<W: SharedWord>(doorbells: impl IntoIterator<Item = (W, u32)>) {
    for (event_index, last_seen) in doorbells {
        event_index.write(last_seen);
    }
    W::full_barrier();
}

/// Suppresses, as a device that is awake, the ring for a move of this doorbell on from `seen`. An event index
/// just behind is passed by no such move.
#[inline]
pub fn suppress_rings<W: SharedWord>(event_index: &W, seen: u32) {
    event_index.write(seen.wrapping_sub(1) & 0xffff);
}

/// Moves a shadow doorbell to `new`, as a host such as Linux does; returns whether the host must ring the
/// real one.
pub fn publish<W: SharedWord>(shadow: &W, event_index: &W, new: u16) -> bool {
    let old = shadow.read() as u16;
    shadow.write(u32::from(new));
    W::full_barrier();
    passes(event_index.read() as u16, new, old)
}

/// Returns whether a move of a doorbell from `old` to `new` passes the event index, in 16-bit wrapping terms.
#[must_use]
pub fn passes(event_index: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event_index).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::passes;

    #[test]
    fn an_event_index_is_passed_once() {
        assert!(passes(4, 5, 4));
        assert!(passes(4, 9, 2));
        assert!(!passes(9, 9, 2));
        assert!(!passes(1, 9, 2));
        assert!(!passes(100, 9, 2));
    }

    #[test]
    fn it_is_passed_where_the_queue_wraps() {
        assert!(passes(1022, 3, 1020));
        assert!(passes(1020, 0, 1020));
        assert!(!passes(3, 3, 1020));
        assert!(!passes(1019, 3, 1020));
    }
}
