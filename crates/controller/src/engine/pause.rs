//! Pauses: for a front-end that disconnects its host without losing completions.

use crate::model::{Controller, Subsystem};
use crate::state::erasure::Erasure;
use crate::state::mailbox::Notice;
use crate::state::queue::Service;
use crate::state::remote_queues::cause::RecallCause;
use sluice_command::{Command, Slot};
use sluice_nvme::opcode::admin;

impl Controller {
    /// Takes no more entries out of the existing queues; commands in flight go on, complete and interrupt.
    /// Call it before every turn of a pause, since the host may create queues in between.
    ///
    /// The queues behave as if their memory were gone: only a reset ends this.
    pub fn pause(&mut self, subsystem: &mut Subsystem) {
        self.interrupts.release();
        self.remote_groups.recall(RecallCause::End);
        subsystem.erasure.iter_mut().for_each(|erasure| erasure.set_paused(true));
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
        let is_own = |command: &Command| subsystem.slab.slot(command).origin.controller == self.number;
        let waiting = subsystem.erasure.as_ref().and_then(Erasure::command).is_some_and(is_own);
        self.in_flight(subsystem) - self.events.outstanding() - u32::from(waiting) + self.unmapped.held()
    }
}

impl Subsystem {
    /// Takes no entry out of any queue until [`resume`](Self::resume), or until `until_ns`, since hosts time
    /// out soon. Commands in flight go on; the drive [is quiet](Self::is_quiet) when they are done.
    pub fn hold(&mut self, until_ns: u64) {
        self.held_until_ns = Some(until_ns);
        self.next_deadline_ns = self.next_deadline_ns.min(until_ns);
    }

    /// Ends a hold.
    pub fn resume(&mut self) {
        self.held_until_ns = None;
        // Timers that were off during the hold have a deadline again.
        self.next_deadline_ns = 0;
        self.mailboxes.announce(Notice::Resumed);
    }

    /// Ends a hold that has lasted too long.
    pub(crate) fn end_hold(&mut self, now_ns: u64) {
        if self.held_until_ns.take_if(|until_ns| *until_ns <= now_ns).is_some() {
            tracing::warn!("a drive was held for as long as hosts can wait, and goes on");
            self.mailboxes.announce(Notice::Resumed);
        }
    }

    /// Returns whether all commands in flight are ones that may wait forever: Asynchronous Event Requests, a
    /// Format NVM between any two of its chunks, and a Sanitize until it is persisted.
    pub fn is_quiet(&self) -> bool {
        let waits = |slot: &&Slot| {
            slot.origin.sq == 0
                && matches!(
                    slot.origin.opcode,
                    admin::ASYNC_EVENT_REQUEST | admin::FORMAT_NVM | admin::SANITIZE
                )
        };
        self.slab.in_flight() == self.slab.live().filter(waits).count() as u32
    }
}
