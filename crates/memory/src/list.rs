//! The data of one command: segments in order.

use crate::segment::Segment;
use sluice_nvme::Status;
use std::fmt;
use zerocopy::FromZeros;

/// The most segments one command may have: 1 MiB of scattered 4 KiB pages with an offset is 257, and
/// a host that builds SGLs rarely goes beyond 128 descriptors.
pub const MAX_SEGMENTS: usize = 512;

/// Segments that fit without memory of their own: a page, or a page that straddles two.
const INLINE: usize = 2;

/// Error: the data of one command has more than [`MAX_SEGMENTS`] segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySegments;

impl fmt::Display for TooManySegments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {MAX_SEGMENTS} segments in one command")
    }
}

impl std::error::Error for TooManySegments {}

/// Status of a command whose length was checked before: a limit of this process, no error of the host.
impl From<TooManySegments> for Status {
    fn from(_: TooManySegments) -> Status {
        Status::INTERNAL_ERROR
    }
}

/// The data of one command, in order, adjacent segments merged.
///
/// The first two segments are in the list itself. Further ones go to memory for the maximum number, which is
/// allocated for the first command in this slot that needs it, and then kept: there is no allocation per
/// command. A list of zeros is an empty one, so that a table of lists costs nothing until they are used.
#[derive(FromZeros)]
pub struct SegmentList {
    inline: [Segment; INLINE],
    count: usize,
    bytes: usize,
    /// All segments, when there are more than fit inline; otherwise stale.
    spilled: Option<Box<[Segment; MAX_SEGMENTS]>>,
}

impl SegmentList {
    pub const fn new() -> Self {
        SegmentList { inline: [Segment::EMPTY; INLINE], count: 0, bytes: 0, spilled: None }
    }

