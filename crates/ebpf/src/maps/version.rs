//! Sequence lock that a program never waits on.
//!
//! A thread that changes a map may be put to sleep in the middle of it, for an unknown time. So a change is
//! made of steps that leave the map in order after each of them, and a program [looks](Version::glance)
//! beside a change that is under way: it sees the state before, or the state after. The one problem is two
//! changes during one look, since the second may reuse the memory that the first gave up. Then the program
//! looks again, and if that does not help it keeps others from beginning further changes. Other threads
//! [read](Version::read) a state without a change, or get [`MapError::Busy`].

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::MapError;

/// Looks before giving up. A change takes well under a microsecond unless its thread was put to sleep.
const LOOKS: u32 = 1000;
/// Looks of a program before it takes precedence.
const GLANCES: u32 = 50;

/// Version of the guarded map: even while no thread changes it, different after every change.
#[derive(Debug, Default)]
pub(super) struct Version {
    number: AtomicU32,
    /// Programs for whose sake no change may begin.
    waiting: AtomicU32,
}

/// Right to change; given back when dropped.
#[derive(Debug)]
pub(super) struct Claim<'a>(&'a AtomicU32);

impl Version {
    /// Runs `look` until at most one change came beside it, which is soon. `look` must come to an end on
    /// inconsistent data, too.
    #[inline]
    pub(super) fn glance<T>(&self, look: impl Fn() -> T) -> T {
        for _ in 0..GLANCES {
            if let Some(seen) = self.look_once(&look) {
                return seen;
            }
        }
        self.glance_first(look)
    }

    /// Runs `look` with precedence. Comes to an end: of the threads that change the map, each has at most one
    /// change left.
    #[cold]
    fn glance_first<T>(&self, look: impl Fn() -> T) -> T {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let seen = loop {
            if let Some(seen) = self.look_once(&look) {
                break seen;
            }
            hint::spin_loop();
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        seen
    }

    #[inline]
    fn look_once<T>(&self, look: impl Fn() -> T) -> Option<T> {
        let before = self.number.load(Ordering::Acquire);
        let seen = look();
        // Keeps the loads of `look` before the second load of the version.
        fence(Ordering::Acquire);
        let after = self.number.load(Ordering::Relaxed);
        // The same change is under way as before, or one began, or there was none.
        (before | 1 == after | 1).then_some(seen)
    }

    /// Runs `look` until no change came in between. `look` must come to an end on inconsistent data, too.
    #[inline]
    pub(super) fn read<T>(&self, look: impl Fn() -> T) -> Result<T, MapError> {
        self.read_within(LOOKS, look).ok_or(MapError::Busy)
    }

    /// Runs `look` like [`read`](Self::read), with so many looks at most.
    #[inline]
    pub(super) fn read_within<T>(&self, looks: u32, look: impl Fn() -> T) -> Option<T> {
        for _ in 0..looks {
            let before = self.number.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let seen = look();
                // As in `look_once`.
                fence(Ordering::Acquire);
                if self.number.load(Ordering::Relaxed) == before {
                    return Some(seen);
                }
            }
            hint::spin_loop();
        }
        None
    }

    /// Claims the right to change.
    pub(super) fn claim(&self) -> Result<Claim<'_>, MapError> {
        for _ in 0..LOOKS {
            let now = self.number.load(Ordering::Relaxed);
            let free = now.is_multiple_of(2) && self.waiting.load(Ordering::Relaxed) == 0;
            let next = now.wrapping_add(1);
            let exchange =
                || self.number.compare_exchange_weak(now, next, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if free && exchange() {
                // Keeps the stores of the change behind the odd version.
                fence(Ordering::Release);
                return Ok(Claim(&self.number));
            }
            hint::spin_loop();
        }
        Err(MapError::Busy)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // Release: a thread that sees the even version sees the change.
        self.0.fetch_add(1, Ordering::Release);
    }
}
