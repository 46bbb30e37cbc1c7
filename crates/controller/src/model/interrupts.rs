//! Interrupts of a controller: vectors with new completions, and coalescing.

use crate::model::Controller;

impl Controller {
    /// Calls `signal` for each vector with completions that are not signalled yet.
    #[inline]
    pub fn take_vectors(&mut self, signal: impl FnMut(u16)) {
        self.interrupts.take(signal);
    }

    /// Stores the time of a turn that begins, for completions that may wait for others.
    #[inline]
    pub(crate) fn begin_interrupts(&mut self, now_ns: u64) {
        self.interrupts.begin_turn(now_ns);
    }

    /// Notes a completion that was written to a queue of this vector.
    #[inline]
    pub(crate) fn signal(&mut self, vector: u16) {
        self.interrupts.insert(vector);
    }

    /// Notes a completion outside of a turn.
    pub(crate) fn signal_late(&mut self, vector: u16) {
        self.interrupts.insert(vector);
        self.make_due(self.interrupts.deadline_ns().unwrap_or(u64::MAX));
    }

    /// Signals the vectors whose completions have waited for others long enough.
    pub(crate) fn expire_interrupts(&mut self, now_ns: u64) {
        self.interrupts.expire(now_ns);
    }

    /// Signals all vectors whose completions wait for others.
    pub(crate) fn release_interrupts(&mut self) {
        self.interrupts.release();
    }

    /// Applies the feature Interrupt Coalescing.
    pub(crate) fn set_interrupt_coalescing(&mut self, value: u32, now_ns: u64) {
        self.features.interrupt_coalescing = value & 0xffff;
        self.interrupts.configure(&self.features, now_ns);
    }

    /// Applies the feature Interrupt Vector Configuration to a vector.
    pub(crate) fn disable_coalescing(&mut self, vector: u16, is_disabled: bool, now_ns: u64) {
        self.features.disable_coalescing(vector, is_disabled);
        self.interrupts.configure(&self.features, now_ns);
    }
}
