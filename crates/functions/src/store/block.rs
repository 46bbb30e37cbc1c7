//! Blocks of metadata: the unit in which it is written, and how one is known again.

use twox_hash::XxHash3_64;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// Bytes that are behind a block's own head.
pub(crate) const PAYLOAD: usize = BLOCK - HEAD;

/// Checksum, magic, kind, count, generation, sequence.
const HEAD: usize = 32;

/// "SnS1": snapshot store, first layout.
const MAGIC: u32 = u32::from_le_bytes(*b"SnS1");

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    Superblock = 1,
    /// The number of deletions so far, for whoever reads an old version meanwhile.
    Deletions = 2,
    Header = 3,
    /// Of a checkpoint.
    Versions = 4,
    Mappings = 5,
    /// Of a log.
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

/// A block that was opened, or is to be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) kind: Kind,
    /// Of what the payload has many of.
    pub(crate) count: u16,
    /// Of the checkpoint that it belongs to, or that its log goes on from.
    pub(crate) generation: u64,
    /// Its place among its like.
    pub(crate) sequence: u64,
}

impl Label {
    pub(crate) fn new(kind: Kind, generation: u64, sequence: u64) -> Self {
        Self { kind, count: 0, generation, sequence }
    }
}

/// Writes a block: `fill` gets its payload, zeros at first, and says how many things it put there. `salt` is
/// the store's own, so that no other store's blocks are taken for its.
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

/// Writes the checksum of what a block holds.
pub(super) fn sign(block: &mut [u8], salt: u64) {
    let sum = XxHash3_64::oneshot_with_seed(salt, &block[8..BLOCK]);
    block[..8].copy_from_slice(&sum.to_le_bytes());
}

/// What a block is, and its payload; none if it is no block of this store, or not whole.
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

/// The 64-bit number at a place, little-endian; zero beyond the end.
pub(crate) fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The same of 32 bits.
pub(crate) fn number_32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
