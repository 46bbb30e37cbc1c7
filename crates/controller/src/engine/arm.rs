//! Sleep of a controller: doorbell requests and the last look.

use crate::engine::{abandoned, fused};
use crate::model::{Controller, Subsystem};
use crate::state::queue::Service;

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
        if !self.registers.is_ready() || self.registers.is_fatal() {
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

    /// Requests a doorbell write for the next entry of each queue, and for a free slot of a completion queue
    /// that may be full.
    fn request_rings(&self) {
        let sqs = || self.active.iter().filter_map(|&id| self.sqs[usize::from(id)].as_ref());
        let cqs = sqs().filter_map(|queue| self.cqs[usize::from(queue.cq)].as_ref());
        self.doorbells
            .request_rings(sqs().map(|queue| (queue.id, queue.head)), cqs.map(|cq| (cq.id, cq.head)));
    }

    /// Returns whether there are an event, a request for it, and a completion slot. Until the host releases a
    /// slot the task may sleep.
    fn can_deliver_event(&mut self) -> bool {
        let Self { cqs, doorbells, events, .. } = self;
        events.is_deliverable() && cqs[0].as_mut().is_some_and(|cq| cq.room(1, doorbells) > 0)
    }

    /// Returns whether some queue has an entry that could be fetched now.
    fn has_fetchable(&mut self, subsystem: &Subsystem) -> bool {
        let has_room = subsystem.room(self.number()) > 0;
        let Self { active, sqs, cqs, doorbells, remote_groups, .. } = self;
        has_room
            && active.iter().any(|&id| {
                // Entries that wait for all queues need no polling: the return of the queues wakes the task.
                if id == 0 && remote_groups.waits() {
                    return false;
                }
                let Some(queue) = &sqs[usize::from(id)] else { return false };
                let tail = doorbells.sq_tail(id);
                tail != queue.head
                    && queue.service == Service::On
                    && !queue.deleting
                    && cqs[usize::from(queue.cq)]
                        .as_mut()
                        .is_some_and(|cq| cq.service == Service::On && cq.room(1, doorbells) > 0)
            })
    }
}
