//! Counts of the extents that each volume has alone, in pieces: notes of volumes are handled in between.

use crate::committer::Committer;
use crate::layout::EXTENT;
use crate::pool::{PoolUse, Reply};
use crate::storage::Storage;
use std::collections::BTreeMap;

/// Mappings of a piece, of a thread that has nothing else to do.
pub(crate) const PIECE: usize = 1 << 16;

/// A count that was ordered.
#[derive(Debug)]
pub(crate) struct Counting {
    reply: Reply<PoolUse>,
    /// Volume and extent of the next mapping.
    next: (u32, u32),
    /// Extents of each volume so far.
    found: BTreeMap<u32, u64>,
}

impl<S: Storage> Committer<S> {
    /// Orders a count for all volumes. The reply comes at its end. A mapping that changes meanwhile may be counted as it was.
    pub(crate) fn order_count(&mut self, reply: Reply<PoolUse>) {
        self.counts.push_back(Counting { reply, next: (0, 0), found: BTreeMap::new() });
    }

    /// Counts up to `limit` mappings for the first order. Returns their number, and at least 1 if there is an order.
    pub(crate) fn step_counts(&mut self, limit: usize) -> usize {
        let Some(mut counting) = self.counts.pop_front() else { return 0 };
        let (work, is_over) = self.count_piece(&mut counting, limit);
        match is_over {
            true => {
                let usage = self.usage_with(|number| Some(counting.found.get(&number).copied().unwrap_or(0)));
                drop(counting.reply.send(Ok(usage)));
            }
            false => self.counts.push_front(counting),
        }
        work.max(1)
    }

    /// Returns the number of counted mappings, and whether they were the last ones.
    fn count_piece(&self, counting: &mut Counting, limit: usize) -> (usize, bool) {
        let book = &self.home.object().book;
        let (from, mut at) = counting.next;
        let mut work = 0;
        for (number, volume) in book.volumes_from(from) {
            if number != from {
                at = 0;
            }
            let found = counting.found.entry(number).or_default();
            while let Some((logical, word)) = volume.map.next(at) {
                if work == limit {
                    counting.next = (number, logical);
                    return (work, false);
                }
                work += 1;
                *found += u64::from(book.references(word - 1) == 1) * EXTENT;
                at = logical + 1;
            }
        }
        (work, true)
    }
}
