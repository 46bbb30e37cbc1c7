//! Private memory of this process, for drives in memory.

use crate::PAGE_SIZE;
use crate::copy;
use crate::list::{OutOfRange, SegmentList};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};
use std::fmt;
use std::io;

/// Bytes of the largest arena: half of what a process can address.
const MAX_LENGTH: usize = 1 << 46;

/// Size from which an arena does not fit the machine's caches, and its data is not expected to be read from
/// them.
const FAR: usize = 64 << 20;

/// Bytes of one cache line, for prefetching.
const CACHE_LINE: usize = 64;

const PREFETCHED_LINES: usize = 8;

/// Private anonymous memory: zeros at first, taken from the machine when touched, in huge pages where
/// possible, and not part of a core dump.
///
/// Several threads may copy to and from it at once; where they do so at the same place, the bytes are a
/// mixture, as the NVMe specification allows for commands in flight together.
pub struct Arena {
    base: *mut u8,
    length: usize,
}

// SAFETY: the memory belongs to the process, and is accessed by copies only.
unsafe impl Send for Arena {}
// SAFETY: as above; `resize` and `drop` have it exclusively.
unsafe impl Sync for Arena {}

impl Arena {
    /// Bytes of a transparent huge page: with huge pages a random access misses the TLB once instead of at
    /// every level. An arena begins with a whole one.
    pub const HUGE_PAGE: usize = 2 << 20;

    /// Creates an arena of `length` bytes, all zeros.
    pub fn new(length: usize) -> io::Result<Arena> {
        check_length(length)?;
        let mapped = mapped_length(length);
        let base = reserve(mapped)?;
        let arena = Arena { base, length };
        // SAFETY: the range was just reserved here.
        unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(base.cast(), mapped, protection, flags() | MapFlags::FIXED)?;
        }
        arena.advise(mapped)?;
        Ok(arena)
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies from `offset` on into all of `list`.
    #[inline]
    pub fn read_into(&self, offset: u64, list: &SegmentList) -> Result<(), OutOfRange> {
        let mut source = self.range(offset, list.len_bytes())?;
        for chunk in list.as_slice() {
            if !chunk.is_bit_bucket() {
                // SAFETY: inside the arena; the segment is mapped (see `segment`) and never in here.
                unsafe { copy::copy_from_far(chunk.pointer(), source, chunk.len() as usize) };
            }
            source = source.wrapping_add(chunk.len() as usize);
        }
        Ok(())
    }

    /// Copies all of `list` to `offset` and on. Bit buckets leave the arena as it is.
    #[inline]
    pub fn write_from(&self, offset: u64, list: &SegmentList) -> Result<(), OutOfRange> {
        let mut destination = self.range(offset, list.len_bytes())?;
        let far = self.length >= FAR;
        for chunk in list.as_slice() {
            let length = chunk.len() as usize;
            if !chunk.is_bit_bucket() {
                // SAFETY: as in `read_into`.
                unsafe {
                    match far {
                        true => copy::copy_to_far(destination, chunk.pointer(), length),
                        false => copy::copy(destination, chunk.pointer(), length),
                    }
                }
            }
            destination = destination.wrapping_add(length);
        }
        if far {
            copy::finish_streaming();
        }
        Ok(())
    }

    /// Copies from `offset` on into `destination`.
    #[inline]
    pub fn read(&self, offset: u64, destination: &mut [u8]) -> Result<(), OutOfRange> {
        let source = self.range(offset, destination.len())?;
        // SAFETY: inside the arena, which no Rust slice ever is.
        unsafe { copy::copy(destination.as_mut_ptr(), source, destination.len()) };
        Ok(())
    }

    /// Copies `source` to `offset` and on.
    #[inline]
    pub fn write(&self, offset: u64, source: &[u8]) -> Result<(), OutOfRange> {
        let destination = self.range(offset, source.len())?;
        // SAFETY: as in `read`.
        unsafe { copy::copy(destination, source.as_ptr(), source.len()) };
        Ok(())
    }

    /// Sets `length` bytes from `offset` on to zero. Whole huge pages are given back to the machine. That
    /// takes some 3 ms for each GiB, and the rest as long as writing it: a caller that must not stop for so
    /// long does it in parts.
    pub fn zero(&self, offset: u64, length: usize) -> Result<(), OutOfRange> {
        let start = self.range(offset, length)?;
        let first = (start.addr().next_multiple_of(Arena::HUGE_PAGE) - start.addr()).min(length);
        let given_back = (length - first) / Arena::HUGE_PAGE * Arena::HUGE_PAGE;
        let rest = first + given_back;
        // SAFETY: all of it inside the arena; private anonymous memory reads as zeros afterwards.
        unsafe {
            copy::fill(start, 0, first);
            let middle = start.wrapping_add(first);
            if given_back > 0
                && rustix::mm::madvise(middle.cast(), given_back, Advice::LinuxDontNeed).is_err()
            {
                copy::fill(middle, 0, given_back);
            }
            copy::fill(start.wrapping_add(rest), 0, length - rest);
        }
        Ok(())
    }

