//! Location of a pool's parts on its device.

use crate::block::{BLOCK, Content, Kind, Label, PAYLOAD, id_of, number, open, seal};
use crate::book::{EXTENTS_MAX, MAPPING_BYTES, VOLUME_BYTES, VOLUMES_MAX};
use sluice_metadata::engine::Halves;

/// Bytes of an extent.
pub const EXTENT: u64 = 64 << 10;

/// Blocks of the two superblocks.
const FRONT: u64 = 2;

/// Mappings that the metadata has room for, at least; times the number of extents of a new pool.
const MAPPINGS_MIN: u64 = 1 << 14;
const MAPPINGS_OF_EXTENT: u64 = 4;

/// Blocks of a log, at least and at most.
const LOG_MIN: u64 = 64;
const LOG_MAX: u64 = 4096;

const SUPERBLOCK: Label = Label { kind: Kind::Superblock, generation: 0, sequence: 0 };

/// Location of the parts. The metadata has its place for as long as the pool exists, and the extents follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Identifier of the pool.
    pub id: u64,
    /// Mappings of all volumes that the metadata has room for.
    pub mappings_max: u64,
    /// Blocks of a log.
    log: u64,
}

impl Layout {
    /// Plans a pool on a device of `size` bytes.
    ///
    /// # Errors
    /// The device is too small, or too large.
    pub(crate) fn plan(id: u64, size: u64) -> Result<Self, String> {
        let mappings_max = (size / EXTENT).saturating_mul(MAPPINGS_OF_EXTENT).max(MAPPINGS_MIN);
        let log = mappings_max.div_ceil(per_block(MAPPING_BYTES)).clamp(LOG_MIN, LOG_MAX);
        let layout = Self { id, mappings_max, log };
        match layout.extents(size) {
            Ok(0) | Err(_) if size < layout.data_at() + EXTENT => Err(format!(
                "a pool has {} bytes at least, of which the metadata takes {}; this device has {size}",
                layout.data_at() + EXTENT,
                layout.data_at()
            )),
            Err(why) => Err(why),
            Ok(_) => Ok(layout),
        }
    }

    pub(crate) fn halves(&self) -> Halves {
        let reserved = body_blocks(VOLUMES_MAX as u64, self.mappings_max);
        Halves { at: FRONT * BLOCK as u64, blocks: 1 + reserved + self.log, reserved }
    }

    /// Returns the offset of the first extent.
    #[must_use]
    pub fn data_at(&self) -> u64 {
        self.halves().end().next_multiple_of(EXTENT)
    }

    /// Returns the bytes of the largest device that the pool can have.
    pub(crate) fn reach(&self) -> u64 {
        self.data_at() + self.mappings_max.min(EXTENTS_MAX.into()) * EXTENT
    }

    /// Returns the number of extents of a device of `size` bytes.
    pub(crate) fn extents(&self, size: u64) -> Result<u32, String> {
        let extents = size.saturating_sub(self.data_at()) / EXTENT;
        u32::try_from(extents)
            .ok()
            .filter(|count| *count <= EXTENTS_MAX)
            .ok_or_else(|| {
                let most = u64::from(EXTENTS_MAX) * EXTENT;
                format!("a pool has {most} bytes at most")
            })
            .and_then(|extents| match u64::from(extents) <= self.mappings_max {
                true => Ok(extents),
                false => Err(format!(
                    "the metadata of the pool has room for a device of {} bytes: a larger pool must be made anew",
                    self.reach()
                )),
            })
    }

    /// Writes a superblock. All of its content is in the first sector of the block, which no power cut tears.
    pub(crate) fn seal(&self, block: &mut [u8]) {
        seal(block, self.id, SUPERBLOCK, |payload| {
            for (bytes, word) in payload.chunks_exact_mut(8).zip([EXTENT, self.mappings_max, self.log]) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            0
        });
    }

    /// Returns the layout of a superblock; none if the block is not one.
    pub(crate) fn open(block: &[u8]) -> Option<Result<Self, String>> {
        let id = id_of(block);
        let payload = match open(block, id, SUPERBLOCK) {
            Content::Valid(_, payload) => payload,
            Content::Later(version) => {
                return Some(Err(format!(
                    "the pool has version {version}, which is later than this program"
                )));
            }
            Content::Other => return None,
        };
        let [extent, mappings_max, log] = [0, 8, 16].map(|at| number(payload, at));
        // No program writes other numbers.
        let mappings_limit = u64::from(EXTENTS_MAX) * MAPPINGS_OF_EXTENT;
        let is_possible = extent == EXTENT
            && (MAPPINGS_MIN..=mappings_limit).contains(&mappings_max)
            && (LOG_MIN..=LOG_MAX).contains(&log);
        Some(match is_possible {
            true => Ok(Self { id, mappings_max, log }),
            false => Err("the superblock has numbers that no pool has".to_owned()),
        })
    }
}

/// Returns the items of this size that a block has room for.
pub(crate) fn per_block(bytes: usize) -> u64 {
    (PAYLOAD / bytes) as u64
}

/// Returns the blocks of a checkpoint's body.
pub(crate) fn body_blocks(volumes: u64, mappings: u64) -> u64 {
    volumes.div_ceil(per_block(VOLUME_BYTES)) + mappings.div_ceil(per_block(MAPPING_BYTES))
}
