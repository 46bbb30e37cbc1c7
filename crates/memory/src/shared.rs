//! Shared memory of this process: BAR pages, host-side queues and buffers, the hand-over segment.

use crate::PAGE_SIZE;
use crate::copy;
use crate::list::SegmentList;
use crate::mapping::Mapping;
use crate::segment::Segment;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use zerocopy::{FromBytes, IntoBytes};

/// A file in memory, mapped read-write, whose contents may change at any time: every other holder of the
/// descriptor may write.
///
/// # Panics
/// Every access panics if it does not lie inside, or is not aligned by its size: offsets come from this
/// process.
pub struct SharedRegion {
    fd: OwnedFd,
    mapping: Mapping,
    length: usize,
}

impl SharedRegion {
    /// Creates a memfd of `length` bytes, zeros, that cannot be shrunk. `name` is shown in `/proc/self/maps`.
    pub fn new(name: &str, length: usize) -> io::Result<SharedRegion> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, length as u64)?;
        // No other holder can make it larger, which would be charged to this process. Sealed against more
        // seals too: one against writing would stop a successor of this process.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::from_fd(fd, 0, length)
    }

    /// Maps a part of a file that another process made, such as a BAR of a server. `offset` is a multiple of
    /// 4096.
    pub fn from_fd(fd: OwnedFd, offset: u64, length: usize) -> io::Result<SharedRegion> {
        let size = u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
        if length == 0 || offset.checked_add(length as u64).is_none_or(|end| end > size) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mapped = length.next_multiple_of(PAGE_SIZE);
        let mapping = Mapping::new(fd.as_fd(), offset, mapped, true, PAGE_SIZE)?;
        Ok(SharedRegion { fd, mapping, length })
    }

    /// Maps registers of a device, whose file has no length. Registers that are gone read as zeros.
    pub(crate) fn of_device(fd: OwnedFd, offset: u64, length: usize) -> io::Result<SharedRegion> {
        let mapping = Mapping::new(fd.as_fd(), offset, length.next_multiple_of(PAGE_SIZE), true, PAGE_SIZE)?;
        Ok(SharedRegion { fd, mapping, length })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    #[inline]
    pub fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside and aligned, mapped while `self` lives; an atomic may be changed by anyone.
        unsafe { AtomicU32::from_ptr(self.aligned(offset)) }
    }

    /// Returns some 64-bit words, such as a queue entry, with one check for all of them.
    #[inline]
    pub fn words<const N: usize>(&self, offset: usize) -> &[AtomicU64; N] {
        assert!(offset.is_multiple_of(size_of::<u64>()), "not aligned");
        // SAFETY: inside, by `at`, and aligned; otherwise as in `atomic_u32`.
        unsafe { &*self.at(offset, size_of::<[AtomicU64; N]>()).cast() }
    }

    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `atomic_u32`.
        unsafe { AtomicU64::from_ptr(self.aligned(offset)) }
    }

    #[inline]
    pub fn read(&self, offset: usize, destination: &mut [u8]) {
        let source = self.at(offset, destination.len());
        // SAFETY: inside, by `at`; the other side is a Rust slice, and so never shared memory.
        unsafe { copy::copy(destination.as_mut_ptr(), source, destination.len()) };
    }

    #[inline]
    pub fn write(&self, offset: usize, source: &[u8]) {
        let destination = self.at(offset, source.len());
        // SAFETY: as in `read`.
        unsafe { copy::copy(destination, source.as_ptr(), source.len()) };
    }

    /// Copies `length` bytes from one offset to another; the two ranges do not overlap.
    #[inline]
    pub fn copy_within(&self, from: usize, to: usize, length: usize) {
        assert!(from.abs_diff(to) >= length, "the two overlap");
        let (source, destination) = (self.at(from, length), self.at(to, length));
        // SAFETY: both inside, by `at`, and apart.
        unsafe { copy::copy(destination, source, length) };
    }

    /// Copies `length` bytes of `list`, from byte `from` of it on, to `offset`. Returns the bytes moved:
    /// fewer than requested if the list ends before. Bit buckets read as zeros.
    pub fn gather(&self, offset: usize, list: &SegmentList, from: usize, length: usize) -> usize {
        let mut destination = self.at(offset, length);
        for chunk in list.chunks(from, length) {
            let bytes = chunk.len() as usize;
            // SAFETY: inside, by `at`, since the chunks are not longer together; the segment is mapped, see
            // `segment`. Data of a command never lies in the region it is copied to.
            unsafe {
                match chunk.is_bit_bucket() {
                    true => copy::fill(destination, 0, bytes),
                    false => copy::copy(destination, chunk.pointer(), bytes),
                }
            }
            destination = destination.wrapping_add(bytes);
        }
        destination.addr() - self.at(offset, length).addr()
    }

    /// Copies `length` bytes from `offset` into `list`, from byte `to` of it on. Returns the bytes moved, as
    /// [`gather`](Self::gather) does. Bytes for bit buckets are dropped.
    pub fn scatter(&self, offset: usize, list: &SegmentList, to: usize, length: usize) -> usize {
        let mut source = self.at(offset, length).cast_const();
        for chunk in list.chunks(to, length) {
            let bytes = chunk.len() as usize;
            if !chunk.is_bit_bucket() {
                // SAFETY: as in `gather`.
                unsafe { copy::copy(chunk.pointer(), source, bytes) };
            }
            source = source.wrapping_add(bytes);
        }
        source.addr() - self.at(offset, length).addr()
    }

    /// Sets `length` bytes from `offset` on.
    pub fn fill(&self, offset: usize, length: usize, byte: u8) {
        let destination = self.at(offset, length);
        // SAFETY: inside, by `at`.
        unsafe { copy::fill(destination, byte, length) };
    }

    /// Gives whole pages back to the machine: they read as zeros afterwards, and take no memory until they
    /// are written. The system call takes some microseconds for every hundred pages.
    pub fn give_back(&self, offset: usize, length: usize) {
        assert!(offset.is_multiple_of(PAGE_SIZE) && length <= self.length - offset, "pages of the region");
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file that keeps its contents is as good: no caller relies on the zeros.
        let _ = rustix::fs::fallocate(&self.fd, hole, offset as u64, length as u64);
    }

    /// Prefetches the cache line at `offset`. Beyond the end it does nothing.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        if offset < self.len() {
            copy::prefetch(self.at(offset, 1));
        }
    }

    /// Prefetches the cache line at `offset` for writing. Beyond the end it does nothing.
    #[inline]
    pub fn prefetch_to_write(&self, offset: usize) {
        if offset < self.len() {
            copy::prefetch_to_write(self.at(offset, 1));
        }
    }

    /// Returns a window of the region, as data of a command. The promise in [`segment`](crate::segment)
    /// applies.
    #[inline]
    pub fn segment(&self, offset: usize, length: u32) -> Segment {
        let pointer = self.at(offset, length as usize);
        // SAFETY: inside, by `at`.
        unsafe { Segment::new(pointer, length) }
    }

    /// Returns the mapping without the descriptor.
    pub(crate) fn into_mapping(self) -> Mapping {
        self.mapping
    }

    /// Turns the region into records: as many as fit.
    ///
    /// From here on it is private memory of the process, so no other process may write to it: the descriptor
    /// is for a successor that takes over when this process has stopped.
    ///
    /// # Errors
    /// InvalidInput if the file can still be shrunk, which would remove the records.
    pub fn into_array<T: FromBytes + IntoBytes>(self) -> io::Result<SharedArray<T>> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= PAGE_SIZE) };
        if !rustix::fs::fcntl_get_seals(&self.fd)?.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(SharedArray { region: self, records: PhantomData })
    }

    /// Turns the region into one record, as [`into_array`](Self::into_array) does into many.
    ///
    /// # Errors
    /// InvalidInput if the region is smaller than the record, or can still be shrunk.
    pub fn into_record<T: FromBytes + IntoBytes>(self) -> io::Result<SharedRecord<T>> {
        if self.length < size_of::<T>() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(SharedRecord { array: self.into_array()? })
    }

    #[inline]
    pub(crate) fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length && length <= self.length - offset, "beyond the region");
        self.mapping.base().wrapping_add(offset)
    }

    #[inline]
    fn aligned<T>(&self, offset: usize) -> *mut T {
        assert!(offset.is_multiple_of(size_of::<T>()), "not aligned");
        self.at(offset, size_of::<T>()).cast()
    }
}

