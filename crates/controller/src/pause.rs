//! A controller at rest: for a front-end that wants to part from its host without losing completions.

use crate::Controller;
use crate::erase::Erasure;
use crate::mailbox::Notice;
use crate::queue::Service;
use crate::remote_queues::RecallCause;
use crate::subsystem::Subsystem;
use sluice_command::{Command, Slot};
use sluice_nvme::opcode::admin;

impl Controller {
    /// The next turn takes no entry out of any queue there is now; commands in flight go on, complete and
    /// interrupt. Whoever wants that to last says it before every turn, since the host may create queues
    /// in between.
    ///
    /// To the queues it is as if their memory were gone: there is no way back but a reset.
    pub fn pause(&mut self, subsystem: &mut Subsystem) {
        self.interrupts.release();
        self.remote_groups.recall(RecallCause::End);
        subsystem.erasure.iter_mut().for_each(|erasure| erasure.set_paused(true));
        self.sqs.iter_mut().flatten().for_each(|queue| queue.service = Service::Over);
    }

    /// It takes nothing any more, no Keep Alive either, and still owes its host something.
    pub(crate) fn owes_completions(&self, subsystem: &Subsystem) -> bool {
        let is_paused = self.sqs[0].as_ref().is_some_and(|queue| queue.service == Service::Over);
        is_paused && self.unfinished(subsystem) > 0
    }

    /// Commands that were taken and have no completion entry yet, be it for the want of their queue's memory.
    /// Asynchronous Event Requests do not count: they wait for something that may never happen (Base 5.2). Nor does
    /// a Format NVM, which rests between any two of its pieces.
    pub fn unfinished(&self, subsystem: &Subsystem) -> u32 {
        let is_own = |command: &Command| subsystem.slab.slot(command).origin.controller == self.number;
        let waiting = subsystem.erasure.as_ref().and_then(Erasure::command).is_some_and(is_own);
        self.in_flight(subsystem) - self.events.outstanding() - u32::from(waiting) + self.unmapped.held()
    }
}

impl Subsystem {
    /// Takes no entry out of any queue until [`go_on`](Self::go_on), or until it is `until_ns`: hosts have
    /// little patience. Commands in flight go on; it [is quiet](Self::is_quiet) when they are done.
    pub fn hold(&mut self, until_ns: u64) {
        self.held_until_ns = Some(until_ns);
        self.next_deadline_ns = self.next_deadline_ns.min(until_ns);
    }

    /// Entries are taken again.
    pub fn resume(&mut self) {
        self.held_until_ns = None;
        // What rested has a deadline again.
        self.next_deadline_ns = 0;
        self.mailboxes.announce(Notice::Resumed);
    }

    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.held_until_ns.is_some()
    }

    /// Nobody came to end the hold.
    pub(crate) fn end_hold(&mut self, now_ns: u64) {
        if self.held_until_ns.take_if(|until_ns| *until_ns <= now_ns).is_some() {
            tracing::warn!("a drive was held for as long as hosts can wait, and goes on");
            self.mailboxes.announce(Notice::Resumed);
        }
    }

    /// No command is in flight but those that wait for what may never happen: requests for events, a Format
    /// NVM between any two of its pieces, and a Sanitize until it is remembered.
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
