//! Address layout of a program: its addresses have no meaning for the host.
//!
//! A program never sees a host address. Its pointers have a region's number in the upper half and an offset
//! in the lower: region 1 is the context, 2 the stack, the rest are the values of its maps. So a program that
//! forges, leaks or compares pointers gains nothing, and both engines compute the same numbers.

use std::ops::Range;

use crate::insn::Size;

/// Bits of an address below its region's number.
pub(crate) const REGION_SHIFT: u32 = 32;
/// Most bytes of a region: less than half of the distance of two regions, so that an offset of 31 bits in
/// either direction never leads from one into another.
pub(crate) const REGION_BYTES_MAX: usize = 1 << 31;
/// Bytes of a function's frame.
pub const FRAME_BYTES: usize = 512;
/// Frames that may be active at once.
pub const FRAMES_MAX: usize = 8;
/// Bytes of the stack.
pub(crate) const STACK_BYTES: usize = FRAME_BYTES * FRAMES_MAX;
/// First handle of maps. No region has such an address.
pub(crate) const MAP_HANDLES: u64 = 0x4d41_5000_0000_0000;

/// Part of a program's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Region {
    Context,
    Stack,
    /// Values of this map.
    Map(u32),
}

impl Region {
    /// Returns the address of the first byte.
    pub(crate) const fn base(self) -> u64 {
        let number = match self {
            Self::Context => 1,
            Self::Stack => 2,
            Self::Map(map) => 3 + map as u64,
        };
        number << REGION_SHIFT
    }

    /// Returns the region that an address names, if it can be one, and the offset in it.
    pub(crate) const fn of(address: u64) -> Option<(Self, usize)> {
        let offset = (address & (u32::MAX as u64)) as usize;
        match address >> REGION_SHIFT {
            1 => Some((Self::Context, offset)),
            2 => Some((Self::Stack, offset)),
            number @ 3..=0xffff => Some((Self::Map((number - 3) as u32), offset)),
            _ => None,
        }
    }
}

/// Returns a map's handle for a program.
pub(crate) const fn map_handle(map: u32) -> u64 {
    MAP_HANDLES | map as u64
}

/// Returns the map that a handle names, if it is one.
pub(crate) const fn map_of_handle(handle: u64) -> Option<u32> {
    if handle >> 32 == MAP_HANDLES >> 32 { Some(handle as u32) } else { None }
}

/// Context of a program: its length, and the bytes that may be read and written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContextLayout {
    size: usize,
    readable: Vec<Range<usize>>,
    writable: Vec<Range<usize>>,
}

impl ContextLayout {
    /// Creates a context of `size` bytes of which none may be accessed yet.
    ///
    /// # Panics
    /// When it is longer than a region can be.
    pub fn new(size: usize) -> Self {
        assert!(size < REGION_BYTES_MAX, "a context of {size} bytes");
        Self { size, readable: Vec::new(), writable: Vec::new() }
    }

    /// Permits to read these bytes. Ranges that touch count as one.
    #[must_use]
    pub fn read(mut self, bytes: Range<usize>) -> Self {
        self.permit(|layout| &mut layout.readable, bytes);
        self
    }

    /// Permits to read and write these bytes.
    #[must_use]
    pub fn write(self, bytes: Range<usize>) -> Self {
        let mut layout = self.read(bytes.clone());
        layout.permit(|layout| &mut layout.writable, bytes);
        layout
    }

    /// Returns the size in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the longest permitted range around these bytes, if all of them are permitted.
    pub fn window(&self, bytes: &Range<usize>, write: bool) -> Option<Range<usize>> {
        let ranges = if write { &self.writable } else { &self.readable };
        ranges.iter().find(|range| range.start <= bytes.start && bytes.end <= range.end).cloned()
    }

    /// Returns whether an access of `size` at `at` is permitted.
    pub fn permits(&self, at: usize, size: Size, write: bool) -> bool {
        at.checked_add(size.bytes() as usize).is_some_and(|end| self.window(&(at..end), write).is_some())
    }

    fn permit(&mut self, list: impl Fn(&mut Self) -> &mut Vec<Range<usize>>, mut bytes: Range<usize>) {
        bytes.end = bytes.end.min(self.size);
        if bytes.is_empty() {
            return;
        }
        let ranges = list(self);
        // Joining neighbours keeps the list short and lets an access span them.
        ranges.retain(|range| {
            let apart = range.end < bytes.start || bytes.end < range.start;
            if !apart {
                bytes = bytes.start.min(range.start)..bytes.end.max(range.end);
            }
            apart
        });
        ranges.push(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_back() {
        for region in [Region::Context, Region::Stack, Region::Map(0), Region::Map(63)] {
            assert_eq!(Region::of(region.base() + 77), Some((region, 77)));
        }
        assert_eq!(Region::of(8), None);
        assert_eq!(Region::of(u64::MAX), None);
        assert_eq!(Region::of(map_handle(0)), None);
        assert_eq!(map_of_handle(map_handle(5)), Some(5));
        assert_eq!(map_of_handle(Region::Map(5).base()), None);
    }

    #[test]
    fn touching_ranges_are_one() {
        let layout = ContextLayout::new(32).read(0..8).write(8..12).read(20..24).read(100..200);
        assert!(layout.permits(4, Size::B8, false));
        assert!(!layout.permits(4, Size::B8, true));
        assert!(layout.permits(8, Size::B4, true));
        assert!(!layout.permits(10, Size::B4, false));
        assert!(!layout.permits(28, Size::B8, false));
        assert_eq!(layout.window(&(21..22), false), Some(20..24));
    }
}
