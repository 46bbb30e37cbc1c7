//! Blocks of metadata: the unit in which metadata is written and checked.

pub(crate) use sluice_metadata::engine::BLOCK;
use twox_hash::XxHash3_64;

/// Bytes behind a block's own head.
pub(crate) const PAYLOAD: usize = BLOCK - HEAD;

/// Bytes of checksum, magic, kind, count, generation, sequence.
const HEAD: usize = 32;

/// "SnS1": snapshot store, first layout.
const MAGIC: u32 = u32::from_le_bytes(*b"SnS1");

/// Kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    Superblock = 1,
    /// Number of deletions so far, for readers of old versions.
    Deletions = 2,
    Header = 3,
    /// Part of a checkpoint.
    Versions = 4,
    Mappings = 5,
    /// Part of a log.
    Changes = 6,
    Create = 7,
    Delete = 8,
    Rollback = 9,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Superblock,
        Self::Deletions,
        Self::Header,
        Self::Versions,
        Self::Mappings,
        Self::Changes,
        Self::Create,
        Self::Delete,
        Self::Rollback,
    ];
}

/// Head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) kind: Kind,
    /// Number of items in the payload.
    pub(crate) count: u16,
    /// Generation of the checkpoint that the block belongs to, or that its log continues.
    pub(crate) generation: u64,
    /// Position among the blocks of its kind.
    pub(crate) sequence: u64,
}

impl Label {
    pub(crate) fn new(kind: Kind, generation: u64, sequence: u64) -> Self {
        Self { kind, count: 0, generation, sequence }
    }
}

/// Writes a block: `fill` gets its payload, zeros at first, and returns the number of items. `salt` belongs
/// to the store, so that blocks of other stores are not taken for its own.
pub(crate) fn seal(block: &mut [u8], salt: u64, label: Label, fill: impl FnOnce(&mut [u8]) -> usize) {
    block.fill(0);
    let count = fill(&mut block[HEAD..]) as u16;
    block[8..12].copy_from_slice(&MAGIC.to_le_bytes());
    block[12..14].copy_from_slice(&(label.kind as u16).to_le_bytes());
    block[14..16].copy_from_slice(&count.to_le_bytes());
    block[16..24].copy_from_slice(&label.generation.to_le_bytes());
    block[24..32].copy_from_slice(&label.sequence.to_le_bytes());
    sign(block, salt);
}

/// Writes the checksum of a block's content.
pub(super) fn sign(block: &mut [u8], salt: u64) {
    let sum = XxHash3_64::oneshot_with_seed(salt, &block[8..BLOCK]);
    block[..8].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the label and the payload of a block; none if it is no block of this store, or damaged.
pub(crate) fn open(block: &[u8], salt: u64) -> Option<(Label, &[u8])> {
    let head = block.get(..HEAD)?;
    let payload = block.get(HEAD..BLOCK)?;
    if number(head, 8) as u32 != MAGIC
        || XxHash3_64::oneshot_with_seed(salt, &block[8..BLOCK]) != number(head, 0)
    {
        return None;
    }
    let code = u16::from_le_bytes([head[12], head[13]]);
    let kind = Kind::ALL.into_iter().find(|kind| *kind as u16 == code)?;
    let count = u16::from_le_bytes([head[14], head[15]]);
    Some((Label { kind, count, generation: number(head, 16), sequence: number(head, 24) }, payload))
}

/// Returns the 64-bit number at an offset, little-endian; zero beyond the end.
pub(crate) fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns the 32-bit number at an offset, little-endian; zero beyond the end.
pub(crate) fn number_32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
