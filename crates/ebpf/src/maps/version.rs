//! A sequence lock that nobody waits on for long.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::MapError;

/// Looks before giving up. A change takes well under a microsecond unless its thread was put to sleep.
const LOOKS: u32 = 1000;

/// Even while nobody changes what it guards; different after every change.
#[derive(Debug, Default)]
pub(super) struct Version(AtomicU32);

/// The right to change; given back when dropped.
pub(super) struct Claim<'a>(&'a AtomicU32);

impl Version {
    /// Runs `look` until no change came in between. `look` must come to an end on inconsistent data too.
    #[inline]
    pub(super) fn read<T>(&self, look: impl Fn() -> T) -> Result<T, MapError> {
        for _ in 0..LOOKS {
            let before = self.0.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let seen = look();
                // Keeps the loads of `look` before the second look at the version.
                fence(Ordering::Acquire);
                if self.0.load(Ordering::Relaxed) == before {
                    return Ok(seen);
                }
            }
            hint::spin_loop();
        }
        Err(MapError::Busy)
    }

    /// Claims the right to change.
    pub(super) fn claim(&self) -> Result<Claim<'_>, MapError> {
        for _ in 0..LOOKS {
            let now = self.0.load(Ordering::Relaxed);
            let claimed = now.is_multiple_of(2)
                && self
                    .0
                    .compare_exchange_weak(now, now.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            if claimed {
                // Keeps the stores of the change behind the odd version.
                fence(Ordering::Release);
                return Ok(Claim(&self.0));
            }
            hint::spin_loop();
        }
        Err(MapError::Busy)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // Release: whoever sees the even version sees the change.
        self.0.fetch_add(1, Ordering::Release);
    }
}
