//! Counters of the caches of drives.

use super::{Drives, lock};
use sluice_functions::CacheCounters;

/// A cache with its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheView {
    pub nsid: u32,
    /// Number of the cache among those of the namespace, counted from 1, topmost first.
    pub number: usize,
    /// Reads that were served from the cache.
    pub hits: u64,
    /// Reads that have filled the cache.
    pub misses: u64,
    /// Reads that went past the cache.
    pub bypassed: u64,
    /// Writes that have filled the cache, too.
    pub writes: u64,
}

impl CacheView {
    pub fn new(nsid: u32, number: usize, counters: &CacheCounters) -> Self {
        let [hits, misses, bypassed] = counters.reads();
        Self { nsid, number, hits, misses, bypassed, writes: counters.writes() }
    }
}

impl Drives {
    /// Returns the caches of all open drives, each with its drive's name.
    pub fn caches(&self) -> Vec<(String, CacheView)> {
        let entries = lock(&self.entries);
        let open = entries.iter().filter_map(|(name, entry)| Some((name, entry.running.as_ref().ok()?)));
        let open: Vec<_> = open.map(|(name, running)| (name.clone(), running.clone())).collect();
        drop(entries);
        let of = |(name, running): (String, std::sync::Arc<dyn super::Running>)| {
            running.caches().into_iter().map(move |cache| (name.clone(), cache))
        };
        open.into_iter().flat_map(of).collect()
    }
}
