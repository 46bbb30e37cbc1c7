//! Shared mapping of a file, for as long as anything points into it.

use crate::fault::Registration;
use crate::mapped_files::SharedPlace;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// `length` bytes of a file at `base`, unmapped when dropped.
///
/// Guest memory is kept out of core dumps, and a fault in it does not end the process (see `fault`).
pub(crate) struct Mapping {
    base: *mut u8,
    length: usize,
    writable: bool,
    registration: Option<Registration>,
    /// Descriptor of the file, if it may be mapped for another device, too.
    file: Option<OwnedFd>,
    /// Place that a mapping beyond the client's own number holds.
    place: Option<SharedPlace>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and its memory is accessed by copies and
// atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above; after `new` only the flag changes, which is atomic.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `fd` from `offset`, multiples of `page_size` both.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        writable: bool,
        page_size: usize,
    ) -> io::Result<Mapping> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let base = unsafe {
            let flags = MapFlags::SHARED | MapFlags::NORESERVE;
            rustix::mm::mmap(std::ptr::null_mut(), length, protection, flags, fd, offset)?
        };
        let mut mapping =
            Mapping { base: base.cast(), length, writable, registration: None, file: None, place: None };
        // SAFETY: the mapping just made; the advice does not touch its contents.
        unsafe { rustix::mm::madvise(base, length, Advice::LinuxDontDump)? };
        mapping.registration = Some(Registration::new(mapping.base.addr(), length, page_size)?);
        Ok(mapping)
    }

    /// Holds a place for as long as the file is mapped.
    pub(crate) fn hold(&mut self, place: Option<SharedPlace>) {
        self.place = place;
    }

    /// Keeps a descriptor of the mapped file.
    pub(crate) fn keep(&mut self, file: OwnedFd) {
        self.file = Some(file);
    }

    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poison().load(Ordering::Relaxed)
    }

    /// Returns the flag behind [`is_poisoned`](Self::is_poisoned); the flag outlives the mapping.
    pub(crate) fn poison(&self) -> &'static AtomicBool {
        static NEVER: AtomicBool = AtomicBool::new(false);
        self.registration.as_ref().map_or(&NEVER, Registration::poisoned)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Out of the table first: the addresses may be reused as soon as they are free.
        self.registration = None;
        // SAFETY: this process's mapping, and nothing points into it any more: a holder of pointers holds the
        // mapping too, or has promised (see `segment`) to be done with them. If the kernel refuses, which it
        // may when it would have to split an area, addresses are lost and nothing else.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}
