//! Format of the log: two copies of a superblock, and slots of one entry each. See docs/internals/formats.md.

use crate::services::sealed;
use crc32c::crc32c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(super) use crate::services::sealed::BLOCK;

/// Bytes of the two copies of the superblock.
pub(super) const SUPERBLOCKS: usize = 2 * BLOCK;

/// Minimum and maximum of the data of an entry, bytes. Limits between them are multiples of the minimum.
pub(super) const LIMIT_MIN: u64 = BLOCK as u64;
pub(super) const LIMIT_MAX: u64 = sluice_uif::abi::DATA_MAX as u64 - BLOCK as u64;

/// Minimum and maximum number of slots.
pub(super) const SLOTS_MIN: u64 = 4;
pub(super) const SLOTS_MAX: u64 = 1024;

/// "sluiceAT" as bytes on the disk.
const MAGIC: u64 = u64::from_le_bytes(*b"sluiceAT");
const VERSION: u32 = 1;

/// "sluiceAE": an entry.
const ENTRY_MAGIC: u64 = u64::from_le_bytes(*b"sluiceAE");

/// Numbers from here on are of no log: a count does not come to them.
const SEQUENCE_END: u64 = 1 << 63;

/// Sequence numbers of one opening: each opening begins behind all numbers of the one before.
const RUN: u64 = 1 << 32;

/// Places of the slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Random number of the log. Entries with another number are of an earlier log.
    pub(super) id: u64,
    /// Maximum bytes of the data of an entry.
    pub(super) limit: u64,
    pub(super) slots: u32,
}

impl Geometry {
    /// Returns the geometry of a log of so many bytes. It has too few slots if the log is too small.
    pub(super) fn of(size: u64, limit: u64, id: u64) -> Self {
        let slots = size.saturating_sub(SUPERBLOCKS as u64) / (BLOCK as u64 + limit);
        Self { id, limit, slots: slots.min(SLOTS_MAX) as u32 }
    }

    /// Returns the first byte of a slot.
    pub(super) fn slot_at(&self, slot: u32) -> u64 {
        SUPERBLOCKS as u64 + u64::from(slot) * self.slot_bytes() as u64
    }

    pub(super) fn slot_bytes(&self) -> usize {
        BLOCK + self.limit as usize
    }

    /// Returns whether the log lies in so many bytes.
    pub(super) fn fits(&self, size: u64) -> bool {
        self.slot_at(self.slots) <= size
    }
}

/// Content of the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) geometry: Geometry,
    /// Sequence number before which all entries are at their places, durable. It grows with each write of
    /// the superblock.
    pub(super) watermark: u64,
    /// Number of the storage of the data; zero if it has none.
    pub(super) storage: u128,
}

pub(super) type Found = sealed::Found<Superblock>;

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSuperblock {
    magic: u64,
    version: u32,
    /// CRC-32C of the block without these four bytes.
    checksum: u32,
    id: u64,
    watermark: u64,
    limit: u64,
    slots: u32,
    reserved: u32,
    storage: [u64; 2],
}

/// Writes a superblock.
pub(super) fn write_superblock(block: &mut [u8], it: &Superblock) {
    let Superblock { geometry: Geometry { id, limit, slots }, watermark, storage } = *it;
    let storage = [storage as u64, (storage >> 64) as u64];
    let raw = RawSuperblock {
        magic: MAGIC,
        version: VERSION,
        checksum: 0,
        id,
        watermark,
        limit,
        slots,
        reserved: 0,
        storage,
    };
    block.fill(0);
    block[..size_of::<RawSuperblock>()].copy_from_slice(raw.as_bytes());
    sealed::seal(block);
}

/// Reads both copies of the superblock: the newer one counts. Returns the number of that copy, too.
pub(super) fn read_superblocks(copies: &[u8]) -> (Found, u8) {
    sealed::newer(copies, read_superblock, |superblock| superblock.watermark)
}

