//! Which chunks of the store are in use, and how often.

use std::collections::HashMap;

/// By chunk of the store: mappings that have it, and one while it waits for its first.
#[derive(Debug)]
pub(super) struct Uses {
    list: Vec<u32>,
    /// Of a table that is only read: chunks that have come since the reader learned how large the store is. There
    /// are no more of them than mappings, whatever number one of them says.
    beyond: Option<HashMap<u32, u32>>,
    /// Chunks that nobody uses; none of those that a reader does not know.
    pub(super) free: u32,
}

impl Uses {
    /// Of a store with so many chunks.
    pub(super) fn new(chunks: u32) -> Self {
        Self { list: vec![0; chunks as usize], beyond: None, free: chunks }
    }

    /// Nothing is allocated here: the store may be larger than is known.
    pub(super) fn only_read(mut self) -> Self {
        self.beyond = Some(HashMap::new());
        self
    }

    pub(super) fn grow(&mut self, chunks: u32) {
        let more = (chunks as usize).saturating_sub(self.list.len());
        self.list.resize(self.list.len() + more, 0);
        self.free += more as u32;
    }

    /// Chunks of the store.
    pub(super) fn len(&self) -> u64 {
        self.list.len() as u64
    }

    /// Mappings that have a chunk; none if there can be no such chunk.
    pub(super) fn of(&self, chunk: u32) -> Option<u32> {
        let known = self.list.get(chunk as usize).copied();
        known.or_else(|| {
            let beyond = self.beyond.as_ref().filter(|_| chunk < u32::MAX - 1)?;
            Some(beyond.get(&chunk).copied().unwrap_or_default())
        })
    }

    /// The first free chunk from `from` on, and then from the beginning.
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
