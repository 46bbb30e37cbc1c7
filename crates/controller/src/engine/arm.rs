//! Sleep of a controller: doorbell requests and the last look.

use crate::engine::{abandoned, fused};
use crate::model::{Controller, Subsystem};

impl Controller {
    /// Requests doorbell writes from the host before the task sleeps, and looks once more. Returns whether
    /// there is work after all.
    pub fn arm(&mut self, subsystem: &Subsystem) -> bool {
        let has_mail = subsystem.has_mail(self.number());
        if subsystem.has_completions() || has_mail || self.can_advance_state(subsystem) {
            return true;
        }
        if subsystem.has_held_work() && self.can_advance(subsystem) {
            return true;
        }
        // In fatal status no queue is served, and a write of the host changes nothing.
        if !self.serves() {
            return false;
        }
        if self.has_client_dma_work() || self.can_deliver_event() {
            return true;
        }
        self.request_rings();
        // The last entry may prove that the first half of a fused operation waits in vain.
        subsystem.has_held_work() && self.can_advance(subsystem)
            || !subsystem.is_held() && self.has_fetchable(subsystem)
    }

    /// Returns whether a turn could continue held commands.
    fn can_advance(&self, subsystem: &Subsystem) -> bool {
        fused::can_advance(self, subsystem) || abandoned::can_advance(self, subsystem)
    }
}
