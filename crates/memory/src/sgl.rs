//! Scatter gather lists (Base 2.0, 4.1.2).

use crate::list::{SegmentList, TooManySegments};
use crate::region::Access;
use crate::segment::Segment;
use crate::space::Space;
use sluice_nvme::{SglDescriptor, SglType, Status};
use zerocopy::{FromZeros, IntoBytes};

/// Descriptors that are read for one command, those of the chain included. A list that loops ends here.
pub const MAX_SGL_DESCRIPTORS: usize = 1024;

/// SGL segments that are followed for one command.
pub const MAX_SGL_SEGMENTS: usize = 64;

/// Descriptors copied at once.
const BATCH: usize = 16;

/// Appends the memory of a transfer of `length` bytes to `out`. The SGL may describe more; the rest is then
/// not read (Identify Controller: SGLS bit 18).
///
/// # Errors
/// - SGL_TYPE_INVALID: a type or sub type that is not supported;
/// - INVALID_SGL_SEGMENT: a segment descriptor whose length is 0 or no multiple of 16, or whose
///   address is not a multiple of 8; a last segment that ends with one;
/// - INVALID_SGL_COUNT: a segment descriptor that is not the last of its segment; more than
///   [`MAX_SGL_DESCRIPTORS`], [`MAX_SGL_SEGMENTS`] or [`MAX_SEGMENTS`](crate::MAX_SEGMENTS);
/// - SGL_DATA_LENGTH_INVALID: the SGL describes fewer than `length` bytes;
/// - DATA_TRANSFER_ERROR: there is no memory at an address.
///
/// `out` then holds the memory before.
#[inline]
pub fn walk_sgl(
    space: &Space,
    dptr: [u64; 2],
    length: u32,
    access: Access,
    out: &mut SegmentList,
) -> Result<(), Status> {
    let descriptor = SglDescriptor::from_dptr(dptr);
    let mut walk = Walk { space, access, out, rest: length, descriptors: 0 };
    match descriptor.kind() {
        SglType::SEGMENT | SglType::LAST_SEGMENT => walk.follow(descriptor),
        _ => {
            walk.data(&descriptor)?;
            walk.finish()
        }
    }
}

struct Walk<'a> {
    space: &'a Space,
    access: Access,
    out: &'a mut SegmentList,
    /// Bytes of the transfer that are not described yet.
    rest: u32,
    /// Descriptors read so far.
    descriptors: usize,
}

impl Walk<'_> {
    /// Walks the chain of segments that begins with `next`.
    fn follow(&mut self, mut next: SglDescriptor) -> Result<(), Status> {
        for _ in 0..MAX_SGL_SEGMENTS {
            match self.segment(&next)? {
                Some(_) if next.kind() == SglType::LAST_SEGMENT => return Err(Status::INVALID_SGL_SEGMENT),
                Some(following) => next = following,
                None => return self.finish(),
            }
        }
        Err(Status::INVALID_SGL_COUNT)
    }

    /// Walks the segment that `pointer` describes. Returns the descriptor of the next, if there is one and it
    /// is needed.
    fn segment(&mut self, pointer: &SglDescriptor) -> Result<Option<SglDescriptor>, Status> {
        check_segment(pointer)?;
        let mut address = pointer.address;
        let mut left = pointer.length as usize / SglDescriptor::SIZE;
        let mut batch = [SglDescriptor::new_zeroed(); BATCH];
        while left > 0 && self.rest > 0 {
            let count = left.min(BATCH);
            self.descriptors += count;
            if self.descriptors > MAX_SGL_DESCRIPTORS {
                return Err(Status::INVALID_SGL_COUNT);
            }
            let batch = &mut batch[..count];
            self.space.read(address, batch.as_mut_bytes())?;
            left -= count;
            for (n, descriptor) in batch.iter().enumerate() {
                if self.rest == 0 {
                    return Ok(None);
                }
                match descriptor.kind() {
                    SglType::SEGMENT | SglType::LAST_SEGMENT if left == 0 && n + 1 == count => {
                        return Ok(Some(*descriptor));
                    }
                    SglType::SEGMENT | SglType::LAST_SEGMENT => return Err(Status::INVALID_SGL_COUNT),
                    _ => self.data(descriptor)?,
                }
            }
            // A segment may end with the address space; it does not continue at its beginning.
            match address.checked_add((count * SglDescriptor::SIZE) as u64) {
                Some(next) => address = next,
                None if left > 0 && self.rest > 0 => return Err(Status::DATA_TRANSFER_ERROR),
                None => {}
            }
        }
        Ok(None)
    }

    /// Appends the memory of a data block or bit bucket, as much as is needed.
    #[inline]
    fn data(&mut self, descriptor: &SglDescriptor) -> Result<(), Status> {
        // Sub type 0 is an address; offsets are for capsules (4.1.2).
        if descriptor.sub_type() != 0 {
            return Err(Status::SGL_TYPE_INVALID);
        }
        let taken = descriptor.length.min(self.rest);
        let pushed = match descriptor.kind() {
            SglType::DATA_BLOCK => self.space.translate(descriptor.address, taken, self.access, self.out),
            // In a source buffer a bit bucket has no data, and its length is ignored.
            SglType::BIT_BUCKET if self.access == Access::Read => return Ok(()),
            SglType::BIT_BUCKET => self.out.push(Segment::bit_bucket(taken)).map_err(Status::from),
            _ => return Err(Status::SGL_TYPE_INVALID),
        };
        // Too many segments are too many descriptors here.
        pushed.map_err(
            |status| if status == TooManySegments.into() { Status::INVALID_SGL_COUNT } else { status },
        )?;
        self.rest -= taken;
        Ok(())
    }

    fn finish(&self) -> Result<(), Status> {
        if self.rest == 0 { Ok(()) } else { Err(Status::SGL_DATA_LENGTH_INVALID) }
    }
}

fn check_segment(pointer: &SglDescriptor) -> Result<(), Status> {
    if pointer.sub_type() != 0 {
        return Err(Status::SGL_TYPE_INVALID);
    }
    let whole = pointer.length != 0 && (pointer.length as usize).is_multiple_of(SglDescriptor::SIZE);
    if whole && pointer.address.is_multiple_of(8) { Ok(()) } else { Err(Status::INVALID_SGL_SEGMENT) }
}
