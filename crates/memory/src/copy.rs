//! Moving bytes to and from memory that may change under us.
//!
//! A guest (or another reactor, on behalf of a guest that gave one buffer to two commands) may write
//! where we read, or read where we write. Whatever mixture of old and new bytes that leaves is the
//! guest's own doing; what must never happen is that the compiler, which assumes that ordinary memory
//! holds still, reads the shared side a second time after we have looked at our copy. The fences keep
//! it from seeing through the copy.

use std::sync::atomic::{Ordering, compiler_fence};

/// Copies `length` bytes, one pass, whole or torn at byte granularity where others write meanwhile.
///
/// # Safety
/// `source` must be readable and `destination` writable for `length` bytes, and the two ranges must
/// not overlap.
#[inline]
pub(crate) unsafe fn copy(destination: *mut u8, source: *const u8, length: usize) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the caller's promise; that others may race is dealt with by the fences, see above.
    unsafe { std::ptr::copy_nonoverlapping(source, destination, length) };
    compiler_fence(Ordering::SeqCst);
}

/// Sets `length` bytes.
///
/// # Safety
/// `destination` must be writable for `length` bytes.
#[inline]
pub(crate) unsafe fn fill(destination: *mut u8, byte: u8, length: usize) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(destination, byte, length) };
    compiler_fence(Ordering::SeqCst);
}

/// Asks for the cache line at `address`, which need not be valid.
#[inline]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch(address.cast(), _MM_HINT_T0);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
