//! Use counts of the chunks of a store.

use std::collections::HashMap;

/// Number of mappings by chunk of the store; one for a chunk that waits for its first.
#[derive(Debug)]
pub(super) struct Uses {
    list: Vec<u32>,
    /// Chunks beyond the size that a reader has for the store. There are no more of them than mappings, for
    /// any numbers in these.
    beyond: Option<HashMap<u32, u32>>,
    /// Unused chunks, without those beyond a reader's size.
    pub(super) free: u32,
}

impl Uses {
    /// Creates the counts of a store with so many chunks.
    pub(super) fn new(chunks: u32) -> Self {
        Self { list: vec![0; chunks as usize], beyond: None, free: chunks }
    }

    /// Makes the counts those of a reader, which allocates nothing: the store may be larger than its size
    /// here.
    pub(super) fn only_read(mut self) -> Self {
        self.beyond = Some(HashMap::new());
        self
    }

    pub(super) fn grow(&mut self, chunks: u32) {
        let more = (chunks as usize).saturating_sub(self.list.len());
        self.list.resize(self.list.len() + more, 0);
        self.free += more as u32;
    }

    /// Returns the number of chunks of the store.
    pub(super) fn len(&self) -> u64 {
        self.list.len() as u64
    }

    /// Returns the number of mappings of a chunk; none if there can be no such chunk.
    pub(super) fn of(&self, chunk: u32) -> Option<u32> {
        let known = self.list.get(chunk as usize).copied();
        known.or_else(|| {
            let beyond = self.beyond.as_ref().filter(|_| chunk < u32::MAX - 1)?;
            Some(beyond.get(&chunk).copied().unwrap_or_default())
        })
    }

    /// Returns the first free chunk from `from` on, and then from the beginning.
    pub(super) fn next_free(&self, from: u32) -> Option<u32> {
        let (before, after) = self.list.split_at(from as usize);
        let found = after.iter().position(|uses| *uses == 0).map(|at| at + before.len());
        found.or_else(|| before.iter().position(|uses| *uses == 0)).map(|at| at as u32)
    }

    pub(super) fn take(&mut self, chunk: u32) {
        match (self.list.get_mut(chunk as usize), &mut self.beyond) {
            (Some(uses), _) => {
                self.free -= u32::from(*uses == 0);
                *uses += 1;
            }
            (None, Some(beyond)) => *beyond.entry(chunk).or_default() += 1,
            (None, None) => unreachable!("chunk {chunk} was looked at before"),
        }
    }

    pub(super) fn release(&mut self, chunk: u32) {
        match (self.list.get_mut(chunk as usize), &mut self.beyond) {
            (Some(uses), _) => {
                *uses -= 1;
                self.free += u32::from(*uses == 0);
            }
            (None, Some(beyond)) => {
                let uses = beyond.remove(&chunk).unwrap_or_default();
                if uses > 1 {
                    beyond.insert(chunk, uses - 1);
                }
            }
            (None, None) => unreachable!("chunk {chunk} was taken before"),
        }
    }
}
