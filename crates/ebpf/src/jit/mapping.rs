//! Memory with machine code in it: written once, then executable and never writable again.
#![allow(unsafe_code)] // maps memory, and makes it executable

use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Mapped machine code.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to the mapping, and no thread writes to it once `new` has returned.
unsafe impl Send for Mapping {}
// SAFETY: as above; threads only read and execute it.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(code: &[u8]) -> rustix::io::Result<Self> {
        let len = code.len().max(1);
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory that exists.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        let mapping = Self { start: NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?, len };
        // SAFETY: the mapping is at least as long as the code, writable, private to this function, and does
        // not overlap the code.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), mapping.start.as_ptr(), code.len()) };
        // SAFETY: the range is the mapping just made. From here on it cannot be written.
        unsafe { mprotect(start, len, MprotectFlags::READ | MprotectFlags::EXEC)? };
        mapping.publish()?;
        Ok(mapping)
    }

    /// Makes the instruction fetch of every core see the code; on x86_64 it does anyway.
    fn publish(&self) -> rustix::io::Result<()> {
        use wasmtime_internal_jit_icache_coherence::{clear_cache, pipeline_flush_mt};
        let failed = |_| rustix::io::Errno::IO;
        // SAFETY: the range is the mapping, which is readable.
        unsafe { clear_cache(self.start.as_ptr().cast(), self.len) }.map_err(failed)?;
        pipeline_flush_mt().map_err(failed)
    }

    /// Returns the address of a byte of the code.
    #[inline]
    pub(super) fn at(&self, offset: usize) -> *const u8 {
        assert!(offset < self.len, "inside the code");
        self.start.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and its owner has stopped running its code.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
