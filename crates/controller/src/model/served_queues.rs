//! Queues that a controller serves: their order, and the looks before and after a sleep.

use crate::model::{Controller, Subsystem};
use crate::state::queue::Service;

/// Queues that are prepared for a turn, the admin queue among them. The lines of more queues would leave the
/// cache before they are used.
const QUEUES_AHEAD: usize = 5;

/// Entries of each prepared queue. The others of a batch are prefetched together while the first are taken.
const ENTRIES_AHEAD: u32 = 2;

impl Controller {
    /// Returns the number of submission queues that are served.
    #[inline]
    pub(crate) fn served(&self) -> usize {
        self.active.len()
    }

    /// Returns the submission queue at this place of the order of service.
    #[inline]
    pub(crate) fn served_at(&self, index: usize) -> Option<u16> {
        self.active.get(index).copied()
    }

    /// Returns whether a submission queue is served.
    pub(crate) fn is_served(&self, id: u16) -> bool {
        self.active.contains(&id)
    }

    /// Takes no more entries from these queues until they are served [again](Self::serve_again).
    pub(crate) fn stop_serving(&mut self, sqs: &[u16]) {
        self.active.retain(|id| !sqs.contains(id));
    }

    /// Serves queues again. A reset may have removed or replaced them.
    pub(crate) fn serve_again(&mut self, sqs: Vec<u16>) {
        for id in sqs {
            if self.sqs[usize::from(id)].is_some() && !self.is_served(id) {
                self.active.push(id);
            }
        }
    }

    /// Takes no more entries. Commands in flight go on.
    pub fn stop_taking(&mut self) {
        self.active.clear();
    }

    /// Prefetches the doorbells and entries that the next turn looks at first. Another core wrote them.
    pub fn look_ahead(&self) {
        for &id in self.active.iter().take(QUEUES_AHEAD) {
            if let Some(sq) = &self.sqs[usize::from(id)] {
                self.doorbells.prefetch(id);
                sq.prefetch(0, ENTRIES_AHEAD.min(sq.size));
            }
        }
    }

    /// Requests a doorbell write for the next entry of each queue, and for a free slot of a completion queue
    /// that may be full.
    #[inline]
    pub(crate) fn request_rings(&self) {
        let sqs = || self.active.iter().filter_map(|&id| self.sqs[usize::from(id)].as_ref());
        let cqs = sqs().filter_map(|queue| self.cqs[usize::from(queue.cq)].as_ref());
        self.doorbells
            .request_rings(sqs().map(|queue| (queue.id, queue.head)), cqs.map(|cq| (cq.id, cq.head)));
    }

    /// Returns whether some queue has an entry that could be fetched now.
    #[inline]
    pub(crate) fn has_fetchable(&mut self, subsystem: &Subsystem) -> bool {
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
                        .is_some_and(|cq| cq.service.takes() && cq.room(1, doorbells) > 0)
            })
    }
}
