//! The format of the log: little-endian, in blocks. See docs/internals/formats.md.

use crc32c::{crc32c, crc32c_append};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a block in bytes, the unit in which the log is read and written.
pub const BLOCK: usize = sluice_metadata::engine::BLOCK;

/// Version of the format. Version 1 had no storage numbers in its state.
pub(crate) const VERSION: u32 = 2;
const VERSION_MIN: u32 = 1;

/// Magic numbers of the headers and records of a kind of log, and its highest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Magic {
    header: u64,
    record: u64,
    version_max: u32,
}

impl Magic {
    /// Log of a set of equal members: "sluiceML" and "sluiceMR" as bytes on the disk.
    pub(crate) const MIRROR: Self = Self::of(b"sluiceML", b"sluiceMR", VERSION);

    pub(crate) const fn of(header: &[u8; 8], record: &[u8; 8], version_max: u32) -> Self {
        Self { header: u64::from_le_bytes(*header), record: u64::from_le_bytes(*record), version_max }
    }
}

/// First bytes of a header and of a block of records. All of it is in the first sector of the block, and the
/// rest of a header block is zeros. So a header that was torn by a power cut is recognized as ours or is
/// blank.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Head {
    magic: u64,
    version: u32,
    /// CRC-32C of the block, without these four bytes.
    checksum: u32,
    /// Identifier of the log.
    pub(super) id: u64,
    /// Number of the checkpoint.
    pub(super) epoch: u64,
    /// Number of a record within its half, from 0.
    pub(super) number: u32,
    /// Size in bytes of the record, or of the state in the blocks that follow.
    pub(super) length: u32,
    /// CRC-32C of the state, in a header.
    pub(super) state_checksum: u32,
    reserved: u32,
}

/// Capacity of a record in bytes.
pub(crate) const RECORD_BYTES: usize = BLOCK - size_of::<Head>();

/// Content of a block that should be a header.
#[derive(Clone, Copy, Debug)]
pub(super) enum Header {
    Valid(Head),
    /// Zeros only.
    Blank,
    /// Header of a log whose checksum is wrong: damaged or torn.
    Broken,
    /// Header of a version that this program does not support.
    Version(u32),
    Foreign,
}

impl Head {
    pub(super) fn header(magic: Magic, version: u32, id: u64, epoch: u64, state: &[u8]) -> Self {
        let (length, state_checksum) = (state.len() as u32, crc32c(state));
        Self { magic: magic.header, version, id, epoch, length, state_checksum, ..Self::default() }
    }

    pub(super) fn record(
        magic: Magic,
        version: u32,
        id: u64,
        epoch: u64,
        number: u32,
        length: usize,
    ) -> Self {
        let length = length as u32;
        Self { magic: magic.record, version, id, epoch, number, length, ..Self::default() }
    }

    /// Writes this head into the block, with the checksum of the whole block.
    pub(super) fn seal(mut self, block: &mut [u8]) {
        block[..size_of::<Self>()].copy_from_slice(self.as_bytes());
        self.checksum = checksum(block);
        block[..size_of::<Self>()].copy_from_slice(self.as_bytes());
    }

    /// Returns the header in a block.
    pub(super) fn read_header(magic: Magic, block: &[u8]) -> Header {
        let Some(head) = Self::read(block) else { return Header::Foreign };
        match (head.magic == magic.header, head.version) {
            (true, version) if version > magic.version_max => Header::Version(version),
            (true, VERSION_MIN..) if head.checksum == checksum(block) => Header::Valid(head),
            (true, _) => Header::Broken,
            _ if block.iter().all(|byte| *byte == 0) => Header::Blank,
            _ => Header::Foreign,
        }
    }

    /// Returns the record in a block, if it is number `number` of the half with this header.
    pub(super) fn read_record<'a>(&self, magic: Magic, number: u32, block: &'a [u8]) -> Option<&'a [u8]> {
        let head = Self::read(block)?;
        let next = head.magic == magic.record
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

/// Recomputes the checksums of a half, for any content.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn sign(half: &mut [u8]) {
    let (first, rest) = half.split_at_mut(BLOCK);
    if let Some(mut head) = Head::read(first).filter(|head| head.magic == Magic::MIRROR.header) {
        head.state_checksum = crc32c(rest.get(..head.length as usize).unwrap_or_default());
        head.seal(first);
    }
    for block in rest.chunks_exact_mut(BLOCK) {
        if let Some(head) = Head::read(block).filter(|head| head.magic == Magic::MIRROR.record) {
            head.seal(block);
        }
    }
}

fn checksum(block: &[u8]) -> u32 {
    crc32c_append(crc32c(&block[..12]), &block[16..])
}
