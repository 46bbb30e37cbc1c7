//! Blocks with a checksum, and superblocks of two copies: parts of the formats of `atomic` and `local-cache`.
//!
//! Such a block begins with a magic number of eight bytes and a version of four. The checksum follows.

use crc32c::{crc32c, crc32c_append};

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;

/// Content of the blocks that should be the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    Blank,
    Good(T),
    /// A later version.
    Later(u32),
    Other,
}

/// Returns the CRC-32C of a block, without the four bytes of its checksum.
pub(super) fn checksum(block: &[u8]) -> u32 {
    crc32c_append(crc32c(&block[..12]), &block[16..])
}

/// Writes the checksum of a block.
pub(super) fn seal(block: &mut [u8]) {
    let checksum = checksum(block);
    block[12..16].copy_from_slice(&checksum.to_le_bytes());
}

/// Returns the newer of both copies of a superblock, by its `count`, and its number. A power cut tears the older one only. A
/// first superblock goes to copy 0.
pub(super) fn newer<T>(
    copies: &[u8],
    read: impl Fn(&[u8]) -> Found<T>,
    count: impl Fn(&T) -> u64,
) -> (Found<T>, u8) {
    let mut all_blank = true;
    let mut newest: Option<(T, u8)> = None;
    for (number, copy) in (0..).zip(copies.chunks(BLOCK)) {
        match read(copy) {
            Found::Later(version) => return (Found::Later(version), number),
            Found::Good(it) if newest.as_ref().is_none_or(|(newest, _)| count(newest) < count(&it)) => {
                newest = Some((it, number));
            }
            Found::Good(_) | Found::Blank => {}
            Found::Other => all_blank = false,
        }
    }
    match newest {
        Some((it, number)) => (Found::Good(it), number),
        None if all_blank => (Found::Blank, 1),
        None => (Found::Other, 1),
    }
}
