//! How the controllers of a subsystem share it: its slots, its turns, and what comes back in another's turn.

use crate::erase::{self, Erasure};
use crate::reservation::{HostId, KnownAs};
use crate::subsystem::Subsystem;
use crate::sync;
use sluice_command::{Command, Origin, TURN_BYTES};
use sluice_memory::Space;
use sluice_nvme::opcode;
use std::io;

/// Commands that a controller may have in flight at least, whatever others do: requests for events that may never
/// come are among them.
const GUARANTEED: u32 = 8;

impl Subsystem {
    /// There may be so many controllers. If they are more than one, hosts are told so: without that some look no
    /// further.
    pub fn expect(&mut self, controllers: usize) {
        self.expected = controllers as u32;
        self.divide_slots();
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.expected > 1
    }

    /// A number for another controller.
    pub(crate) fn add_controller(&mut self, cntlid: u16) -> io::Result<u8> {
        let number = self.mailboxes.add(cntlid).ok_or(io::ErrorKind::QuotaExceeded)?;
        self.set_host_name(number, KnownAs::Socket(cntlid));
        Ok(number)
    }

    /// A controller is no more. No command of it is in flight.
    pub(crate) fn remove_controller(&mut self, number: u8) {
        self.set_host(number, HostId::Unnamed(number));
        self.set_enabled(number, false);
        self.mailboxes.remove(number);
        self.detach_all(number);
    }

    /// A controller begins or ends a life.
    pub(crate) fn set_enabled(&mut self, number: u8, enabled: bool) {
        self.enabled = self.enabled & !(1 << number) | u32::from(enabled) << number;
        self.divide_slots();
    }

    /// Those that are enabled share the slots evenly, so that a host that asks for much leaves room for others; and
    /// some are kept for those that are not, which would else have to wait for others' commands to begin.
    fn divide_slots(&mut self) {
        let (limit, enabled) = (self.slab.limit(), self.enabled.count_ones());
        self.reserved_slots = (GUARANTEED * self.expected.saturating_sub(enabled.max(1))).min(limit / 2);
        self.share = ((limit - self.reserved_slots) / enabled.max(1)).max(GUARANTEED);
    }

    /// Commands that a controller may begin now.
    #[inline]
    pub(crate) fn room(&self, number: u8) -> u32 {
        let free = self.slab.room().saturating_sub(self.reserved_slots);
        free.min(self.share.saturating_sub(self.slab.in_flight_of(number)))
    }

    /// It has fewer in flight than it may have.
    pub(crate) fn has_share(&self, number: u8) -> bool {
        self.slab.in_flight_of(number) < self.share
    }

    /// Commands are on their way to their completion queues.
    pub fn has_work(&self) -> bool {
        self.has_completions()
    }

    /// Puts finished commands of other controllers where those find them.
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

    /// What is to be done whichever controller has its turn: layers look, and timers go off. Returns how much there
    /// was to do. A subsystem without controllers is given these alone.
    #[inline]
    pub(crate) fn run_timers_and_layers(&mut self, controller: u8, space: &Space, now_ns: u64) -> usize {
        if now_ns >= self.next_deadline_ns {
            self.expire(now_ns);
        }
        if self.polls { self.poll(controller, space, now_ns) } else { 0 }
    }

    /// A turn that is no controller's.
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
        // A layer that only heard something may have set a timer, and counts as no work.
        self.note_deadline();
        work
    }

    /// From here on [`TURN_BYTES`] are moved, or not much more.
    #[inline]
    pub(crate) fn begin_moving(&mut self) {
        self.moved_before = self.health.bytes();
    }

    #[inline]
    pub(crate) fn has_moved_enough(&self) -> bool {
        self.health.bytes().wrapping_sub(self.moved_before) >= TURN_BYTES
    }
}

/// Commands that wait here, for a turn or for the end of a format, end here.
impl Drop for Subsystem {
    fn drop(&mut self) {
        let Self { done, mailboxes, erasure, .. } = self;
        let erasures = erasure.as_mut().and_then(Erasure::take_command);
        done.drain(..).chain(mailboxes.drain()).chain(erasures).for_each(std::mem::forget);
    }
}
