//! A shared mapping of a file, for as long as anything points into it.

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
    /// What is mapped, if somebody may want to map it elsewhere, too.
    file: Option<OwnedFd>,
    /// Held by one that a client has beyond its own.
    place: Option<SharedPlace>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and the memory in it is accessed by
// copies and atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing here changes after `new` but the flag, which is atomic.
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

    /// Holds a place for as long as it is mapped.
    pub(crate) fn hold(&mut self, place: Option<SharedPlace>) {
        self.place = place;
    }

    /// Keeps a descriptor of what is mapped.
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

    /// Bytes.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poison().load(Ordering::Relaxed)
    }

    /// The flag behind [`is_poisoned`](Self::is_poisoned); outlives the mapping.
    pub(crate) fn poison(&self) -> &'static AtomicBool {
        static NEVER: AtomicBool = AtomicBool::new(false);
        self.registration.as_ref().map_or(&NEVER, Registration::poisoned)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Out of the table first: the addresses may be given to someone else as soon as they are free.
        self.registration = None;
        // SAFETY: our own mapping, and nothing points into it any more: who holds pointers holds the
        // mapping too, or has promised (see `segment`) to be done with them. If the kernel refuses,
        // which it may when it would have to split an area, addresses are lost and nothing else.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}
