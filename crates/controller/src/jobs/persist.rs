//! State that must survive a restart of the daemon. The controller hands it to a sink that may block.
//!
//! A host can cause such a change again and again, and each one writes a file. So the rate is limited.

use crate::jobs::{format, sanitize, uncorrectable};
use crate::model::Subsystem;
use crate::state::erasure::Purpose;
use crate::state::persist::{PersistentRecord, Persister};

impl Subsystem {
    /// Sets the sink. It answers by [`persisted`](Self::persisted) some time after it has returned. At most
    /// one answer of each kind is pending. Without a sink all records count as persisted at once.
    pub fn on_persist(&mut self, sink: impl FnMut(PersistentRecord) + Send + 'static) {
        self.jobs_mut().persister = Persister { sink: Some(Box::new(sink)), ..Persister::default() };
    }

    pub(crate) fn persist(&mut self, what: PersistentRecord, now_ns: u64) {
        let persister = &mut self.jobs_mut().persister;
        let Some(sink) = &mut persister.sink else { return self.record_persisted(what, true, now_ns) };
        // The Persistent Event Log has a rate limit of its own.
        if matches!(what, PersistentRecord::PersistentEvents(_)) {
            return sink(what);
        }
        persister.delayed.push_back(what);
        self.persist_delayed(now_ns);
        self.make_due(self.jobs().persister.deadline_ns().unwrap_or(u64::MAX));
    }

    /// Hands over the delayed records that the rate limit permits.
    pub(crate) fn persist_delayed(&mut self, now_ns: u64) {
        let persister = &mut self.jobs_mut().persister;
        while !persister.delayed.is_empty()
            && persister.admit(now_ns)
            && let (Some(what), Some(sink)) = (persister.delayed.pop_front(), &mut persister.sink)
        {
            sink(what);
        }
    }

    /// Finishes a record; `well` is whether it was persisted.
    pub fn persisted(&mut self, what: PersistentRecord, well: bool, now_ns: u64) {
        self.record_persisted(what, well, now_ns);
        self.run_orders(now_ns);
    }

    fn record_persisted(&mut self, what: PersistentRecord, well: bool, now_ns: u64) {
        if matches!(what, PersistentRecord::Uncorrectable { .. }) {
            uncorrectable::persisted(self, well, now_ns);
        }
        match (self.jobs().erasure.as_ref().map(|erasure| erasure.purpose), what) {
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
        self.make_due(now_ns);
    }
}
