//! The submission queue entry (Base 3.3.3.1).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A 64-byte submission queue entry (Base figure "Common Command Format").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct SubmissionEntry {
    pub opcode: u8,
    /// FUSE in bits 1:0, PSDT in bits 7:6.
    pub flags: u8,
    pub cid: u16,
    pub nsid: u32,
    pub cdw2: u32,
    pub cdw3: u32,
    pub mptr: u64,
    /// PRP1 and PRP2, or one SGL descriptor, depending on PSDT.
    pub dptr: [u64; 2],
    pub cdw10: u32,
    pub cdw11: u32,
    pub cdw12: u32,
    pub cdw13: u32,
    pub cdw14: u32,
    pub cdw15: u32,
}

/// Interpretation of the data pointer of an entry (Base 3.3.3.1, PSDT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataTransfer {
    Prp,
    Sgl,
    Reserved,
}

impl SubmissionEntry {
    pub const SIZE: usize = 64;

    /// Returns the entry as in memory, made of its fields in registers: a copy of a structure that was just
    /// filled in field by field has to wait until all of them have left the store buffer.
    #[inline(always)]
    pub const fn to_words(&self) -> [u64; 8] {
        const fn pair(low: u32, high: u32) -> u64 {
            (low as u64 | (high as u64) << 32).to_le()
        }
        let first = self.opcode as u32 | (self.flags as u32) << 8 | (self.cid as u32) << 16;
        [
            pair(first, self.nsid),
            pair(self.cdw2, self.cdw3),
            self.mptr,
            self.dptr[0],
            self.dptr[1],
            pair(self.cdw10, self.cdw11),
            pair(self.cdw12, self.cdw13),
            pair(self.cdw14, self.cdw15),
        ]
    }

    /// Returns the fused operation field; zero is a normal command.
    #[inline]
    pub fn fuse(&self) -> u8 {
        self.flags & 0b11
    }

    #[inline]
    pub fn data_transfer(&self) -> DataTransfer {
        match self.flags >> 6 {
            0 => DataTransfer::Prp,
            1 | 2 => DataTransfer::Sgl,
            _ => DataTransfer::Reserved,
        }
    }

    /// Returns the starting LBA of a Read, Write, Compare, Write Zeroes or Verify (NVM Command Set 3.2).
    #[inline]
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw10) | u64::from(self.cdw11) << 32
    }

    /// Returns the number of logical blocks, one-based: 1 to 65,536 (NLB is 0's-based on the wire).
    #[inline]
    pub fn blocks(&self) -> u32 {
        (self.cdw12 & 0xffff) + 1
    }

    /// Returns Force Unit Access, CDW12 bit 30.
    #[inline]
    pub fn fua(&self) -> bool {
        self.cdw12 & 1 << 30 != 0
    }

    /// Returns the Deallocate bit of Write Zeroes, CDW12 bit 25.
    #[inline]
    pub fn deac(&self) -> bool {
        self.cdw12 & 1 << 25 != 0
    }
}

const _: () = assert!(size_of::<SubmissionEntry>() == SubmissionEntry::SIZE);
