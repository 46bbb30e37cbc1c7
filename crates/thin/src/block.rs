//! Blocks of metadata, little-endian. See docs/internals/formats.md.

use crc32c::{crc32c, crc32c_append};
pub(crate) use sluice_metadata::engine::BLOCK;

/// "SluiceTP" as bytes on the disk.
const MAGIC: [u8; 8] = *b"SluiceTP";

/// Version of the format.
const VERSION: u16 = 1;

/// Bytes of magic number, checksum, version, kind, identifier, generation, sequence, count.
const HEAD: usize = 48;

/// Bytes behind the head of a block.
pub(crate) const PAYLOAD: usize = BLOCK - HEAD;

/// Kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Superblock = 1,
    Header = 2,
    Volumes = 3,
    Mappings = 4,
    Changes = 5,
}

/// Head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) kind: Kind,
    /// Generation of the checkpoint that the block belongs to, or whose log it continues.
    pub(crate) generation: u64,
    /// Number among the blocks of the checkpoint, or of its log.
    pub(crate) sequence: u64,
}

/// Content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    /// Number of items, and the payload.
    Valid(u32, &'a [u8]),
    /// Block of a later version.
    Later(u16),
    /// Other block, or a damaged one.
    Other,
}

/// Writes a block. `fill` writes the payload, zeros at first, and returns the number of items. `id` is the pool's, so
/// that blocks of another pool are not taken for its own.
pub(crate) fn seal(block: &mut [u8], id: u64, label: Label, fill: impl FnOnce(&mut [u8]) -> usize) {
    block.fill(0);
    let count = fill(&mut block[HEAD..]) as u32;
    block[..8].copy_from_slice(&MAGIC);
    block[12..14].copy_from_slice(&VERSION.to_le_bytes());
    block[14..16].copy_from_slice(&(label.kind as u16).to_le_bytes());
    for (at, word) in [(16, id), (24, label.generation), (32, label.sequence)] {
        block[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    block[40..44].copy_from_slice(&count.to_le_bytes());
    let sum = checksum(block);
    block[8..12].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the content of a block with this label.
pub(crate) fn open(block: &[u8], id: u64, label: Label) -> Content<'_> {
    let is_ours = block.len() == BLOCK
        && block[..8] == MAGIC
        && number_32(block, 8) == checksum(block)
        && number_16(block, 14) == label.kind as u16;
    let words = [16, 24, 32].map(|at| number(block, at));
    let version = number_16(block, 12);
    if is_ours && version > VERSION {
        return Content::Later(version);
    }
    match is_ours && words == [id, label.generation, label.sequence] {
        true => Content::Valid(number_32(block, 40), &block[HEAD..]),
        false => Content::Other,
    }
}

/// Returns the generation of a header of this pool.
pub(crate) fn generation(block: &[u8], id: u64) -> Option<u64> {
    let generation = number(block, 24);
    let label = Label { kind: Kind::Header, generation, sequence: 0 };
    matches!(open(block, id, label), Content::Valid(..)).then_some(generation)
}

/// Returns the identifier in a block that may be a superblock.
pub(crate) fn id_of(block: &[u8]) -> u64 {
    number(block, 16)
}

fn checksum(block: &[u8]) -> u32 {
    crc32c_append(crc32c(&block[..8]), &block[12..])
}

/// Returns the number at an offset; zero beyond the end.
pub(crate) fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

pub(crate) fn number_32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn number_16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u16::from_le_bytes(*bytes))
}
