//! Shutdown of a controller: the namespaces that it has still to flush.

use crate::model::{Controller, Subsystem};

impl Controller {
    /// Begins the shutdown that CC.SHN requests.
    pub(crate) fn start_shutdown(&mut self) {
        self.registers.shutdown_begins();
        self.unflushed = None;
    }

    /// Reports the end of a shutdown.
    pub(crate) fn finish_shutdown(&mut self) {
        self.registers.shutdown_complete();
    }

    /// Returns the namespaces whose caches are flushed next, as many as there are slots for, and whether they
    /// are the last ones.
    pub(crate) fn next_to_flush(&mut self, subsystem: &Subsystem) -> (Vec<u32>, bool) {
        let unflushed = self.unflushed.get_or_insert_with(|| subsystem.cached_namespaces().collect());
        let room = (subsystem.room(self.number) as usize).min(unflushed.len());
        (unflushed.drain(..room).collect(), unflushed.is_empty())
    }
}
