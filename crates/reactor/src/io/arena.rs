//! Lists of buffers, in memory that stays until the kernel has read them.

use std::ptr;

use libc::iovec;

use super::MAX_SEGMENTS;

/// Entries of one chunk: four times the longest list.
const CHUNK: usize = 4 * MAX_SEGMENTS;

/// Arena that grows by a chunk only if the kernel does not take the lists in it; it never shrinks.
pub(super) struct Arena {
    chunks: Vec<Chunk>,
    current: usize,
}

/// Entries that never move, because the vector never grows past its capacity.
type Chunk = Vec<iovec>;

impl Arena {
    pub(super) fn new() -> Self {
        Self { chunks: vec![Chunk::with_capacity(CHUNK)], current: 0 }
    }

    /// Returns whether a list of `count` entries fits without growing.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.chunks[self.current].len() + count <= CHUNK || self.current + 1 < self.chunks.len()
    }

    /// Copies a list of at most `MAX_SEGMENTS`; returns its address and length.
    pub(super) fn copy(&mut self, list: impl ExactSizeIterator<Item = iovec>) -> (*const iovec, u32) {
        let count = list.len();
        debug_assert!(count <= MAX_SEGMENTS);
        if self.chunks[self.current].len() + count > CHUNK {
            self.current += 1;
            if self.current == self.chunks.len() {
                self.chunks.push(Chunk::with_capacity(CHUNK));
            }
        }
        let chunk = &mut self.chunks[self.current];
        let start = chunk.len();
        chunk.extend(list);
        (chunk.get(start).map_or(ptr::null(), ptr::from_ref), count as u32)
    }

    /// Drops all lists: the kernel has read them.
    pub(super) fn clear(&mut self) {
        for chunk in &mut self.chunks[..=self.current] {
            chunk.clear();
        }
        self.current = 0;
    }
}
