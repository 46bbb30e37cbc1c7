//! A clock that only moves on request.

/// A monotonic clock in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct SimClock {
    now_ns: u64,
}

impl SimClock {
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub fn advance(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    /// Advances to this time, unless it is past already.
    pub fn advance_to(&mut self, ns: u64) {
        self.now_ns = self.now_ns.max(ns);
    }
}
