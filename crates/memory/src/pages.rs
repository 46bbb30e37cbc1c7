//! Queue memory.

use crate::PAGE_SIZE;
use crate::copy;
use crate::mapping::Mapping;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Queue memory: one host address per 4 KiB page, because with a virtual IOMMU neighbouring pages of the
/// guest are not neighbours here.
///
/// The value keeps its memory mapped, and so may outlive the map that it came from.
#[derive(Clone)]
pub struct Pages {
    /// Address of the first page, if all pages are contiguous here too, in one mapping; otherwise null.
    contiguous: *mut u8,
    pages: Vec<*mut u8>,
    length: usize,
    /// Mappings that the pages are in.
    mappings: Vec<Arc<Mapping>>,
}

// SAFETY: the pages belong to mappings that are kept here, and are accessed through atomics only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn with_length(length: usize) -> Pages {
        let pages = Vec::with_capacity(length.div_ceil(PAGE_SIZE));
        Pages { contiguous: std::ptr::null_mut(), pages, length, mappings: Vec::new() }
    }

    /// Appends a page.
    ///
    /// # Safety
    /// `page` is page-aligned, and a whole page of `mapping`.
    pub(crate) unsafe fn push(&mut self, page: *mut u8, mapping: &Arc<Mapping>) {
        debug_assert!(page.addr().is_multiple_of(PAGE_SIZE));
        let follows = self.pages.last().is_none_or(|last| last.wrapping_add(PAGE_SIZE) == page);
        if self.pages.is_empty() {
            self.contiguous = page;
        }
        self.pages.push(page);
        if !self.mappings.iter().any(|held| Arc::ptr_eq(held, mapping)) {
            self.mappings.push(mapping.clone());
        }
        if !follows || self.mappings.len() > 1 {
            self.contiguous = std::ptr::null_mut();
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the 64 bytes at `offset`, each read once. The caller has read, with acquire, the doorbell that
    /// announced them.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 64 inside; so do the others, by their own size.
    #[inline]
    pub fn read_entry(&self, offset: usize) -> [u64; 8] {
        let words = self.words::<8>(offset);
        std::array::from_fn(|n| words[n].load(Ordering::Relaxed))
    }

    /// Writes the 16-byte completion entry at `offset`: the half with the phase bit last, with release, so
    /// that a host that sees the new phase sees the entry.
    #[inline]
    pub fn write_completion(&self, offset: usize, low: u64, high: u64) {
        let words = self.words::<2>(offset);
        words[0].store(low, Ordering::Relaxed);
        words[1].store(high, Ordering::Release);
    }

    #[inline]
    pub fn load_u32(&self, offset: usize, order: Ordering) -> u32 {
        self.u32(offset).load(order)
    }

    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32, order: Ordering) {
        self.u32(offset).store(value, order);
    }

    /// Prefetches the cache line at `offset`. Beyond the end it does nothing that matters.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        if let Some(line) = self.line(offset) {
            copy::prefetch(line);
        }
    }

    /// Prefetches the cache line at `offset` for writing.
    #[inline]
    pub fn prefetch_to_write(&self, offset: usize) {
        if let Some(line) = self.line(offset) {
            copy::prefetch_to_write(line);
        }
    }

    /// Returns the address of a line, not for access: with contiguous pages also beyond the end.
    #[inline]
    fn line(&self, offset: usize) -> Option<*const u8> {
        if !self.contiguous.is_null() {
            return Some(self.contiguous.wrapping_add(offset));
        }
        let page = self.pages.get(offset / PAGE_SIZE)?;
        Some(page.wrapping_add(offset % PAGE_SIZE))
    }

    /// Returns the addresses of the pages, for comparing.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = usize> {
        self.pages.iter().map(|page| page.addr())
    }

    #[inline]
    fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        // SAFETY: aligned and in a page, by `at`; mapped while `self` lives; the host may change atomics at
        // any time.
        unsafe { &*self.at::<[AtomicU64; N]>(offset) }
    }

    #[inline]
    fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `words`.
        unsafe { &*self.at::<AtomicU32>(offset) }
    }

    /// Returns the address of a value at a multiple of its size. The size is a power of two, and so the value
    /// does not cross pages.
    #[inline]
    fn at<T>(&self, offset: usize) -> *mut T {
        const { assert!(size_of::<T>().is_power_of_two() && size_of::<T>() <= PAGE_SIZE) };
        assert!(offset.is_multiple_of(size_of::<T>()));
        assert!(offset < self.length);
        if !self.contiguous.is_null() {
            return self.contiguous.wrapping_add(offset).cast();
        }
        self.pages[offset / PAGE_SIZE].wrapping_add(offset % PAGE_SIZE).cast()
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({} bytes)", self.length)
    }
}
