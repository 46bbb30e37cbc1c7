//! Interrupts: vectors with new completions, and the time to signal them.
//!
//! By default there is one interrupt for each queue and turn. With Interrupt Coalescing (Base 5.27.1.6) the
//! host sets the number of completions for one interrupt, and the time that the first of them may wait.

use crate::state::features::Features;
use crate::state::limits::IO_QUEUES_MAX;

/// Number of vectors: one for each queue pair.
const VECTORS: usize = IO_QUEUES_MAX as usize + 1;

/// Unit of the aggregation time.
const TIME_UNIT_NS: u64 = 100_000;

/// Interrupts on their way to the front-end.
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    /// Bit per vector.
    due: [u64; VECTORS.div_ceil(64)],
    /// Held-back interrupts; none while coalescing is off.
    coalescing: Option<Box<Coalescing>>,
}

#[derive(Debug)]
struct Coalescing {
    /// Number of completions that cause an interrupt.
    threshold: u16,
    /// Time that the first of fewer completions may wait.
    time_ns: u64,
    vectors: [Held; VECTORS],
    /// Earliest time at which a vector is due. It may belong to a vector that was signalled before.
    next_ns: u64,
    now_ns: u64,
}

/// State of one vector.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    exempt: bool,
    completions: u16,
    due_ns: u64,
}

impl Interrupts {
    /// Notes a completion that was written to a queue of this vector.
    #[inline]
    pub(crate) fn insert(&mut self, vector: u16) {
        if self.coalescing.is_none() || self.is_worth_it(vector) {
            self.due[usize::from(vector >> 6)] |= 1 << (vector & 63);
        }
    }

    #[cold]
    fn is_worth_it(&mut self, vector: u16) -> bool {
        self.coalescing.as_mut().is_none_or(|coalescing| coalescing.note(vector))
    }

    /// Calls `signal` for every vector that is due.
    #[inline]
    pub(crate) fn take(&mut self, mut signal: impl FnMut(u16)) {
        for (index, word) in self.due.iter_mut().enumerate() {
            let mut bits = std::mem::take(word);
            while bits != 0 {
                signal((index as u16) << 6 | bits.trailing_zeros() as u16);
                bits &= bits - 1;
            }
        }
    }

    /// Applies the host's features.
    pub(crate) fn configure(&mut self, features: &Features, now_ns: u64) {
        self.release();
        let [threshold, time, ..] = features.interrupt_coalescing.to_le_bytes();
        // With a time of zero, or a threshold of one completion (0's based), no interrupt is held back.
        self.coalescing = (threshold > 0 && time > 0).then(|| {
            let mut vectors = [Held::default(); VECTORS];
            for (vector, held) in (0..).zip(&mut vectors) {
                // Admin completions are not held back.
                held.exempt = vector == 0 || features.coalescing_disabled(vector);
            }
            let (threshold, time_ns) = (u16::from(threshold) + 1, u64::from(time) * TIME_UNIT_NS);
            Box::new(Coalescing { threshold, time_ns, vectors, next_ns: u64::MAX, now_ns })
        });
    }

    /// Returns whether coalescing is on.
    pub(crate) fn are_coalesced(&self) -> bool {
        self.coalescing.is_some()
    }

    /// Stores the time of a turn that begins.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now_ns: u64) {
        if let Some(coalescing) = &mut self.coalescing {
            coalescing.now_ns = now_ns;
        }
    }

    /// Returns the time at which a held-back vector is due.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.coalescing.as_ref().map(|coalescing| coalescing.next_ns).filter(|next_ns| *next_ns != u64::MAX)
    }

    /// Signals the vectors whose time has come.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        if self.deadline_ns().is_some_and(|deadline_ns| deadline_ns <= now_ns) {
            self.release_until(now_ns);
        }
    }

    /// Signals all held-back vectors.
    pub(crate) fn release(&mut self) {
        self.release_until(u64::MAX);
    }

    /// Drops all state of a former host.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    fn release_until(&mut self, until_ns: u64) {
        let Self { due, coalescing: Some(coalescing) } = self else { return };
        coalescing.next_ns = u64::MAX;
        for (vector, held) in
            coalescing.vectors.iter_mut().enumerate().filter(|(_, held)| held.completions > 0)
        {
            if held.due_ns <= until_ns {
                held.completions = 0;
                due[vector >> 6] |= 1 << (vector & 63);
            } else {
                coalescing.next_ns = coalescing.next_ns.min(held.due_ns);
            }
        }
    }
}

impl Coalescing {
    /// Counts another completion, and returns whether an interrupt is due.
    fn note(&mut self, vector: u16) -> bool {
        let held = &mut self.vectors[usize::from(vector)];
        if held.exempt {
            return true;
        }
        if held.completions == 0 {
            held.due_ns = self.now_ns.saturating_add(self.time_ns);
            self.next_ns = self.next_ns.min(held.due_ns);
        }
        held.completions += 1;
        let enough = held.completions >= self.threshold;
        if enough {
            held.completions = 0;
        }
        enough
    }
}
