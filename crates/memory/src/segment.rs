//! Checked windows of host-virtual memory, and the promise that every such window rests on.
//!
//! # The promise
//!
//! A [`Segment`] is a plain address and length, so that it costs nothing to hand around. It was checked when
//! it was made; it stays valid only because the memory behind it stays mapped. That is the one thing in this
//! crate that the compiler does not check, and it is this:
//!
//! **The owner of memory waits for all of its users before it unmaps the memory.**
//!
//! - A segment made by a `Space` may be used until the [`Removed`](crate::Removed) that its region
//!   went into is dropped, or the `Space` itself is, if the region was never unmapped. The front-end
//!   drops either only when no command that was translated before is in flight any more: none in a
//!   queue, none parked in a function, none submitted to a device or the kernel.
//! - A segment of a [`SharedRegion`](crate::SharedRegion) may be used until the region is dropped;
//!   its owner drops it after the commands that carry such segments have come back.
//! - A list of segments belongs to one command, and is cleared before that command's slot is used
//!   for another.
//!
//! Queue memory is not under this promise: [`Pages`](crate::Pages) keeps its mapping alive by itself. The
//! promise does not cover the *contents* of memory: they change at any time, and a truncated file is caught
//! by [`fault`](crate::fault).

use crate::copy;
use std::fmt;
use zerocopy::FromZeros;

/// A window of guest memory or of a shared region, or a bit bucket. See the module's promise.
///
/// Laid out as an `iovec`, so that the kernel takes a list of segments as it is.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
pub struct Segment {
    /// Address; null for a bit bucket.
    pointer: *mut u8,
    /// Bytes; at most `u32::MAX`.
    length: usize,
}

// SAFETY: an address and a length; the memory there is accessed by copies and atomics only, which any thread
// may do, and the promise holds for all threads together.
unsafe impl Send for Segment {}
// SAFETY: as above; a shared segment offers nothing that a copied one does not.
unsafe impl Sync for Segment {}

impl Segment {
    pub(crate) const EMPTY: Segment = Segment { pointer: std::ptr::null_mut(), length: 0 };

    /// Creates the window of `length` bytes at `pointer`.
    ///
    /// # Safety
    /// The memory is mapped, readable or writable as the segment will be used, for as long as the module's
    /// promise demands.
    #[inline]
    pub(crate) unsafe fn new(pointer: *mut u8, length: u32) -> Segment {
        debug_assert!(!pointer.is_null());
        Segment { pointer, length: length as usize }
    }

    /// Creates a window of `length` bytes that are dropped (Base 2.0, 4.1.2: SGL Bit Bucket descriptor).
    pub fn bit_bucket(length: u32) -> Segment {
        Segment { pointer: std::ptr::null_mut(), length: length as usize }
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.length as u32
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns whether the bytes are to be dropped; there is no memory behind the segment.
    #[inline]
    pub fn is_bit_bucket(&self) -> bool {
        self.pointer.is_null()
    }

    /// Returns the address, for handing to the kernel only; null for a bit bucket.
    #[inline]
    pub fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Returns `length` bytes of this segment from `offset`.
    ///
    /// # Panics
    /// If they are not inside: the caller must check the length.
    #[inline]
    pub fn slice(&self, offset: u32, length: u32) -> Segment {
        let (offset, length) = (offset as usize, length as usize);
        assert!(offset + length <= self.length, "a slice of {offset}+{length} bytes of {}", self.length);
        Segment { pointer: self.advance(offset), length }
    }

    /// Returns whether address and length are multiples of `alignment`, as direct I/O demands. A bit bucket
    /// is not: the kernel does not accept one.
    #[inline]
    pub fn is_aligned(&self, alignment: usize) -> bool {
        !self.is_bit_bucket() && (self.pointer.addr() | self.length).is_multiple_of(alignment)
    }

    /// Grows by `next` if that begins where this segment ends.
    #[inline]
    pub(crate) fn merge(&mut self, next: Segment) -> bool {
        let adjacent = self.advance(self.length) == next.pointer;
        let length = self.length + next.length;
        if adjacent && length <= u32::MAX as usize {
            self.length = length;
        }
        adjacent && length <= u32::MAX as usize
    }

    /// Returns the host addresses, for comparing.
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.pointer.addr()..self.pointer.addr() + self.length
    }

    /// Writes `source` to the first bytes of the segment, which must be as long at least.
    #[inline]
    pub(crate) fn write(&self, source: &[u8]) {
        assert!(source.len() <= self.length);
        if !self.is_bit_bucket() {
            // SAFETY: inside the segment, which is mapped by the promise; `source` is a Rust slice and so
            // never guest memory.
            unsafe { copy::copy(self.pointer, source.as_ptr(), source.len()) };
        }
    }

    /// Reads the first bytes of the segment into `destination`; a bit bucket yields zeros.
    #[inline]
    pub fn read(&self, destination: &mut [u8]) {
        assert!(destination.len() <= self.length);
        if self.is_bit_bucket() {
            destination.fill(0);
        } else {
            // SAFETY: as in `write`.
            unsafe { copy::copy(destination.as_mut_ptr(), self.pointer, destination.len()) };
        }
    }

    #[inline]
    pub(crate) fn fill(&self, byte: u8) {
        if !self.is_bit_bucket() {
            // SAFETY: as in `write`.
            unsafe { copy::fill(self.pointer, byte, self.length) };
        }
    }

    #[inline]
    fn advance(&self, offset: usize) -> *mut u8 {
        if self.is_bit_bucket() { self.pointer } else { self.pointer.wrapping_add(offset) }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_bit_bucket() {
            true => write!(f, "bit bucket of {}", self.length),
            false => write!(f, "{:p}+{:#x}", self.pointer, self.length),
        }
    }
}
