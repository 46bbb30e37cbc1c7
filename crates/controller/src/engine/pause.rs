//! Pauses: for a front-end that disconnects its host without losing completions.

use crate::model::{Controller, Subsystem};
use crate::state::erasure::Erasure;
use crate::state::queue::Service;
use crate::state::remote_queues::cause::RecallCause;
use sluice_command::Command;

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

    /// Returns whether a paused controller, which takes no Keep Alive either, still has commands to complete.
    pub(crate) fn owes_completions(&self, subsystem: &Subsystem) -> bool {
        let is_paused = self.sqs[0].as_ref().is_some_and(|queue| queue.service == Service::Over);
        is_paused && self.unfinished(subsystem) > 0
    }

    /// Returns the number of commands without a completion entry, including completions for unmapped queues.
    /// Asynchronous Event Requests do not count, since their event may never happen (Base 5.2). Nor does a
    /// Format NVM, which pauses between any two of its chunks.
    pub fn unfinished(&self, subsystem: &Subsystem) -> u32 {
        let is_own = |command: &Command| subsystem.slab().slot(command).origin.controller == self.number();
        let waiting = subsystem.jobs().erasure.as_ref().and_then(Erasure::command).is_some_and(is_own);
        self.in_flight(subsystem) - self.event_requests() - u32::from(waiting) + self.held_completions()
    }
}
