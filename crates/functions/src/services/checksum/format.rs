//! Format of the checksums: a superblock, sectors of checksums, and the data. See docs/internals/formats.md.

use crc32c::{crc32c, crc32c_append};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a block of data, which has one checksum.
pub(super) const BLOCK: u64 = 4096;

/// Bytes in front of the sectors.
pub(super) const SUPERBLOCK: usize = 4096;

/// "sluiceCK" as bytes on the disk.
const MAGIC: u64 = u64::from_le_bytes(*b"sluiceCK");
const VERSION: u32 = 1;

/// "CkS1": sector of checksums.
const SECTOR_MAGIC: u32 = u32::from_le_bytes(*b"CkS1");

/// Bytes of a sector's head, and of an entry.
const HEAD: usize = size_of::<SectorHead>();
const ENTRY: usize = 8;

/// Bytes of a sector. It has two copies, which are written in turn, so that a torn one costs nothing.
pub(super) const SECTOR: usize = 4096;

/// Checksums in a sector.
const PER_SECTOR: u64 = ((SECTOR - HEAD) / ENTRY) as u64;

/// Place of everything on a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Number of sectors.
    pub(super) sectors: u64,
}

impl Layout {
    /// Returns the layout of a layer with so many bytes.
    pub(super) fn of(size: u64) -> Self {
        Self { sectors: size.saturating_sub(SUPERBLOCK as u64) / (PER_SECTOR * BLOCK + 2 * SECTOR as u64) }
    }

    /// Returns the bytes of the drive.
    pub(super) fn drive_bytes(&self) -> u64 {
        self.sectors.saturating_mul(PER_SECTOR * BLOCK)
    }

    /// Returns the first byte of the data.
    pub(super) fn data_at(&self) -> u64 {
        self.sector_at(self.sectors)
    }

    /// Returns the first byte of the two copies of a sector.
    pub(super) fn sector_at(&self, number: u64) -> u64 {
        SUPERBLOCK as u64 + number * 2 * SECTOR as u64
    }

    /// Returns the sector of a block, and the number of its entry there.
    pub(super) fn place(&self, block: u64) -> (u64, usize) {
        (block / PER_SECTOR, (block % PER_SECTOR) as usize)
    }

    pub(super) fn per_sector(&self) -> u64 {
        PER_SECTOR
    }
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Superblock {
    magic: u64,
    version: u32,
    /// CRC-32C of the rest of the block.
    checksum: u32,
    /// Random number that all checksums begin with.
    salt: u64,
    sectors: u64,
}

/// Content of the block that should be the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Blank,
    Good {
        salt: u64,
        layout: Layout,
    },
    /// Something else, or a later version.
    Other,
}

/// Writes the superblock.
pub(super) fn write_superblock(block: &mut [u8], salt: u64, layout: Layout) {
    block.fill(0);
    let Layout { sectors } = layout;
    let mut head = Superblock { magic: MAGIC, version: VERSION, checksum: 0, salt, sectors };
    block[..size_of::<Superblock>()].copy_from_slice(head.as_bytes());
    head.checksum = crc32c(&block[16..]);
    block[..size_of::<Superblock>()].copy_from_slice(head.as_bytes());
}

/// Reads the superblock.
pub(super) fn read_superblock(block: &[u8]) -> Found {
    let Ok((head, _)) = Superblock::read_from_prefix(block) else { return Found::Other };
    let layout = Layout { sectors: head.sectors };
    let is_good = (head.magic, head.version) == (MAGIC, VERSION) && head.checksum == crc32c(&block[16..]);
    match is_good {
        true => Found::Good { salt: head.salt, layout },
        false if block.iter().all(|byte| *byte == 0) => Found::Blank,
        false => Found::Other,
    }
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SectorHead {
    magic: u32,
    /// CRC-32C of the salt and of the rest of the sector.
    checksum: u32,
    number: u64,
    /// Number of times that the sector was written.
    sequence: u64,
}

/// Writes the head of a sector.
pub(super) fn seal(sector: &mut [u8], salt: u64, number: u64, sequence: u64) {
    let mut head = SectorHead { magic: SECTOR_MAGIC, checksum: 0, number, sequence };
    sector[..HEAD].copy_from_slice(head.as_bytes());
    head.checksum = crc32c_append(crc32c(salt.as_bytes()), &sector[8..]);
    sector[..HEAD].copy_from_slice(head.as_bytes());
}

/// Returns the later of the valid copies, with its sequence number. Copies of zeros were never written. None if
/// neither can be relied on.
pub(super) fn latest(copies: &[u8], salt: u64, number: u64) -> Option<(u64, &[u8])> {
    copies
        .chunks_exact(SECTOR)
        .filter_map(|copy| Some((sequence(copy, salt, number)?, copy)))
        .max_by_key(|it| it.0)
}

fn sequence(sector: &[u8], salt: u64, number: u64) -> Option<u64> {
    let (head, _) = SectorHead::read_from_prefix(sector).ok()?;
    let checksum = crc32c_append(crc32c(salt.as_bytes()), &sector[8..]);
    match (head.magic, head.number, head.checksum) == (SECTOR_MAGIC, number, checksum) {
        true => Some(head.sequence),
        false => sector.iter().all(|byte| *byte == 0).then_some(0),
    }
}

/// Checksums of a block: the present one, and that of the data before the last write, which may have been lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) new: u32,
    pub(super) old: u32,
}

pub(super) fn sums(sector: &[u8], entry: usize) -> Sums {
    let word = |at: usize| {
        let bytes = sector.get(at..at + 4).and_then(|bytes| bytes.first_chunk().copied());
        u32::from_le_bytes(bytes.unwrap_or_default())
    };
    let at = HEAD + entry * ENTRY;
    Sums { new: word(at), old: word(at + 4) }
}

pub(super) fn set_sums(sector: &mut [u8], entry: usize, sums: Sums) {
    let at = HEAD + entry * ENTRY;
    sector[at..at + 4].copy_from_slice(&sums.new.to_le_bytes());
    sector[at + 4..at + 8].copy_from_slice(&sums.old.to_le_bytes());
}

/// Checksum of a block of zeros.
pub(super) const ZEROS: u32 = 0;

/// Returns the checksum of a block, which depends on its place.
pub(super) fn sum(salt: u64, block: u64, data: &[u8]) -> u32 {
    if data.iter().all(|byte| *byte == 0) {
        return ZEROS;
    }
    crc32c_append(crc32c([salt, block].as_bytes()), data).max(1)
}
