//! Reading of the ring. No byte of it is trusted.

use super::format::{self, Entry};
use super::{BATCH_BLOCKS, Place};
use crate::BLOCK;
use crate::parity::{Geometry, ROWS_MAX};
use crc32c::crc32c;

/// Content of a read of the ring.
#[derive(Debug)]
pub(crate) enum Found {
    /// A batch: its entries, each with the place of its content in the bytes.
    Batch(Vec<(Entry, usize)>),
    /// End of the ring.
    End,
    /// Content that must not be ignored, with the reason as a message.
    Refused(String),
}

/// Reader of the ring.
#[derive(Debug)]
pub(crate) struct Replay {
    geometry: Geometry,
    /// Bytes of each member.
    size: u64,
    id: u64,
    blocks: u64,
    pub(crate) at: Place,
}

impl Replay {
    pub(crate) fn new(geometry: Geometry, size: u64, id: u64, blocks: u64, at: Place) -> Self {
        Self { geometry, size, id, blocks, at }
    }

    /// Returns the offset in the ring and the length of the next read, bytes.
    pub(crate) fn next(&self) -> (u64, usize) {
        let blocks = BATCH_BLOCKS.min(self.blocks.saturating_sub(self.at.block));
        (self.at.block * BLOCK as u64, blocks as usize * BLOCK)
    }

    /// Takes the bytes of the last read.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Found {
        let Some(block) = bytes.get(..BLOCK) else { return Found::End };
        if let Some(version) = format::later_version(block) {
            return Found::Refused(format!(
                "its journal has version {version}, which is later than this program"
            ));
        }
        let Some((head, entries)) = format::open(block, self.id) else { return Found::End };
        if head.sequence != self.at.sequence {
            return Found::End;
        }
        let Some(batch) = bytes.get(..head.blocks as usize * BLOCK) else { return Found::End };
        let mut found = Vec::with_capacity(entries.len());
        let mut at = BLOCK;
        for entry in entries {
            let length = usize::try_from(entry.content_bytes()).unwrap_or(usize::MAX);
            let content = at.checked_add(length).and_then(|end| batch.get(at..end));
            // The batch that was in flight at the end is torn. None of its cells was written.
            if !self.is_possible(&entry) || content.is_none_or(|content| crc32c(content) != entry.checksum) {
                return Found::End;
            }
            found.push((entry, at));
            at += length;
        }
        self.at = self.at.after(head.blocks.into(), self.blocks);
        Found::Batch(found)
    }

    fn is_possible(&self, entry: &Entry) -> bool {
        let Geometry { members, chunk, .. } = self.geometry;
        let rows = entry.rows();
        let is_inside = !rows.is_empty() && rows.end <= self.size;
        let roles = (1u32 << members) - 1;
        let is_one = rows.start / chunk == (rows.end.max(1) - 1) / chunk && entry.length <= ROWS_MAX;
        let is_content = entry.zeroes == 0 && is_one && entry.roles != 0 && entry.roles & !roles == 0;
        let is_zeroes = entry.zeroes == 1 && entry.roles == 0 && entry.checksum == 0;
        is_inside && (is_content || is_zeroes)
    }
}
