//! Pauses: for a front-end that disconnects its host without losing completions.

use crate::model::{Controller, Subsystem};
use crate::state::queue::Service;
use crate::state::remote_queues::cause::RecallCause;

impl Controller {
    /// Takes no more entries out of the existing queues; commands in flight go on, complete and interrupt.
    /// Call it before every turn of a pause, since the host may create queues in between.
    ///
    /// The queues behave as if their memory were gone: only a reset ends this.
    pub fn pause(&mut self, subsystem: &mut Subsystem) {
        self.release_interrupts();
        self.remote_groups.recall(RecallCause::End);
        subsystem.jobs_mut().erasure.iter_mut().for_each(|erasure| erasure.set_paused(true));
        self.sqs.iter_mut().flatten().for_each(|queue| queue.service = Service::Over);
    }
}
