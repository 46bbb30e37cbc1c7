//! Format of the cache's device: two copies of a superblock, a table of the dirty sectors of each slot, and the
//! slots. See docs/internals/formats.md.

use crate::services::sealed;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(super) use crate::services::sealed::BLOCK;

/// Bytes of the two copies of the superblock.
pub(super) const SUPERBLOCKS: usize = 2 * BLOCK;

/// Bytes of a sector, the unit of valid and dirty data.
pub(super) const SECTOR: u64 = 512;

/// Slots in a block of the table.
pub(super) const SLOTS_OF_BLOCK: u32 = 126;

/// Bytes of the two copies of a block of the table.
pub(super) const PAIR: usize = 2 * BLOCK;

/// Minimum and maximum bytes of a line.
pub(super) const LINE_MIN: u64 = 16 << 10;
pub(super) const LINE_MAX: u64 = 64 << 10;

/// Minimum and maximum number of slots.
pub(super) const SLOTS_MIN: u64 = 8;
pub(super) const SLOTS_MAX: u64 = 1 << 26;

/// Maximum bytes of the drive. The set of its dirty lines takes a bit for each line.
pub(super) const DRIVE_MAX: u64 = 64 << 40;

/// "sluiceLC" as bytes on the disk, and "sluiceLT" of a block of the table.
const MAGIC: u64 = u64::from_le_bytes(*b"sluiceLC");
const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"sluiceLT");
const VERSION: u32 = 1;

/// Lowest count that no cache reaches. A block with such a count is damaged.
const COUNT_END: u64 = 1 << 63;

/// Line of a slot that has none.
pub(super) const NO_LINE: u64 = u64::MAX;

/// Places of the table and the slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Random number of the cache. Blocks of the table with another number are of an earlier cache.
    pub(super) id: u64,
    /// Bytes of a line, a power of two.
    pub(super) line: u64,
    pub(super) slots: u32,
}

impl Geometry {
    /// Returns the geometry of a cache of so many bytes. It has too few slots if the device is too small.
    pub(super) fn of(size: u64, line: u64, id: u64) -> Self {
        let room = size.saturating_sub(SUPERBLOCKS as u64 + line);
        // A slot takes its line, and its part of two copies of a block of the table.
        let group = u64::from(SLOTS_OF_BLOCK) * line + PAIR as u64;
        let rest = (room % group).saturating_sub(PAIR as u64) / line;
        let slots = room / group * u64::from(SLOTS_OF_BLOCK) + rest;
        Self { id, line, slots: slots.min(SLOTS_MAX) as u32 }
    }

    /// Returns the number of blocks of the table.
    pub(super) fn blocks(&self) -> u32 {
        self.slots.div_ceil(SLOTS_OF_BLOCK)
    }

    /// Returns the first byte of a copy of a block of the table.
    pub(super) fn block_at(&self, block: u32, copy: u8) -> u64 {
        SUPERBLOCKS as u64 + u64::from(block) * PAIR as u64 + u64::from(copy) * BLOCK as u64
    }

    /// Returns the first byte of a slot. Slots begin at a multiple of a line.
    pub(super) fn slot_at(&self, slot: u32) -> u64 {
        let table = self.block_at(self.blocks(), 0);
        table.next_multiple_of(self.line.max(1)) + u64::from(slot) * self.line
    }

    /// Returns the bytes that the whole cache takes.
    pub(super) fn end(&self) -> u64 {
        self.slot_at(self.slots)
    }

    /// Returns the slots of a block of the table.
    pub(super) fn slots_of(&self, block: u32) -> std::ops::Range<u32> {
        let first = block * SLOTS_OF_BLOCK;
        first..(first + SLOTS_OF_BLOCK).min(self.slots)
    }
}

/// Returns the mask of the sectors of these bytes of a line.
pub(super) fn mask(from: u64, to: u64) -> u128 {
    let up_to = |sectors: u64| if sectors >= 128 { u128::MAX } else { (1 << sectors) - 1 };
    up_to(to.div_ceil(SECTOR)) & !up_to(from / SECTOR)
}

/// Returns whether the sectors of a mask are whole blocks of so many bytes.
pub(super) fn is_whole(mask: u128, block_size: u64) -> bool {
    block_size <= SECTOR
        || runs(mask).all(|run| run.start.is_multiple_of(block_size) && run.end.is_multiple_of(block_size))
}

/// Returns the runs of sectors in a mask, as bytes of the line.
pub(super) fn runs(mut mask: u128) -> impl Iterator<Item = std::ops::Range<u64>> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let first = mask.trailing_zeros();
        let length = (mask >> first).trailing_ones();
        let end = first + length;
        mask = if end >= 128 { 0 } else { mask >> end << end };
        Some(u64::from(first) * SECTOR..u64::from(end) * SECTOR)
    })
}