fn read_superblock(block: &[u8]) -> Found {
    let Ok((raw, _)) = RawSuperblock::read_from_prefix(block) else { return Found::Other };
    if block.iter().all(|byte| *byte == 0) {
        return Found::Blank;
    }
    if raw.magic == MAGIC && raw.version > VERSION {
        return Found::Later(raw.version);
    }
    let is_good = (raw.magic, raw.version) == (MAGIC, VERSION) && raw.checksum == sealed::checksum(block);
    let is_possible = (LIMIT_MIN..=LIMIT_MAX).contains(&raw.limit)
        && raw.limit.is_multiple_of(LIMIT_MIN)
        && (1..=SLOTS_MAX).contains(&u64::from(raw.slots))
        && raw.watermark < SEQUENCE_END;
    if !is_good || !is_possible {
        return Found::Other;
    }
    let [low, high] = raw.storage.map(u128::from);
    Found::Good(Superblock {
        geometry: Geometry { id: raw.id, limit: raw.limit, slots: raw.slots },
        watermark: raw.watermark,
        storage: high << 64 | low,
    })
}

/// Place of an entry's data, and its position in the order of the entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) sequence: u64,
    pub(super) slot: u32,
    /// First byte of the place, and the number of bytes.
    pub(super) offset: u64,
    pub(super) length: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: u64,
    version: u32,
    /// CRC-32C of the head's block without these four bytes.
    checksum: u32,
    /// Random number of the log.
    id: u64,
    sequence: u64,
    offset: u64,
    length: u32,
    /// CRC-32C of the data.
    data_checksum: u32,
    slot: u32,
    reserved: u32,
}

/// Writes the head of an entry in front of its data, which lies behind the first block. Bytes behind the data
/// become zeros.
pub(super) fn seal(bytes: &mut [u8], id: u64, entry: &Entry) {
    let Entry { sequence, slot, offset, length } = *entry;
    let (block, data) = bytes.split_at_mut(BLOCK);
    let (data, rest) = data.split_at_mut(length as usize);
    rest.fill(0);
    let head = Head {
        magic: ENTRY_MAGIC,
        version: VERSION,
        checksum: 0,
        id,
        sequence,
        offset,
        length,
        data_checksum: crc32c(data),
        slot,
        reserved: 0,
    };
    block.fill(0);
    block[..size_of::<Head>()].copy_from_slice(head.as_bytes());
    sealed::seal(block);
}

/// Reads the head of the entry in a slot. Returns none if there is none of this log.
pub(super) fn open(block: &[u8], geometry: &Geometry, slot: u32) -> Option<Entry> {
    head(block, geometry, slot).map(|(entry, _)| entry)
}

/// Reads an entry with its data. Returns none if it is torn.
pub(super) fn open_whole<'a>(bytes: &'a [u8], geometry: &Geometry, slot: u32) -> Option<(Entry, &'a [u8])> {
    let (entry, checksum) = head(bytes.get(..BLOCK)?, geometry, slot)?;
    let data = bytes.get(BLOCK..BLOCK + entry.length as usize)?;
    (crc32c(data) == checksum).then_some((entry, data))
}

fn head(block: &[u8], geometry: &Geometry, slot: u32) -> Option<(Entry, u32)> {
    let block = block.get(..BLOCK)?;
    let (head, _) = Head::read_from_prefix(block).ok()?;
    let is_right = (head.magic, head.version) == (ENTRY_MAGIC, VERSION)
        && (head.id, head.slot) == (geometry.id, slot)
        && head.checksum == sealed::checksum(block);
    let is_possible = head.length > 0
        && u64::from(head.length) <= geometry.limit
        && head.length.is_multiple_of(512)
        && head.sequence < SEQUENCE_END
        && head.offset.checked_add(head.length.into()).is_some();
    let Head { sequence, offset, length, data_checksum, .. } = head;
    (is_right && is_possible).then_some((Entry { sequence, slot, offset, length }, data_checksum))
}

/// Returns the first sequence number of an opening that found numbers up to `last`.
pub(super) fn next_run(last: u64) -> u64 {
    (last / RUN).saturating_add(1).saturating_mul(RUN)
}

/// Returns the bytes of an entry on the log.
pub(super) fn entry_bytes(length: u32) -> usize {
    BLOCK + (length as usize).next_multiple_of(BLOCK)
}
