//! Persisting of the Persistent Event Log.

use crate::model::Subsystem;
use crate::state::persist::PersistentRecord;
use crate::state::persistent_event::PAUSE_NS;

impl Subsystem {
    /// Persists the events if it is time.
    pub(crate) fn persist_events(&mut self, now_ns: u64) {
        if self.jobs().persistent_events.deadline_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        self.jobs_mut().persistent_events.due_ns = None;
        self.jobs_mut().persistent_events.awaits = true;
        self.jobs_mut().persistent_events.rests_until_ns = now_ns.saturating_add(PAUSE_NS);
        let record = self.jobs().persistent_events.record();
        self.persist(PersistentRecord::PersistentEvents(record), now_ns);
    }

    /// Finishes the persisting. After a failure the next event causes another attempt.
    pub(crate) fn persistent_events_persisted(&mut self) {
        self.jobs_mut().persistent_events.awaits = false;
    }
}
