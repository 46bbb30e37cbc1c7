//! Format of a batch: a block of descriptions, and the contents of cells. See docs/internals/formats.md.

use crate::BLOCK;
use crate::parity::plan::Roles;
use crc32c::{crc32c, crc32c_append};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// "sluicePJ" as bytes on the disk.
const MAGIC: u64 = u64::from_le_bytes(*b"sluicePJ");
const VERSION: u32 = 1;

/// Maximum bytes of a batch, with its block of descriptions.
pub const BATCH_MAX: usize = 512 << 10;

/// First bytes of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Head {
    magic: u64,
    version: u32,
    /// CRC-32C of the block, without these four bytes.
    checksum: u32,
    /// Identifier of the log.
    id: u64,
    pub(crate) sequence: u64,
    /// Number of entries in this block.
    count: u32,
    /// Blocks of the batch, this one included.
    pub(crate) blocks: u32,
    reserved: u64,
}

/// Description of a change of some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Entry {
    /// First byte of the rows in each member, and their number.
    pub(crate) row: u64,
    pub(crate) length: u64,
    /// Roles whose new content follows, in their order.
    pub(crate) roles: Roles,
    /// CRC-32C of that content.
    pub(crate) checksum: u32,
    /// Members that do not get the change. The highest bit marks parities that are not computed yet.
    pub(crate) missing: u8,
    /// 1 if the rows become zeros on all members: there is no content.
    pub(crate) zeroes: u8,
    pub(in crate::parity) reserved: [u8; 6],
}

/// Maximum number of entries in a batch.
pub(crate) const ENTRIES_MAX: usize = (BLOCK - size_of::<Head>()) / size_of::<Entry>();

impl Entry {
    pub(crate) fn new(rows: Range<u64>, roles: Roles, checksum: u32, missing: u8) -> Self {
        let (row, length) = (rows.start, rows.end - rows.start);
        Self { row, length, roles, checksum, missing, ..Self::default() }
    }

    pub(crate) fn zeroes(rows: Range<u64>, missing: u8) -> Self {
        Self { zeroes: 1, ..Self::new(rows, 0, 0, missing) }
    }

    pub(crate) fn rows(&self) -> Range<u64> {
        self.row..self.row.saturating_add(self.length)
    }

    /// Returns the bytes of content, of an entry of any origin.
    pub(crate) fn content_bytes(&self) -> u64 {
        self.length.saturating_mul(self.roles.count_ones().into())
    }
}

/// Writes the block of descriptions of a batch.
pub(crate) fn seal(block: &mut [u8], id: u64, sequence: u64, blocks: u32, entries: &[Entry]) {
    block.fill(0);
    let count = entries.len() as u32;
    let mut head = Head { magic: MAGIC, version: VERSION, id, sequence, count, blocks, ..Head::default() };
    let (first, rest) = block.split_at_mut(size_of::<Head>());
    first.copy_from_slice(head.as_bytes());
    rest[..size_of_val(entries)].copy_from_slice(entries.as_bytes());
    head.checksum = checksum(block);
    block[..size_of::<Head>()].copy_from_slice(head.as_bytes());
}

/// Returns the head and the entries of a block, if it is that of a batch of this log.
pub(crate) fn open(block: &[u8], id: u64) -> Option<(Head, Vec<Entry>)> {
    let block = block.get(..BLOCK)?;
    let (head, rest) = Head::read_from_prefix(block).ok()?;
    let count = head.count as usize;
    let is_right = (head.magic, head.version, head.id) == (MAGIC, VERSION, id)
        && head.checksum == checksum(block)
        && count <= ENTRIES_MAX
        && (1..=BATCH_MAX / BLOCK).contains(&(head.blocks as usize));
    if !is_right {
        return None;
    }
    let entries = rest.chunks_exact(size_of::<Entry>()).take(count);
    let entries = entries.map(Entry::read_from_bytes).collect::<Result<_, _>>().ok()?;
    Some((head, entries))
}

/// Returns the version of a batch of a later program, which must not be ignored.
pub(crate) fn later_version(block: &[u8]) -> Option<u32> {
    let (head, _) = Head::read_from_prefix(block).ok()?;
    (head.magic == MAGIC && head.version > VERSION).then_some(head.version)
}

fn checksum(block: &[u8]) -> u32 {
    crc32c_append(crc32c(&block[..12]), &block[16..])
}
