//! Lists of buffers, and what names them, where they stay until the kernel has read them.

use std::ptr;

use libc::{iovec, msghdr};
use sluice_memory::Segment;

use super::MAX_SEGMENTS;

/// Lists of buffers: four times the longest in a chunk.
pub(super) type Lists = Arena<iovec, { 4 * MAX_SEGMENTS }>;

/// Headers of messages.
pub(super) type Headers = Arena<msghdr, 64>;

/// Entries in chunks of `CHUNK`. Grows by a chunk only if the kernel refuses to take what is there; keeps what it grew to.
pub(super) struct Arena<T, const CHUNK: usize> {
    /// None grows past its capacity, so that its entries never move.
    chunks: Vec<Vec<T>>,
    current: usize,
}

impl<T, const CHUNK: usize> Arena<T, CHUNK> {
    pub(super) fn new() -> Self {
        Self { chunks: vec![Vec::with_capacity(CHUNK)], current: 0 }
    }

    /// Whether `count` entries fit without growing.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.chunks[self.current].len() + count <= CHUNK || self.current + 1 < self.chunks.len()
    }

    /// Puts entries down one after the other, at most a chunk of them; where they are now.
    fn put(&mut self, entries: impl ExactSizeIterator<Item = T>) -> *const T {
        debug_assert!(entries.len() <= CHUNK);
        if self.chunks[self.current].len() + entries.len() > CHUNK {
            self.current += 1;
            if self.current == self.chunks.len() {
                self.chunks.push(Vec::with_capacity(CHUNK));
            }
        }
        let chunk = &mut self.chunks[self.current];
        let start = chunk.len();
        chunk.extend(entries);
        chunk.get(start).map_or(ptr::null(), ptr::from_ref)
    }

    /// Forgets everything: the kernel has read it.
    pub(super) fn clear(&mut self) {
        for chunk in &mut self.chunks[..=self.current] {
            chunk.clear();
        }
        self.current = 0;
    }
}

impl Lists {
    /// Copies a list of at most `MAX_SEGMENTS`; where it is now, and its length.
    pub(super) fn copy(&mut self, segments: &[Segment]) -> (*const iovec, u32) {
        let buffers = segments.iter();
        let buffers = buffers.map(|s| iovec { iov_base: s.pointer().cast(), iov_len: s.len() as usize });
        (self.put(buffers), segments.len() as u32)
    }
}

impl Headers {
    /// The header of a message into a list of buffers, and where it is.
    pub(super) fn over(&mut self, (list, count): (*const iovec, u32)) -> *mut msghdr {
        let header = msghdr {
            msg_name: ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: list.cast_mut(),
            msg_iovlen: count as _,
            msg_control: ptr::null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        };
        self.put(std::iter::once(header)).cast_mut()
    }
}
