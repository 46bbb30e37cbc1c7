//! Sharing of a subsystem by its controllers: its slots, its turns, and commands that come back in another's
//! turn.

use crate::erase::{self, Erasure};
use crate::reservation::{HostId, KnownAs};
use crate::subsystem::Subsystem;
use crate::sync;
use sluice_command::{Command, Origin, TURN_BYTES};
use sluice_memory::Space;
use sluice_nvme::opcode;
use std::io;

/// Commands that a controller may always have in flight. Asynchronous Event Requests, which may never
/// complete, are among them.
const GUARANTEED: u32 = 8;

impl Subsystem {
    /// Sets the number of controllers that may come. More than one is reported to hosts, since some hosts
    /// look for other paths only then.
    pub fn expect(&mut self, controllers: usize) {
        self.expected = controllers as u32;
        self.divide_slots();
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.expected > 1
    }

    /// Adds a controller and returns its number.
    pub(crate) fn add_controller(&mut self, cntlid: u16) -> io::Result<u8> {
        let number = self.mailboxes.add(cntlid).ok_or(io::ErrorKind::QuotaExceeded)?;
        self.set_host_name(number, KnownAs::Socket(cntlid));
        Ok(number)
    }

    /// Removes a controller that has no command in flight.
    pub(crate) fn remove_controller(&mut self, number: u8) {
        self.set_host(number, HostId::Unnamed(number));
        self.set_enabled(number, false);
        self.mailboxes.remove(number);
        self.detach_all(number);
    }

    /// Notes that a controller was enabled or disabled.
    pub(crate) fn set_enabled(&mut self, number: u8, enabled: bool) {
        self.enabled = self.enabled & !(1 << number) | u32::from(enabled) << number;
        self.divide_slots();
    }

    /// Divides the slots evenly among enabled controllers, so that a busy host leaves room for others. Some
    /// slots are kept for disabled controllers, which would otherwise have to wait for others' commands when
    /// they begin.
    fn divide_slots(&mut self) {
        let (limit, enabled) = (self.slab.limit(), self.enabled.count_ones());
        self.reserved_slots = (GUARANTEED * self.expected.saturating_sub(enabled.max(1))).min(limit / 2);
        self.share = ((limit - self.reserved_slots) / enabled.max(1)).max(GUARANTEED);
    }

    /// Returns the number of commands that a controller may begin now.
    #[inline]
    pub(crate) fn room(&self, number: u8) -> u32 {
        let free = self.slab.room().saturating_sub(self.reserved_slots);
        free.min(self.share.saturating_sub(self.slab.in_flight_of(number)))
    }

    /// Returns whether a controller has fewer commands in flight than its share.
    pub(crate) fn has_share(&self, number: u8) -> bool {
        self.slab.in_flight_of(number) < self.share
    }

    /// Returns whether commands are on their way to their completion queues.
    pub fn has_work(&self) -> bool {
        self.has_completions()
    }

    /// Moves finished commands of other controllers to their mailboxes.
    #[inline]
    pub(crate) fn deliver(&mut self, number: u8, finished: &mut Vec<Command>) {
        // The others have none in flight.
        if self.enabled & !(1 << number) == 0 {
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

    /// Expires timers and polls layers, whichever controller has its turn. Returns the amount of work. A
    /// subsystem without controllers passes [`Origin::SUBSYSTEM`] as the controller.
    #[inline]
    pub(crate) fn run_timers_and_layers(&mut self, controller: u8, space: &Space, now_ns: u64) -> usize {
        if now_ns >= self.next_deadline_ns {
            self.expire(now_ns);
        }
        if self.polls { self.poll(controller, space, now_ns) } else { 0 }
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
                    Origin::SUBSYSTEM => erase::next(self, command, now_ns),
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
}

/// Forgets commands that wait here for a turn or for the end of a format.
impl Drop for Subsystem {
    fn drop(&mut self) {
        let Self { done, mailboxes, erasure, .. } = self;
        let erasures = erasure.as_mut().and_then(Erasure::take_command);
        done.drain(..).chain(mailboxes.drain()).chain(erasures).for_each(std::mem::forget);
    }
}
