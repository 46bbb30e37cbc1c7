//! Memory for what nobody else is to see.

use crate::PAGE_SIZE;
use crate::copy;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fmt;
use std::io;
use std::ops::Deref;

/// A value, such as a key, on pages of its own: not in core dumps, not swapped out if the process may lock
/// them (RLIMIT_MEMLOCK), not in a child process, and zeros once it is dropped.
///
/// Where the value came from, and what was copied of it, is its maker's to clean up.
pub struct Secret<T> {
    value: *mut T,
}

// SAFETY: it owns the value, as a box does.
unsafe impl<T: Send> Send for Secret<T> {}
// SAFETY: as above; a shared secret gives out shared references only.
unsafe impl<T: Sync> Sync for Secret<T> {}

impl<T> Secret<T> {
    const BYTES: usize = size_of::<T>().next_multiple_of(PAGE_SIZE);

    pub fn new(value: T) -> io::Result<Self> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= PAGE_SIZE) };
        // SAFETY: a new mapping where the kernel likes; the advice does not touch its contents.
        let pages = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let pages =
                rustix::mm::mmap_anonymous(std::ptr::null_mut(), Self::BYTES, protection, MapFlags::PRIVATE)?;
            rustix::mm::madvise(pages, Self::BYTES, Advice::LinuxDontDump)?;
            rustix::mm::madvise(pages, Self::BYTES, Advice::LinuxWipeOnFork)?;
            // A process that may lock none is still one whose dumps and children do not have it.
            let _ = rustix::mm::mlock(pages, Self::BYTES);
            pages
        };
        let secret = Self { value: pages.cast() };
        // SAFETY: fresh pages, large enough and aligned.
        unsafe { secret.value.write(value) };
        Ok(secret)
    }
}

impl<T> Deref for Secret<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: written in `new`, and nobody has a mutable reference.
        unsafe { &*self.value }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // SAFETY: our own value and pages, which nothing refers to any more. The fill is not left out:
        // it is fenced, see `copy`.
        unsafe {
            self.value.drop_in_place();
            copy::fill(self.value.cast(), 0, Self::BYTES);
            let _ = rustix::mm::munmap(self.value.cast(), Self::BYTES);
        }
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