    /// Empties the list; keeps its memory.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
        self.bytes = 0;
    }

    /// Appends a segment, merging it with the last one if `segment` begins where that ends. An empty segment
    /// leaves no trace.
    #[inline(always)]
    pub fn push(&mut self, segment: Segment) -> Result<(), TooManySegments> {
        if self.count > 0 || segment.is_empty() {
            return self.push_further(segment);
        }
        self.inline[0] = segment;
        self.count = 1;
        self.bytes = segment.len() as usize;
        Ok(())
    }

    /// Appends a segment to a list that is not empty, or an empty segment.
    #[inline(never)]
    fn push_further(&mut self, segment: Segment) -> Result<(), TooManySegments> {
        if segment.is_empty() {
            return Ok(());
        }
        if !self.last_mut().merge(segment) {
            self.append(segment)?;
        }
        self.bytes += segment.len() as usize;
        Ok(())
    }

    /// Returns the bytes of all segments together, bit buckets included.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of segments.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub fn as_slice(&self) -> &[Segment] {
        if self.count <= INLINE {
            return &self.inline[..self.count];
        }
        self.spilled.as_ref().map_or(&[], |spilled| &spilled[..self.count])
    }

    /// Returns the segments as `iovec`s. A bit bucket is a null pointer in it: see
    /// [`has_bit_bucket`](Self::has_bit_bucket).
    pub fn as_iovecs(&self) -> &[libc::iovec] {
        let segments = self.as_slice();
        // SAFETY: a segment is laid out as an `iovec` (asserted below), both are plain data, and the
        // slice lives as long as the list is borrowed.
        unsafe { std::slice::from_raw_parts(segments.as_ptr().cast(), segments.len()) }
    }

    pub fn has_bit_bucket(&self) -> bool {
        self.as_slice().iter().any(Segment::is_bit_bucket)
    }

    /// Returns whether every segment is aligned, in address and length, and none is a bit bucket.
    #[inline]
    pub fn is_aligned(&self, alignment: usize) -> bool {
        self.as_slice().iter().all(|segment| segment.is_aligned(alignment))
    }

    /// Copies `source` into the segments from byte `offset` of the list on. Returns the bytes moved: fewer
    /// than requested if the list ends before. Bytes for bit buckets are dropped.
    #[inline]
    pub fn copy_from(&self, offset: usize, source: &[u8]) -> usize {
        let mut moved = 0;
        for chunk in self.chunks(offset, source.len()) {
            let next = moved + chunk.len() as usize;
            chunk.write(&source[moved..next]);
            moved = next;
        }
        moved
    }

    /// Copies the bytes of the list from `offset` on into `destination`. Returns the bytes moved: fewer than
    /// requested if the list ends before. Bit buckets read as zeros.
    #[inline]
    pub fn copy_to(&self, offset: usize, destination: &mut [u8]) -> usize {
        let mut moved = 0;
        for chunk in self.chunks(offset, destination.len()) {
            let next = moved + chunk.len() as usize;
            chunk.read(&mut destination[moved..next]);
            moved = next;
        }
        moved
    }

    /// Sets `length` bytes from `offset` on, or up to the end of the list if that comes first.
    #[inline]
    pub fn fill(&self, offset: usize, length: usize, byte: u8) {
        self.chunks(offset, length).for_each(|chunk| chunk.fill(byte));
    }

    /// Makes `out` the `length` bytes of this list from `offset` on.
    pub fn slice(&self, offset: usize, length: usize, out: &mut SegmentList) -> Result<(), OutOfRange> {
        out.clear();
        if offset.checked_add(length).is_none_or(|end| end > self.bytes) {
            return Err(OutOfRange);
        }
        self.chunks(offset, length).try_for_each(|chunk| out.push(chunk)).map_err(|_| OutOfRange)
    }

    /// Returns the parts of the segments that cover `length` bytes from `offset` on, as far as they go.
    #[inline]
    pub(crate) fn chunks(&self, offset: usize, length: usize) -> Chunks<'_> {
        Chunks { rest: self.as_slice().iter(), skip: offset, left: length }
    }

    #[inline]
    fn last_mut(&mut self) -> &mut Segment {
        let last = self.count - 1;
        match &mut self.spilled {
            Some(spilled) if self.count > INLINE => &mut spilled[last],
            _ => &mut self.inline[last],
        }
    }

    #[inline]
    fn append(&mut self, segment: Segment) -> Result<(), TooManySegments> {
        if self.count < INLINE {
            self.inline[self.count] = segment;
        } else if self.count == MAX_SEGMENTS {
            return Err(TooManySegments);
        } else {
            let spilled = self.spilled.get_or_insert_with(|| Box::new([Segment::EMPTY; MAX_SEGMENTS]));
            if self.count == INLINE {
                spilled[..INLINE].copy_from_slice(&self.inline);
            }
            spilled[self.count] = segment;
        }
        self.count += 1;
        Ok(())
    }
}

/// Iterator of [`SegmentList::chunks`].
pub(crate) struct Chunks<'a> {
    rest: std::slice::Iter<'a, Segment>,
    skip: usize,
    left: usize,
}

impl Iterator for Chunks<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        while self.left > 0 {
            let segment = self.rest.next()?;
            let length = segment.len() as usize;
            if self.skip >= length {
                self.skip -= length;
                continue;
            }
            let taken = (length - self.skip).min(self.left);
            let chunk = segment.slice(self.skip as u32, taken as u32);
            self.left -= taken;
            self.skip = 0;
            return Some(chunk);
        }
        None
    }
}

const _: () = {
    assert!(size_of::<Segment>() == size_of::<libc::iovec>());
    assert!(std::mem::offset_of!(libc::iovec, iov_base) == 0);
    assert!(std::mem::offset_of!(libc::iovec, iov_len) == 8);
};

impl Default for SegmentList {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SegmentList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// Error: an offset and a length that do not lie inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("offset and length do not lie inside")
    }
}

impl std::error::Error for OutOfRange {}
