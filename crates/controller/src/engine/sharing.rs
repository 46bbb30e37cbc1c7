//! Turns of a subsystem that its controllers share.

use crate::engine::sync;
use crate::jobs::erase;
use crate::model::Subsystem;
use sluice_command::Origin;
use sluice_memory::Space;
use sluice_nvme::opcode;

impl Subsystem {
    /// Returns whether commands are on their way to their completion queues.
    pub fn has_work(&self) -> bool {
        self.has_completions()
    }

    /// Expires timers and [polls](Self::poll) layers, whichever controller has its turn. Returns the amount of
    /// work.
    #[inline]
    pub(crate) fn run_timers_and_layers(&mut self, controller: u8, space: &Space, now_ns: u64) -> usize {
        if self.is_due(now_ns) {
            self.expire(now_ns);
        }
        if self.shares_memory() { self.poll(controller, space, now_ns) } else { 0 }
    }

    /// Runs a turn without a controller.
    pub fn turn(&mut self, space: &Space, now_ns: u64) -> usize {
        let mut work = self.run_timers_and_layers(Origin::SUBSYSTEM, space, now_ns);
        while self.has_completions() || self.poll_orders(now_ns) {
            self.run_completions(now_ns);
            let mut finished = self.take_finished();
            work += finished.len();
            for command in finished.drain(..) {
                let origin = self.slab().slot(&command).origin;
                match origin.controller {
                    Origin::SUBSYSTEM if origin.opcode == opcode::io::FLUSH => {
                        sync::ended(self, command, now_ns)
                    }
                    Origin::SUBSYSTEM => {
                        let ended = self.end_internal(command);
                        erase::next(self, ended, now_ns);
                    }
                    number => self.mail(number, command),
                }
            }
            self.put_back_list(finished);
        }
        // A layer that only received an answer may have set a timer, and counts as no work.
        self.note_deadline();
        work
    }

    #[cold]
    pub(crate) fn expire(&mut self, now_ns: u64) {
        self.expire_layers(now_ns);
        self.end_hold(now_ns);
        if !self.is_held() {
            erase::advance(self, now_ns);
        }
        self.advance_management(now_ns);
        self.persist_events(now_ns);
        self.persist_delayed(now_ns);
        self.note_deadline();
    }
}
