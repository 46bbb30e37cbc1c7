//! Memory of the target itself that its device reads or writes.

use sluice_memory::{Segment, SegmentList, SharedRegion, TooManySegments};
use std::io;

/// Bytes of zeros, and of memory for discarded data.
const SPAN: usize = 64 << 10;
/// Bytes of one range of Dataset Management (NVM Command Set 3.2.3).
const RANGE: usize = 16;
/// Bytes between two ranges: some devices read as much, independent of the number of ranges.
const STRIDE: usize = 4096;

/// Zeros to be written, scrap memory in place of bit buckets, and a range to deallocate for each command in
/// flight.
#[derive(Debug)]
pub(super) struct Memory(SharedRegion);

impl Memory {
    pub(super) fn new(commands: usize) -> io::Result<Self> {
        SharedRegion::new("sluice-ng", 2 * SPAN + commands * STRIDE).map(Self)
    }

    /// Writes the range of the command with this number, and returns its segment.
    pub(super) fn deallocate(&self, number: u16, range: &[u8; RANGE]) -> Segment {
        let offset = 2 * SPAN + usize::from(number) * STRIDE;
        self.0.write(offset, range);
        self.0.segment(offset, RANGE as u32)
    }

    /// Appends `bytes` of zeros.
    pub(super) fn zeros(&self, bytes: u64, out: &mut SegmentList) -> Result<(), TooManySegments> {
        self.repeat(0, bytes, out)
    }

    /// Appends `data` with scrap memory in place of bit buckets.
    pub(super) fn without_buckets(
        &self,
        data: &SegmentList,
        out: &mut SegmentList,
    ) -> Result<(), TooManySegments> {
        data.as_slice().iter().try_for_each(|segment| match segment.is_bit_bucket() {
            true => self.repeat(SPAN, segment.len().into(), out),
            false => out.push(segment.slice(0, segment.len())),
        })
    }

    fn repeat(&self, offset: usize, bytes: u64, out: &mut SegmentList) -> Result<(), TooManySegments> {
        let mut left = bytes;
        while left > 0 {
            let part = left.min(SPAN as u64);
            out.push(self.0.segment(offset, part as u32))?;
            left -= part;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_become_memory_and_the_rest_stays() {
        let memory = Memory::new(4).expect("memory");
        let data = SharedRegion::new("data", 4096).expect("memory");
        let (mut list, mut out) = (SegmentList::new(), SegmentList::new());
        list.push(data.segment(0, 512)).expect("room");
        list.push(Segment::bit_bucket(3 * SPAN as u32 / 2)).expect("room");
        list.push(data.segment(1024, 512)).expect("room");
        memory.without_buckets(&list, &mut out).expect("room");
        assert_eq!(out.len_bytes(), list.len_bytes());
        assert!(!out.has_bit_bucket());
        let (first, last) = (&out.as_slice()[0], &out.as_slice()[3]);
        assert_eq!(
            (first.pointer(), last.pointer()),
            (data.segment(0, 1).pointer(), data.segment(1024, 1).pointer())
        );
    }

    #[test]
    fn zeros_are_zeros_whatever_a_bucket_swallowed() {
        let memory = Memory::new(1).expect("memory");
        let mut out = SegmentList::new();
        let mut bucket = SegmentList::new();
        bucket.push(Segment::bit_bucket(100)).expect("room");
        memory.without_buckets(&bucket, &mut out).expect("room");
        out.fill(0, 100, 7);
        out.clear();
        memory.zeros(2 * SPAN as u64 + 512, &mut out).expect("room");
        let mut bytes = vec![1; 2 * SPAN + 512];
        assert_eq!(out.copy_to(0, &mut bytes), bytes.len());
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
