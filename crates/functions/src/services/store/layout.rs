//! Layout of a store: two superblocks, the number of deletions, two areas for metadata, chunks.
//!
//! The page docs/internals/formats.md has their content.

use super::block::{BLOCK, Kind, Label, PAYLOAD, number, open, seal};
use super::table::{Mapping, VERSIONS_MAX, Version};
use super::text::format_bytes;
use sluice_metadata::engine::Halves;

/// Blocks before the first area.
const FRONT: u64 = 4;

/// Offset of the block of the deletions.
pub(crate) const DELETIONS: u64 = 2 * BLOCK as u64;

/// Versions, and mappings, in a block.
pub(crate) const VERSIONS_PER_BLOCK: usize = PAYLOAD / Version::BYTES;
pub(crate) const MAPPINGS_PER_BLOCK: usize = PAYLOAD / Mapping::BYTES;

/// Blocks of a log, for the smallest and the largest store.
const LOG_MIN: u64 = 8;
const LOG_MAX: u64 = 4096;

/// Bytes of a chunk.
pub(crate) const CHUNK_MIN: u64 = 4 << 10;
pub(crate) const CHUNK_MAX: u64 = 1 << 20;

/// Parameters of a store's layout: all the rest follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the drive.
    pub size: u64,
    /// Bytes of a chunk.
    pub chunk: u64,
}

/// Layout of a store. All positions and lengths are in bytes, unless they are named blocks or chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) shape: Shape,
    /// Bytes of the store when it was made.
    pub(crate) made_with: u64,
    pub(crate) salt: u64,
    /// Chunks of the drive.
    pub(crate) logical: u32,
    /// Chunks that the store has room for now.
    pub(crate) physical: u32,
    /// Mappings that an area has room for.
    pub(crate) mappings_max: u64,
    /// Areas of the metadata, with room for the largest checkpoint.
    pub(crate) halves: Halves,
    /// Offset of the first chunk.
    chunks: u64,
}

impl Layout {
    /// Plans the layout of a store of `made_with` bytes, which has `store` bytes now.
    ///
    /// # Errors
    /// The store is too small, or too large.
    pub(crate) fn plan(shape: Shape, salt: u64, made_with: u64, store: u64) -> Result<Self, String> {
        let logical = shape.size.div_ceil(shape.chunk);
        let mappings_max = 2 * logical + made_with / shape.chunk;
        if mappings_max >= u64::from(u32::MAX) {
            return Err("a drive of so many chunks is not possible: use larger ones".to_owned());
        }
        let versions = (VERSIONS_MAX as u64).div_ceil(VERSIONS_PER_BLOCK as u64);
        let body = versions + mappings_max.div_ceil(MAPPINGS_PER_BLOCK as u64);
        let log = (2 * body).clamp(LOG_MIN, LOG_MAX);
        let halves = Halves { at: FRONT * BLOCK as u64, blocks: 1 + body + log, reserved: body };
        let chunks = halves.end().next_multiple_of(shape.chunk);
        let physical = store.saturating_sub(chunks) / shape.chunk;
        if physical == 0 || store < made_with {
            let least = made_with.max(chunks + shape.chunk);
            return Err(format!(
                "the store has {}, and needs at least {}",
                format_bytes(store),
                format_bytes(least)
            ));
        }
        let (logical, physical) = (logical as u32, physical.min(u64::from(u32::MAX) - 1) as u32);
        Ok(Self { shape, made_with, salt, logical, physical, mappings_max, halves, chunks })
    }

    /// Returns the offset of a chunk in the store.
    pub(crate) fn chunk_at(&self, physical: u32) -> u64 {
        self.chunks + u64::from(physical) * self.shape.chunk
    }

    /// Writes a superblock: all its content is in its first 512 bytes, and so never torn.
    pub(crate) fn seal_superblock(&self, block: &mut [u8]) {
        // A reader does not have the salt yet.
        seal(block, 0, Label::new(Kind::Superblock, 0, 0), |payload| {
            let words = [self.shape.size, self.shape.chunk, self.made_with, self.salt];
            for (bytes, word) in payload.chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            0
        });
    }

    /// Returns the layout of a superblock, for a store that has `store` bytes now; none if it is no
    /// superblock.
    pub(crate) fn open_superblock(block: &[u8], shape: Shape, store: u64) -> Option<Result<Self, String>> {
        let (label, payload) = open(block, 0)?;
        if label.kind != Kind::Superblock {
            return None;
        }
        let [size, chunk, made_with, salt] = [0, 8, 16, 24].map(|at| number(payload, at));
        if (Shape { size, chunk }) != shape {
            return Some(Err(format!(
                "the store was made for a drive of {} in chunks of {}, not for one of {} in chunks of {}",
                format_bytes(size),
                format_bytes(chunk),
                format_bytes(shape.size),
                format_bytes(shape.chunk),
            )));
        }
        Some(Self::plan(shape, salt, made_with, store))
    }
}

/// Content of a checkpoint's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) generation: u64,
    pub(crate) epoch: u64,
    pub(crate) deletions: u64,
    pub(crate) versions: u64,
    pub(crate) mappings: u64,
}

impl Header {
    pub(crate) fn seal(&self, block: &mut [u8], salt: u64) {
        seal(block, salt, Label::new(Kind::Header, self.generation, 0), |payload| {
            let words = [self.epoch, self.deletions, self.versions, self.mappings];
            for (bytes, word) in payload.chunks_exact_mut(8).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            0
        });
    }

    pub(crate) fn open(block: &[u8], salt: u64) -> Option<Self> {
        let (label, payload) = open(block, salt)?;
        let [epoch, deletions, versions, mappings] = [0, 8, 16, 24].map(|at| number(payload, at));
        (label.kind == Kind::Header).then_some(Self {
            generation: label.generation,
            epoch,
            deletions,
            versions,
            mappings,
        })
    }

    /// Returns the numbers of blocks of versions, and of mappings.
    pub(crate) fn blocks(&self) -> (u64, u64) {
        (self.versions.div_ceil(VERSIONS_PER_BLOCK as u64), self.mappings.div_ceil(MAPPINGS_PER_BLOCK as u64))
    }
}