    /// Returns the address of the byte at `offset`, and how many of `length` bytes there are. For system
    /// calls about the memory, and for nothing else.
    pub fn address_of(&self, offset: u64, length: usize) -> (*const u8, usize) {
        let offset = offset.min(self.length as u64) as usize;
        (self.base.wrapping_add(offset), length.min(mapped_length(self.length) - offset))
    }

    /// Prefetches the first cache lines of `length` bytes from `offset` on for reading; a write does not need
    /// them. The processor's own prefetcher follows a copy under way, and further prefetches would only delay
    /// it.
    #[inline]
    pub fn prefetch(&self, offset: u64, length: usize) {
        if let Ok(start) = self.range(offset, length) {
            let lines = (0..length).step_by(CACHE_LINE).take(PREFETCHED_LINES);
            lines.for_each(|line| copy::prefetch(start.wrapping_add(line)));
        }
    }

    /// Changes the length. Remaining bytes keep their contents, new ones are zeros. After an error nothing
    /// has changed.
    pub fn resize(&mut self, length: usize) -> io::Result<()> {
        check_length(length)?;
        let (old, new) = (mapped_length(self.length), mapped_length(length));
        if new > old {
            self.grow(old, new)?;
        }
        if length < self.length {
            // Bytes that are added again later must be zeros, in the last page too.
            let cut = self.length.min(new) - length;
            self.zero(length as u64, cut).map_err(|OutOfRange| io::ErrorKind::InvalidInput)?;
        }
        if new < old {
            let behind = Unused { base: self.base.wrapping_add(new), length: old - new };
            behind.release();
        }
        self.length = length;
        Ok(())
    }

    fn grow(&mut self, old: usize, new: usize) -> io::Result<()> {
        let base = reserve(new)?;
        // SAFETY: moves this arena's mapping into a range just reserved for it; nothing points into it, since
        // `self` is exclusive.
        let moved = unsafe {
            rustix::mm::mremap_fixed(self.base.cast(), old, new, MremapFlags::MAYMOVE, base.cast())
        };
        if let Err(error) = moved {
            // SAFETY: the range just reserved, unused.
            unsafe { rustix::mm::munmap(base.cast(), new)? };
            return Err(error.into());
        }
        self.base = base;
        self.advise(new)
    }

    fn advise(&self, mapped: usize) -> io::Result<()> {
        // SAFETY: this arena's mapping; the advice does not change contents.
        unsafe {
            rustix::mm::madvise(self.base.cast(), mapped, Advice::LinuxDontDump)?;
            // A kernel without huge pages is slower, and not wrong.
            let _ = rustix::mm::madvise(self.base.cast(), mapped, Advice::LinuxHugepage);
        }
        Ok(())
    }

    #[inline]
    fn range(&self, offset: u64, length: usize) -> Result<*mut u8, OutOfRange> {
        if offset > self.length as u64 || length > self.length - offset as usize {
            return Err(OutOfRange);
        }
        Ok(self.base.wrapping_add(offset as usize))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Nothing outside ever gets a pointer into it.
        Unused { base: self.base, length: mapped_length(self.length) }.release();
    }
}

/// A mapping, or the end of one, that nothing points to any more.
struct Unused {
    base: *mut u8,
    length: usize,
}

// SAFETY: the addresses belong to the process, and no other code in it uses them.
unsafe impl Send for Unused {}

impl Unused {
    /// Unmaps the memory; a large one on a thread of its own. Unmapping takes from 3 ms to 100 ms for each
    /// GiB that was touched, and the calling thread may be a reactor.
    fn release(self) {
        if self.length < FAR {
            return drop(self);
        }
        // Without a thread the closure is dropped here, and the memory with it.
        let _ = std::thread::Builder::new().name("sluice-unmap".to_owned()).spawn(move || drop(self));
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        // SAFETY: nothing points into it, and it is unmapped just here. If the kernel refuses, which it may
        // when it would have to split an area, addresses are lost and nothing else.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} bytes)", self.length)
    }
}

fn flags() -> MapFlags {
    MapFlags::PRIVATE | MapFlags::NORESERVE
}

/// Refuses a length beyond the address space before anything is rounded up.
fn check_length(length: usize) -> io::Result<()> {
    if length > MAX_LENGTH { Err(io::ErrorKind::InvalidInput.into()) } else { Ok(()) }
}

/// Returns the length of a mapping, which is never empty.
fn mapped_length(length: usize) -> usize {
    length.max(1).next_multiple_of(PAGE_SIZE)
}

/// Reserves addresses for `length` bytes, aligned to a huge page, with no memory behind them.
fn reserve(length: usize) -> io::Result<*mut u8> {
    let slack = length + Arena::HUGE_PAGE;
    // SAFETY: a new mapping at an address that the kernel chooses; the parts cut off belong to it and are
    // unused.
    unsafe {
        let start = rustix::mm::mmap_anonymous(std::ptr::null_mut(), slack, ProtFlags::empty(), flags())?;
        let start = start.cast::<u8>();
        let before = start.addr().next_multiple_of(Arena::HUGE_PAGE) - start.addr();
        let base = start.wrapping_add(before);
        if before > 0 {
            rustix::mm::munmap(start.cast(), before)?;
        }
        rustix::mm::munmap(base.wrapping_add(length).cast(), Arena::HUGE_PAGE - before)?;
        Ok(base)
    }
}
