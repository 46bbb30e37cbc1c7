//! Turn of a controller: new entries in, finished commands out.

use crate::engine::{client_dma, fused, patience};
use crate::jobs::self_test;
use crate::model::{Controller, Subsystem};
use crate::state::limits::FETCH_MAX;
use sluice_memory::Space;
use sluice_nvme::Status;

impl Controller {
    /// Looks at every queue once: takes new entries, runs their commands as far as they go, and writes the
    /// completions of finished ones. Returns the number of commands taken or completed.
    pub fn turn(&mut self, subsystem: &mut Subsystem, space: &Space, now_ns: u64) -> usize {
        if self.is_draining() || self.is_shutting_down() {
            self.advance_state(subsystem, space, now_ns);
        }
        self.begin_interrupts(now_ns);
        if subsystem.is_held() {
            // The host's Keep Alive commands are not taken now.
            self.features.note_activity(now_ns);
        }
        let mut work = subsystem.run_timers_and_layers(self.number(), space, now_ns);
        if subsystem.has_mail(self.number()) {
            self.drain_mailbox(subsystem, now_ns);
        }
        if self.is_due(now_ns) {
            self.expire(subsystem, now_ns);
        }
        if self.client_dma.is_some() {
            work += client_dma::advance(self, subsystem, space, now_ns);
        }
        if subsystem.has_held_work() {
            work += fused::advance(self, subsystem, space, now_ns);
        }
        let has_completions = subsystem.has_completions();
        if has_completions {
            subsystem.begin_moving();
            work += self.run_completions(subsystem, now_ns);
        }
        if self.serves() {
            if !subsystem.is_held() {
                work += self.fetch_from_queues(subsystem, space, now_ns);
            }
            if self.has_deliverable_event() {
                self.deliver_events(subsystem);
            }
        }
        if subsystem.poll_orders(now_ns) {
            work += self.run_completions(subsystem, now_ns);
        }
        if self.client_dma.is_some() {
            self.send_completions();
        }
        // Timers may have been set.
        if has_completions || work > 0 {
            self.note_deadline(subsystem);
            subsystem.note_deadline();
        }
        work
    }

    /// Fetches from the queues in the order that the host chose. One loop serves both orders, so that the
    /// code is there only once.
    #[inline]
    fn fetch_from_queues(&mut self, subsystem: &mut Subsystem, space: &Space, now_ns: u64) -> usize {
        let by_priority = self.is_weighted();
        if by_priority {
            self.begin_priorities();
        }
        let (mut work, mut taken) = (0, 0);
        subsystem.begin_moving();
        let count = self.served();
        let mut index = self.rotate();
        let mut left = count;
        loop {
            let (id, most) = if by_priority {
                let Some(next) = self.next_by_priority(taken as u32) else { break };
                next
            } else if left > 0
                && let Some(id) = self.served_at(index)
            {
                left -= 1;
                (id, FETCH_MAX)
            } else {
                // A command may have deleted queues since the loop began.
                break;
            };
            taken = self.fetch(subsystem, id, most, space, now_ns);
            if taken > 0 {
                if id != 0 {
                    subsystem.health_mut().busy(now_ns);
                    self.watch_commands(subsystem, now_ns);
                }
                work += taken + self.run_completions(subsystem, now_ns);
                if subsystem.has_moved_enough() {
                    // The next turn begins with the queue after this one.
                    self.rotate_behind(index);
                    if by_priority {
                        self.end_priorities(taken as u32);
                    }
                    break;
                }
            }
            index = if index + 1 < count { index + 1 } else { 0 };
        }
        work
    }

    /// Completes Asynchronous Event Requests that have an event to report.
    #[cold]
    fn deliver_events(&mut self, subsystem: &mut Subsystem) {
        while let Some((command, dw0)) = self.next_event() {
            self.finish(subsystem, command, Status::SUCCESS, dw0);
        }
    }

    /// Handles timers of self-tests, interrupts, unmapped queues, and Keep Alive.
    #[cold]
    fn expire(&mut self, subsystem: &mut Subsystem, now_ns: u64) {
        if !subsystem.is_held() {
            self_test::advance(self, subsystem, now_ns);
        }
        self.expire_interrupts(now_ns);
        self.check_unmapped_queues(now_ns);
        patience::expire(self, subsystem, now_ns);
        if self.owes_completions(subsystem) {
            self.features.note_activity(now_ns);
        }
        self.note_deadline(subsystem);
        if self.features.keep_alive_expired(now_ns) {
            self.keep_alive_expired();
        }
    }
}
