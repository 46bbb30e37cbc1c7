//! What stands in the log: little-endian, in blocks. See docs/formats.md.

use crc32c::{crc32c, crc32c_append};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a block, the unit in which the log is read and written.
pub const BLOCK: usize = 4096;

/// Of what stands in the log. Version 1 had no numbers of storage in its state.
const VERSION: u32 = 2;
const VERSION_MIN: u32 = 1;

/// "sluiceML", as bytes on the disk.
const HEADER: u64 = u64::from_le_bytes(*b"sluiceML");

/// "sluiceMR", as bytes on the disk.
const RECORD: u64 = u64::from_le_bytes(*b"sluiceMR");

/// What a block of records and a header begin with. All of it is in the first sector of the block, whose
/// rest is zeros in a header: so one that was torn by a power cut is ours or is blank.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Head {
    magic: u64,
    version: u32,
    /// CRC-32C of the block, without these four bytes.
    checksum: u32,
    /// Which log this is.
    pub(super) id: u64,
    /// Counts checkpoints.
    pub(super) epoch: u64,
    /// Of a record: which of its half, from 0.
    pub(super) number: u32,
    /// Bytes of the record, or of the state in the blocks that follow.
    pub(super) length: u32,
    /// Of the state.
    pub(super) state_checksum: u32,
    reserved: u32,
}

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = BLOCK - size_of::<Head>();

/// What a block is that should be a header.
#[derive(Clone, Copy, Debug)]
pub(super) enum Header {
    Valid(Head),
    /// Zeros.
    Blank,
    /// Once ours, or torn.
    Broken,
    /// Of a version that we do not know.
    Version(u32),
    Foreign,
}

impl Head {
    pub(super) fn header(id: u64, epoch: u64, state: &[u8]) -> Self {
        let (length, state_checksum) = (state.len() as u32, crc32c(state));
        Self { magic: HEADER, version: VERSION, id, epoch, length, state_checksum, ..Self::default() }
    }

    pub(super) fn record(id: u64, epoch: u64, number: u32, length: usize) -> Self {
        let length = length as u32;
        Self { magic: RECORD, version: VERSION, id, epoch, number, length, ..Self::default() }
    }

    /// Puts this before what is in the block, and the checksum of all of it.
    pub(super) fn seal(mut self, block: &mut [u8]) {
        block[..size_of::<Self>()].copy_from_slice(self.as_bytes());
        self.checksum = checksum(block);
        block[..size_of::<Self>()].copy_from_slice(self.as_bytes());
    }

    /// The header in a block.
    pub(super) fn read_header(block: &[u8]) -> Header {
        let Some(head) = Self::read(block) else { return Header::Foreign };
        match (head.magic, head.version) {
            (HEADER, VERSION_MIN..=VERSION) if head.checksum == checksum(block) => Header::Valid(head),
            (HEADER, 0..=VERSION) => Header::Broken,
            (HEADER, version) => Header::Version(version),
            _ if block.iter().all(|byte| *byte == 0) => Header::Blank,
            _ => Header::Foreign,
        }
    }

    /// The record in a block, if it is number `number` of the half with this header.
    pub(super) fn read_record<'a>(&self, number: u32, block: &'a [u8]) -> Option<&'a [u8]> {
        let head = Self::read(block)?;
        let next = head.magic == RECORD
            && head.version == self.version
            && (head.id, head.epoch, head.number) == (self.id, self.epoch, number)
            && head.checksum == checksum(block);
        block[size_of::<Self>()..].get(..head.length as usize).filter(|_| next)
    }

    pub(super) fn is_of(&self, state: &[u8]) -> bool {
        crc32c(state) == self.state_checksum
    }

    fn read(block: &[u8]) -> Option<Self> {
        (block.len() == BLOCK).then(|| Self::read_from_prefix(block).ok())?.map(|(head, _)| head)
    }
}

/// Makes the checksums of a half right, whatever it holds.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn sign(half: &mut [u8]) {
    let (first, rest) = half.split_at_mut(BLOCK);
    if let Some(mut head) = Head::read(first).filter(|head| head.magic == HEADER) {
        head.state_checksum = crc32c(rest.get(..head.length as usize).unwrap_or_default());
        head.seal(first);
    }
    for block in rest.chunks_exact_mut(BLOCK) {
        if let Some(head) = Head::read(block).filter(|head| head.magic == RECORD) {
            head.seal(block);
        }
    }
}

fn checksum(block: &[u8]) -> u32 {
    crc32c_append(crc32c(&block[..12]), &block[16..])
}
