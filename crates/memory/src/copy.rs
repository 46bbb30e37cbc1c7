//! Moving bytes to and from memory that may change concurrently.
//!
//! A guest may write memory that is read here, or read memory that is written here; so may another reactor,
//! on behalf of a guest that gave one buffer to two commands. Any mixture of old and new bytes that results
//! is the guest's own doing. But the compiler assumes that ordinary memory does not change. No decision on
//! the copy may be followed by a second read of the shared side. The fences keep the compiler from replacing
//! a read of the copy by one.

use std::sync::atomic::{Ordering, compiler_fence};

/// Copies `length` bytes in one pass, whole or torn at byte granularity where others write meanwhile.
///
/// # Safety
/// `source` must be readable and `destination` writable for `length` bytes, and the two ranges must not
/// overlap.
#[inline]
pub(crate) unsafe fn copy(destination: *mut u8, source: *const u8, length: usize) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the caller's promise; the fences deal with concurrent writers, see above.
    unsafe { std::ptr::copy_nonoverlapping(source, destination, length) };
    compiler_fence(Ordering::SeqCst);
}

/// Length from which the data of one copy does not fit the nearest caches.
const LARGE: usize = 64 << 10;

/// Length below which the set-up of a copy past the caches costs more than it saves.
#[cfg(target_arch = "x86_64")]
const WORTH_STREAMING: usize = 2048;

const CACHE_LINE: usize = 64;

/// Copies like [`copy`], from memory that is probably in no cache. Two halves in step keep more of the memory
/// busy than one front does: 128 KiB a tenth faster, 1 MiB a third (`benches/memory.rs`).
///
/// # Safety
/// As [`copy`].
#[inline]
pub(crate) unsafe fn copy_from_far(destination: *mut u8, source: *const u8, length: usize) {
    if length < LARGE || !length.is_multiple_of(2 * CACHE_LINE) {
        // SAFETY: the caller's promise.
        return unsafe { copy(destination, source, length) };
    }
    compiler_fence(Ordering::SeqCst);
    let half = length / 2;
    for line in (0..half).step_by(CACHE_LINE) {
        // SAFETY: both lines are inside, since `half` is a multiple of a line.
        unsafe {
            source.add(line).copy_to_nonoverlapping(destination.add(line), CACHE_LINE);
            source.add(half + line).copy_to_nonoverlapping(destination.add(half + line), CACHE_LINE);
        }
    }
    compiler_fence(Ordering::SeqCst);
}

/// Copies like [`copy`], to memory that is not read soon. Where the machine can, the copy goes past the
/// caches, which neither fetches the overwritten lines nor evicts others: 4 KiB in half the time, 128 KiB in
/// a third. Several of these copies are ended by one [`finish_streaming`].
///
/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn copy_to_far(destination: *mut u8, source: *const u8, length: usize) {
    if length < WORTH_STREAMING {
        // SAFETY: the caller's promise.
        return unsafe { copy(destination, source, length) };
    }
    let head = destination.align_offset(CACHE_LINE).min(length);
    let lines = (length - head) / CACHE_LINE;
    let tail = head + lines * CACHE_LINE;
    compiler_fence(Ordering::SeqCst);
    // SAFETY: three parts, one after the other, of what the caller promised; the middle is aligned.
    unsafe {
        source.copy_to_nonoverlapping(destination, head);
        stream_lines(destination.add(head), source.add(head), lines);
        source.add(tail).copy_to_nonoverlapping(destination.add(tail), length - tail);
    }
    compiler_fence(Ordering::SeqCst);
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use copy as copy_to_far;

/// Orders the stores of [`copy_to_far`] before everything after: such stores are not ordered by themselves.
#[inline]
pub(crate) fn finish_streaming() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fence; every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Copies cache lines with stores that bypass the caches.
///
/// # Safety
/// As [`copy`], and `destination` is aligned to a line.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn stream_lines(destination: *mut u8, source: *const u8, lines: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for line in 0..lines {
        let from = source.wrapping_add(line * CACHE_LINE).cast::<__m128i>();
        let to = destination.wrapping_add(line * CACHE_LINE).cast::<__m128i>();
        // SAFETY: inside, by the caller's promise; SSE2 is part of x86-64.
        unsafe {
            let words = [0, 1, 2, 3].map(|n| _mm_loadu_si128(from.add(n)));
            (0..words.len()).for_each(|n| _mm_stream_si128(to.add(n), words[n]));
        }
    }
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

/// Prefetches the cache line at `address`, which need not be valid.
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

/// Prefetches the cache line at `address`, which need not be valid, for writing.
#[inline]
pub(crate) fn prefetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; processors without this one do nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch never faults, whatever the address.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
