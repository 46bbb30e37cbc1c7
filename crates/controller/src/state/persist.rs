//! Records that must survive a restart of the daemon, and their sink with its rate limit.

use crate::state::format::FormatRecord;
use crate::state::management::{Attachment, Creation};
use crate::state::persistent_event::PersistentEventRecord;
use crate::state::reservation::ReservationRecord;
use crate::state::sanitize::SanitizeRecord;
use std::collections::VecDeque;
use std::fmt;

/// State to be persisted. The host's command completes afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PersistentRecord {
    /// State of a format. A running one resumes with the next daemon
    /// ([`Subsystem::resume_format`](crate::Subsystem::resume_format)). The block size of a finished one replaces
    /// that of the configuration.
    Format(FormatRecord),
    /// State of a sanitize operation. A running one resumes with the next daemon
    /// ([`Subsystem::resume_sanitize`](crate::Subsystem::resume_sanitize)).
    Sanitize(SanitizeRecord),
    /// Reservations of these namespaces that persist through power loss, or none. All of them are stored, or
    /// none.
    Reservations(Vec<(u32, Option<ReservationRecord>)>),
    /// Uncorrectable ranges of a namespace in bytes, all of them ([`Subsystem::resume_uncorrectable`](crate::Subsystem::resume_uncorrectable)).
    Uncorrectable { nsid: u32, ranges: Vec<[u64; 2]> },
    /// Namespace that a host creates. The sink also builds it and hands it over before ([`Subsystem::made`](crate::Subsystem::made)).
    /// It reads as zeros.
    Creation(Creation),
    /// Namespaces that a host has deleted. Their data goes with them.
    Deletion(Vec<u32>),
    /// End of a deletion: nothing of the drive holds the data any more. No host waits for it.
    Removal,
    /// Controllers to which a namespace is attached.
    Attachment { nsid: u32, attachment: Attachment },
    /// Persistent events of the drive ([`Subsystem::resume_persistent_events`](crate::Subsystem::resume_persistent_events)). No host waits for them.
    PersistentEvents(PersistentEventRecord),
    /// Namespaces whose acknowledged writes may be lost ([`Subsystem::resume_losses`](crate::Subsystem::resume_losses)). No host waits for
    /// them.
    Losses(Vec<u32>),
}

/// Average time between two records.
pub const PERSIST_INTERVAL_NS: u64 = 250_000_000;

/// Records without a pause.
pub const PERSIST_BURST: u64 = 64;

/// Sink of the records, with its rate limit.
#[derive(Default)]
pub(crate) struct Persister {
    pub(crate) sink: Option<Box<dyn FnMut(PersistentRecord) + Send>>,
    /// Records that wait for the rate limit, at most one of each kind, since the next one is not started
    /// before.
    pub(crate) delayed: VecDeque<PersistentRecord>,
    /// Time at which all records so far would be stored, with the interval between any two.
    pub(crate) paced_ns: u64,
}

impl Persister {
    /// Counts a record if the rate limit permits one now.
    pub(crate) fn admit(&mut self, now_ns: u64) -> bool {
        let admits = now_ns >= self.next_ns();
        if admits {
            self.paced_ns = self.paced_ns.max(now_ns).saturating_add(PERSIST_INTERVAL_NS);
        }
        admits
    }

    /// Returns the time of the next permitted record.
    fn next_ns(&self) -> u64 {
        self.paced_ns.saturating_sub((PERSIST_BURST - 1) * PERSIST_INTERVAL_NS)
    }

    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        (!self.delayed.is_empty()).then(|| self.next_ns())
    }
}

impl fmt::Debug for Persister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sink, delayed, paced_ns } = self;
        let sink = sink.is_some();
        f.debug_struct("Persister")
            .field("sink", &sink)
            .field("delayed", delayed)
            .field("paced_ns", paced_ns)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests for a crash that fuzzing found.
    #[test]
    fn the_pace_ends_where_the_clock_does() {
        let mut persister = Persister::default();
        assert!((0..2 * PERSIST_BURST).all(|_| persister.admit(u64::MAX)));
    }
}