impl fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRegion({} bytes)", self.length)
    }
}

/// Records in a shared region that this process alone writes; see [`SharedRegion::into_array`].
pub struct SharedArray<T> {
    region: SharedRegion,
    records: PhantomData<T>,
}

impl<T> SharedArray<T> {
    /// Returns the descriptor, for handing over.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    fn count(&self) -> usize {
        self.region.length / size_of::<T>()
    }
}

impl<T: FromBytes + IntoBytes> Deref for SharedArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: mapped while `self` lives and cannot be shrunk; page-aligned; any bytes are a `T`;
        // only this process writes, and only through `deref_mut`, see `into_array`.
        unsafe { std::slice::from_raw_parts(self.region.mapping.base().cast(), self.count()) }
    }
}

impl<T: FromBytes + IntoBytes> DerefMut for SharedArray<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.region.mapping.base().cast(), self.count()) }
    }
}

impl<T> fmt::Debug for SharedArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedArray({} records)", self.count())
    }
}

/// A record in a shared region that this process alone writes; see [`SharedRegion::into_record`].
pub struct SharedRecord<T> {
    array: SharedArray<T>,
}

impl<T> SharedRecord<T> {
    /// Returns the descriptor, for handing over.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.array.fd()
    }

    #[inline]
    fn pointer(&self) -> *mut T {
        self.array.region.mapping.base().cast()
    }
}

impl<T: FromBytes + IntoBytes> Deref for SharedRecord<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as in `SharedArray::deref`; there is room for one, by `into_record`.
        unsafe { &*self.pointer() }
    }
}

impl<T: FromBytes + IntoBytes> DerefMut for SharedRecord<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { &mut *self.pointer() }
    }
}

impl<T> fmt::Debug for SharedRecord<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRecord({} bytes)", size_of::<T>())
    }
}
