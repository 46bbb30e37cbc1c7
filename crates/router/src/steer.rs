//! Translation of a program's steering to the request of a leg.

use crate::context::{FactWords, Facts, Steering};
use crate::errors::ProgramError;
use crate::flight::Chunk;
use sluice_command::Request;
use sluice_nvme::{SubmissionEntry, opcode};

/// A namespace as its host sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    /// Binary logarithm of the bytes of a logical block.
    block_shift: u32,
    pub(crate) nsid: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// Bytes that the largest path reaches.
    pub(crate) reach: u64,
    /// Facts of the namespace for a program, derived from the other fields.
    pub(crate) facts: FactWords,
}

/// Request and route of the legs of one verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Aim {
    pub(crate) request: Request,
    /// Part of the command that the request covers.
    pub(crate) chunk: Chunk,
    pub(crate) target: u8,
    pub(crate) hints: u32,
    /// The program requested a change that is not allowed, and was dropped.
    pub(crate) overreached: bool,
}

impl Format {
    /// Creates the format of a namespace without a size.
    pub(crate) fn new(nsid: u32, block_size: u32) -> Self {
        let block_shift = block_size.trailing_zeros();
        Self { block_shift, nsid, size: 0, reach: 0, facts: Facts::of_namespace(nsid, block_size, 0) }
    }

    /// Returns the same with other bytes of the namespace, and of the largest path.
    pub(crate) fn with_size(self, size: u64, reach: u64) -> Self {
        let facts = Facts::of_namespace(self.nsid, 1 << self.block_shift, size >> self.block_shift);
        Self { size, reach, facts, ..self }
    }

    /// Returns a Flush as a host would send it.
    #[cold]
    pub(crate) fn flush(&self) -> SubmissionEntry {
        SubmissionEntry { opcode: opcode::io::FLUSH, nsid: self.nsid, ..SubmissionEntry::default() }
    }

    /// Returns the context's steering before the program runs.
    #[inline]
    pub(crate) fn steering(&self, request: &Request) -> Steering {
        // A range of a Dataset Management is the largest: its count has 32 bits.
        let blocks = u32::try_from(request.length >> self.block_shift).unwrap_or(u32::MAX);
        Steering::of_command(request.offset >> self.block_shift, blocks, request.fua)
    }

    /// Returns the offset and the Force Unit Access of a leg that is all of its command, at an address that
    /// some path reaches. None for every other steering.
    #[inline]
    pub(crate) fn moved(&self, request: &Request, steering: &Steering) -> Option<(u64, bool)> {
        let original = self.steering(request);
        let is_all = steering.blocks == original.blocks && steering.skip == 0 && steering.fua >= original.fua;
        let stays = steering.slba == original.slba;
        if !is_all || !stays && original.blocks == 0 {
            return None;
        }
        let offset = if stays { request.offset } else { steering.slba.checked_mul(1 << self.block_shift)? };
        let end = offset.checked_add(request.length)?;
        (end <= self.reach).then_some((offset, steering.fua != 0))
    }

    /// Returns the request of the legs for a program's `steering`. Addresses are not checked here: each leg's
    /// path has bounds of its own.
    #[inline]
    pub(crate) fn aim(&self, request: &Request, steering: &Steering) -> Result<Aim, ProgramError> {
        let original = self.steering(request);
        let mut aim = Aim {
            request: *request,
            chunk: Chunk { skip: 0, length: request.length },
            target: steering.target,
            hints: steering.hints,
            overreached: original.fua > steering.fua,
        };
        aim.request.fua |= steering.fua != 0;
        let range = |steering: &Steering| (steering.slba, steering.blocks, steering.skip);
        if range(steering) != range(&original) {
            self.aim_elsewhere(&mut aim, &original, steering)?;
        }
        Ok(aim)
    }

    #[cold]
    fn aim_elsewhere(
        &self,
        aim: &mut Aim,
        original: &Steering,
        steering: &Steering,
    ) -> Result<(), ProgramError> {
        if original.blocks == 0 {
            // There is no range to move.
            aim.overreached = true;
            return Ok(());
        }
        if steering.skip >= original.blocks {
            return Err(ProgramError::SkipsTooMuch);
        }
        let left = original.blocks - steering.skip;
        let blocks = if steering.blocks == 0 { left } else { steering.blocks.min(left) };
        let bytes = |blocks: u32| u64::from(blocks) << self.block_shift;
        aim.chunk = Chunk { skip: bytes(steering.skip), length: bytes(blocks) };
        aim.request.length = aim.chunk.length;
        // An address beyond 64 bits is beyond every namespace too.
        aim.request.offset = steering.slba.saturating_mul(1 << self.block_shift);
        aim.overreached |= steering.blocks == 0 || steering.blocks > original.blocks;
        aim.overreached |= aim.request.end() > self.reach;
        Ok(())
    }
}
