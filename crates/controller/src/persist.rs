//! What a controller wants remembered over a restart of the daemon, by somebody who may block.
//!
//! A host can want it over and over, and each time a file is written: so there is a limit to how often that is.

use crate::erase::Purpose;
use crate::{
    Attachment, Creation, FormatRecord, PersistentEventRecord, ReservationRecord, SanitizeRecord, Subsystem,
    format, sanitize, uncorrectable,
};
use std::collections::VecDeque;
use std::fmt;

/// What is to be remembered. The host is told when it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PersistentRecord {
    /// How it stands with a format: one that runs begins again with the next daemon
    /// ([`Subsystem::resume_format`]); once it is done, the namespace has blocks of this size, whatever the
    /// operator said.
    Format(FormatRecord),
    /// How it stands with a sanitize operation: one that runs begins again with the next daemon
    /// ([`Subsystem::resume_sanitize`]).
    Sanitize(SanitizeRecord),
    /// These namespaces have other reservations that persist through power loss, or none any more: all of them, or
    /// none of them.
    Reservations(Vec<(u32, Option<ReservationRecord>)>),
    /// All blocks of a namespace that were marked by Write Uncorrectable, as ranges of bytes
    /// ([`Subsystem::resume_uncorrectable`]).
    Uncorrectable { nsid: u32, ranges: Vec<[u64; 2]> },
    /// A host creates a namespace: whoever remembers it builds it, too, and hands it over before
    /// ([`Subsystem::made`]). What it reads as is zeros.
    Creation(Creation),
    /// A host has deleted these namespaces. Their data goes when they do.
    Deletion(Vec<u32>),
    /// They have gone: nothing of the drive holds their data any more. No host waits for it.
    Removal,
    /// To which controllers a namespace is attached.
    Attachment { nsid: u32, attachment: Attachment },
    /// What has happened to the drive ([`Subsystem::resume_history`]). No host waits for it.
    PersistentEvents(PersistentEventRecord),
    /// Acknowledged writes of these namespaces may be lost ([`Subsystem::resume_losses`]). No host waits for it.
    Losses(Vec<u32>),
}

/// How often something is remembered in the long run.
pub const PERSIST_INTERVAL_NS: u64 = 250_000_000;

/// How often without a pause.
pub const PERSIST_BURST: u64 = 64;

/// Who remembers.
#[derive(Default)]
pub(crate) struct Persister {
    sink: Option<Box<dyn FnMut(PersistentRecord) + Send>>,
    /// What waits until it is time: one of each kind at most, since the next is not begun before.
    delayed: VecDeque<PersistentRecord>,
    /// When all that was remembered would be, with the interval between any two.
    paced_ns: u64,
}

impl Persister {
    /// Counts one, if there may be one now.
    fn admit(&mut self, now_ns: u64) -> bool {
        let admits = now_ns >= self.next_ns();
        if admits {
            self.paced_ns = self.paced_ns.max(now_ns).saturating_add(PERSIST_INTERVAL_NS);
        }
        admits
    }

    /// When there may be one.
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

impl Subsystem {
    /// Is called with what to remember, and answers with [`kept`](Self::kept) some time after it has returned. At
    /// most one answer of each kind is awaited. Without it everything counts as remembered at once.
    pub fn on_persist(&mut self, sink: impl FnMut(PersistentRecord) + Send + 'static) {
        self.persister = Persister { sink: Some(Box::new(sink)), ..Persister::default() };
    }

    pub(crate) fn persist(&mut self, what: PersistentRecord, now_ns: u64) {
        let persister = &mut self.persister;
        let Some(sink) = &mut persister.sink else { return self.record_persisted(what, true, now_ns) };
        // The Persistent Event Log has a pace of its own.
        if matches!(what, PersistentRecord::PersistentEvents(_)) {
            return sink(what);
        }
        persister.delayed.push_back(what);
        self.persist_delayed(now_ns);
        self.next_deadline_ns = self.next_deadline_ns.min(self.persister.deadline_ns().unwrap_or(u64::MAX));
    }

    /// Has remembered what it is time for.
    pub(crate) fn persist_delayed(&mut self, now_ns: u64) {
        let persister = &mut self.persister;
        while !persister.delayed.is_empty()
            && persister.admit(now_ns)
            && let (Some(what), Some(sink)) = (persister.delayed.pop_front(), &mut persister.sink)
        {
            sink(what);
        }
    }

    /// What was to be remembered is, or `well` is false.
    pub fn persisted(&mut self, what: PersistentRecord, well: bool, now_ns: u64) {
        self.record_persisted(what, well, now_ns);
        self.run_orders(now_ns);
    }

    fn record_persisted(&mut self, what: PersistentRecord, well: bool, now_ns: u64) {
        if matches!(what, PersistentRecord::Uncorrectable { .. }) {
            uncorrectable::persisted(self, well, now_ns);
        }
        match (self.erasure.as_ref().map(|erasure| erasure.purpose), what) {
            (Some(Purpose::Format { nsid, block_size }), PersistentRecord::Format(record))
                if (record.nsid, record.block_size) == (nsid, block_size) =>
            {
                format::persisted(self, record, well, now_ns);
            }
            (Some(Purpose::Sanitize(_)), PersistentRecord::Sanitize(record)) => {
                sanitize::persisted(self, record, well, now_ns);
            }
            (_, PersistentRecord::PersistentEvents(_)) => self.persistent_events_persisted(),
            (_, PersistentRecord::Reservations(_)) => self.reservations_persisted(well),
            (
                _,
                what @ (PersistentRecord::Creation(_)
                | PersistentRecord::Deletion(_)
                | PersistentRecord::Attachment { .. }),
            ) => {
                self.management_persisted(&what, well, now_ns);
            }
            _ => {}
        }
        self.next_deadline_ns = self.next_deadline_ns.min(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by fuzzing.
    #[test]
    fn the_pace_ends_where_the_clock_does() {
        let mut persister = Persister::default();
        assert!((0..2 * PERSIST_BURST).all(|_| persister.admit(u64::MAX)));
    }
}