/// Content of the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) geometry: Geometry,
    /// Count of the writes of the superblock.
    pub(super) sequence: u64,
    /// Number of the storage of the drive behind the cache; zero if it has none.
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
    sequence: u64,
    line: u64,
    slots: u32,
    reserved: u32,
    storage: [u64; 2],
}

/// Writes a superblock.
pub(super) fn write_superblock(block: &mut [u8], it: &Superblock) {
    let Superblock { geometry: Geometry { id, line, slots }, sequence, storage } = *it;
    let storage = [storage as u64, (storage >> 64) as u64];
    let (magic, version, checksum, reserved) = (MAGIC, VERSION, 0, 0);
    let raw = RawSuperblock { magic, version, checksum, id, sequence, line, slots, reserved, storage };
    block.fill(0);
    block[..size_of::<RawSuperblock>()].copy_from_slice(raw.as_bytes());
    sealed::seal(block);
}

/// Reads both copies of the superblock: the newer one counts. Returns the number of that copy, too.
pub(super) fn read_superblocks(copies: &[u8]) -> (Found, u8) {
    sealed::newer(copies, read_superblock, |superblock| superblock.sequence)
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
    let is_possible = (LINE_MIN..=LINE_MAX).contains(&raw.line)
        && raw.line.is_power_of_two()
        && (SLOTS_MIN..=SLOTS_MAX).contains(&u64::from(raw.slots))
        && raw.sequence < COUNT_END;
    if !is_good || !is_possible {
        return Found::Other;
    }
    let [low, high] = raw.storage.map(u128::from);
    Found::Good(Superblock {
        geometry: Geometry { id: raw.id, line: raw.line, slots: raw.slots },
        sequence: raw.sequence,
        storage: high << 64 | low,
    })
}

/// Dirty sectors of a slot, as the table has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Number of the line; [`NO_LINE`] if no sector is dirty.
    pub(super) line: u64,
    pub(super) dirty: u128,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: u64,
    version: u32,
    /// CRC-32C of the block without these four bytes.
    checksum: u32,
    /// Random number of the cache.
    id: u64,
    /// Count of the writes of the block.
    sequence: u64,
    block: u32,
    reserved: [u32; 7],
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    line: u64,
    dirty: [u64; 2],
    reserved: u64,
}

const _: () = assert!(
    size_of::<Head>() + SLOTS_OF_BLOCK as usize * size_of::<RawEntry>() == BLOCK,
    "the entries fill the block"
);

/// Writes a block of the table.
pub(super) fn write_block(
    bytes: &mut [u8],
    id: u64,
    block: u32,
    sequence: u64,
    entries: impl Iterator<Item = Entry>,
) {
    let (magic, version) = (TABLE_MAGIC, VERSION);
    let head = Head { magic, version, checksum: 0, id, sequence, block, reserved: [0; 7] };
    bytes.fill(0);
    let (start, rest) = bytes.split_at_mut(size_of::<Head>());
    start.copy_from_slice(head.as_bytes());
    for (place, entry) in rest.chunks_exact_mut(size_of::<RawEntry>()).zip(entries) {
        let dirty = [entry.dirty as u64, (entry.dirty >> 64) as u64];
        place.copy_from_slice(RawEntry { line: entry.line, dirty, reserved: 0 }.as_bytes());
    }
    sealed::seal(bytes);
}

/// Returns the count of a block of the table that is whole.
pub(super) fn read_block(bytes: &[u8], id: u64, block: u32) -> Option<u64> {
    let (head, _) = Head::read_from_prefix(bytes).ok()?;
    let is_right = (head.magic, head.version, head.id, head.block) == (TABLE_MAGIC, VERSION, id, block)
        && head.sequence < COUNT_END
        && head.checksum == sealed::checksum(bytes);
    is_right.then_some(head.sequence)
}

/// Reads both copies of a block of the table. Returns the newer one that is whole, and its count.
pub(super) fn read_pair(pair: &[u8], id: u64, block: u32) -> Option<(u8, u64)> {
    let copies = (0..).zip(pair.chunks_exact(BLOCK));
    let whole = copies.filter_map(|(copy, bytes)| Some((copy, read_block(bytes, id, block)?)));
    whole.max_by_key(|(_, sequence)| *sequence)
}

/// Returns the entries in a block of the table.
pub(super) fn entries(bytes: &[u8]) -> impl Iterator<Item = Entry> {
    let places = bytes.get(size_of::<Head>()..).unwrap_or_default().chunks_exact(size_of::<RawEntry>());
    places.filter_map(|place| RawEntry::read_from_bytes(place).ok()).map(|raw| {
        let [low, high] = raw.dirty.map(u128::from);
        Entry { line: raw.line, dirty: high << 64 | low }
    })
}
