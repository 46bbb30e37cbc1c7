//! Persisting of the Persistent Event Log.

use crate::model::Subsystem;
use crate::state::persist::PersistentRecord;
use crate::state::persistent_event::PAUSE_NS;

impl Subsystem {
    /// Persists the events if it is time.
    pub(crate) fn persist_events(&mut self, now_ns: u64) {
        if self.persistent_events.deadline_ns().is_none_or(|due_ns| due_ns > now_ns) {
            return;
        }
        self.persistent_events.due_ns = None;
        self.persistent_events.awaits = true;
        self.persistent_events.rests_until_ns = now_ns.saturating_add(PAUSE_NS);
        let record = self.persistent_events.record();
        self.persist(PersistentRecord::PersistentEvents(record), now_ns);
    }

    /// Finishes the persisting. After a failure the next event causes another attempt.
    pub(crate) fn persistent_events_persisted(&mut self) {
        self.persistent_events.awaits = false;
    }
}
