//! Memory for secrets.

use crate::PAGE_SIZE;
use crate::copy;
use rustix::fs::ftruncate;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::{c_long, c_void};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{FromRawFd, OwnedFd};
use zerocopy::FromZeros;

/// A value, such as a key, on pages of its own: not in core dumps, not in a child process, and zeros once it
/// is dropped.
///
/// Where the kernel has `memfd_secret`, and the process may lock so many pages (RLIMIT_MEMLOCK), no other
/// process can read them. That includes the kernel by mistake, and root with a debugger. Otherwise the pages
/// are locked into memory if that is possible.
///
/// The creator must clean up the source of the value and other copies of it.
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
        let secret = Self { value: Self::pages()? };
        // SAFETY: fresh pages, large enough and aligned.
        unsafe { secret.value.write(value) };
        Ok(secret)
    }

    /// Creates a value of zeros that is written in place, so that there is no copy of it elsewhere.
    pub fn zeros() -> io::Result<Self>
    where
        T: FromZeros,
    {
        // Fresh pages are zeros, which are a value.
        Ok(Self { value: Self::pages()? })
    }

    /// Returns fresh pages for a value.
    fn pages() -> io::Result<*mut T> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= PAGE_SIZE) };
        Ok(secret_pages(Self::BYTES).or_else(|_| locked_pages(Self::BYTES))?.cast())
    }
}

/// Returns pages that only this process can reach.
fn secret_pages(bytes: usize) -> io::Result<*mut c_void> {
    // SAFETY: makes a descriptor and does nothing else; only this process has it.
    let file = unsafe {
        match libc::syscall(libc::SYS_memfd_secret, c_long::from(libc::O_CLOEXEC)) {
            number @ 0.. => OwnedFd::from_raw_fd(number as i32),
            _ => return Err(io::Error::last_os_error()),
        }
    };
    ftruncate(&file, bytes as u64)?;
    // SAFETY: a new mapping where the kernel likes; the advice does not touch its contents.
    unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let pages = rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, 0)?;
        rustix::mm::madvise(pages, bytes, Advice::LinuxDontFork)?;
        Ok(pages)
    }
}

/// Returns ordinary pages, protected as far as possible.
fn locked_pages(bytes: usize) -> io::Result<*mut c_void> {
    // Returns ordinary pages, protected as far as possible.
    unsafe {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let pages = rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)?;
        rustix::mm::madvise(pages, bytes, Advice::LinuxDontDump)?;
        rustix::mm::madvise(pages, bytes, Advice::LinuxWipeOnFork)?;
        // A process that may lock none still keeps them from its dumps and children.
        let _ = rustix::mm::mlock(pages, bytes);
        Ok(pages)
    }
}

impl<T> Deref for Secret<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: written by `new` or `zeros`, and there is no mutable reference.
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for Secret<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and there is no other reference.
        unsafe { &mut *self.value }
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // SAFETY: the value and pages of this secret, which nothing refers to any more. The fill is not left
        // out: it is fenced, see `copy`.
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
