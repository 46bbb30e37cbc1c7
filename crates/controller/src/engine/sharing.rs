//! Turns of a subsystem that its controllers share, and commands that come back in the turn of another controller.

use crate::engine::sync;
use crate::jobs::erase;
use crate::model::Subsystem;
use sluice_command::{Command, Origin, TURN_BYTES};
use sluice_memory::Space;
use sluice_nvme::opcode;

impl Subsystem {
    /// Returns whether commands are on their way to their completion queues.
    pub fn has_work(&self) -> bool {
        self.has_completions()
    }

    /// Moves finished commands of other controllers to their mailboxes.
    #[inline]
    pub(crate) fn deliver(&mut self, number: u8, finished: &mut Vec<Command>) {
        // The others have none in flight.
        if self.is_alone(number) {
            return;
        }
        let Self { slab, mailboxes, .. } = self;
        let is_others = |command: &mut Command| {
            let of = slab.slot(command).origin.controller;
            of != number && of != Origin::SUBSYSTEM
        };
        for command in finished.extract_if(.., is_others) {
            mailboxes.put(slab.slot(&command).origin.controller, command);
        }
    }

    /// Expires timers and [polls](Self::poll) layers, whichever controller has its turn. Returns the amount of
    /// work.
    #[inline]
    pub(crate) fn run_timers_and_layers(&mut self, controller: u8, space: &Space, now_ns: u64) -> usize {
        if now_ns >= self.next_deadline_ns {
            self.expire(now_ns);
        }
        if self.shares_memory() { self.poll(controller, space, now_ns) } else { 0 }
    }

    /// Runs a turn without a controller.
    pub fn turn(&mut self, space: &Space, now_ns: u64) -> usize {
        let mut work = self.run_timers_and_layers(Origin::SUBSYSTEM, space, now_ns);
        while self.has_completions() || self.poll_orders(now_ns) {
            self.run_completions(now_ns);
            let mut finished = std::mem::take(&mut self.done);
            work += finished.len();
            for command in finished.drain(..) {
                let origin = self.slab.slot(&command).origin;
                match origin.controller {
                    Origin::SUBSYSTEM if origin.opcode == opcode::io::FLUSH => {
                        sync::ended(self, command, now_ns)
                    }
                    Origin::SUBSYSTEM => {
                        let ended = self.end_internal(command);
                        erase::next(self, ended, now_ns);
                    }
                    number => self.mailboxes.put(number, command),
                }
            }
            self.done.append(&mut finished);
        }
        // A layer that only received an answer may have set a timer, and counts as no work.
        self.note_deadline();
        work
    }

    /// Starts to count the bytes of a turn, which ends at about [`TURN_BYTES`].
    #[inline]
    pub(crate) fn begin_moving(&mut self) {
        self.moved_before = self.health.bytes();
    }

    #[inline]
    pub(crate) fn has_moved_enough(&self) -> bool {
        self.health.bytes().wrapping_sub(self.moved_before) >= TURN_BYTES
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
