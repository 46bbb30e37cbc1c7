//! Counter that one reactor writes and any thread may read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds one. With a single writer a load and a store are enough, without a locked bus.
    #[inline]
    pub(crate) fn increment(&self) {
        self.set(self.get() + 1);
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
