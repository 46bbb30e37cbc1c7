//! Sharing of a subsystem by its controllers: its slots, its turns, and commands that come back in another's
//! turn.

use crate::model::Subsystem;
use crate::state::mailbox::Notice;
use crate::state::reservation::{HostId, KnownAs};
use sluice_command::{Command, Origin, TURN_BYTES};
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
        self.schedule_polls();
        self.set_host_name(number, KnownAs::Socket(cntlid));
        Ok(number)
    }

    /// Removes a controller that has no command in flight.
    pub(crate) fn remove_controller(&mut self, number: u8) {
        self.set_host(number, HostId::Unnamed(number));
        self.set_enabled(number, false);
        self.mailboxes.remove(number);
        self.schedule_polls();
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

    /// Returns whether no other controller is enabled.
    #[inline]
    pub(crate) fn is_alone(&self, number: u8) -> bool {
        self.enabled & !(1 << number) == 0
    }

    pub(crate) fn is_enabled(&self, number: u8) -> bool {
        self.enabled >> number & 1 != 0
    }

    /// Returns whether all free slots are reserved for disabled controllers.
    pub(crate) fn has_only_reserved_slots(&self) -> bool {
        self.slab.room() <= self.reserved_slots
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

    /// Starts to count the bytes of a turn, which ends at about [`TURN_BYTES`].
    #[inline]
    pub(crate) fn begin_moving(&mut self) {
        self.moved_before = self.health.bytes();
    }

    #[inline]
    pub(crate) fn has_moved_enough(&self) -> bool {
        self.health.bytes().wrapping_sub(self.moved_before) >= TURN_BYTES
    }

    /// Delivers a notice to all controllers.
    pub(crate) fn announce(&mut self, notice: Notice) {
        self.mailboxes.announce(notice);
    }

    /// Delivers a notice to one controller, if it exists.
    pub(crate) fn notify(&mut self, number: u8, notice: Notice) {
        self.mailboxes.notify(number, notice);
    }

    /// Leaves a finished command for the next turn of its controller.
    pub(crate) fn mail(&mut self, number: u8, command: Command) {
        self.mailboxes.put(number, command);
    }

    #[inline]
    pub(crate) fn has_mail(&self, number: u8) -> bool {
        self.mailboxes.has_mail(number)
    }

    /// Moves the mailed commands of a controller to the finished ones, and returns its notices.
    pub(crate) fn collect_mail(&mut self, number: u8) -> Vec<Notice> {
        self.mailboxes.take(number, &mut self.done)
    }

    /// Returns numbers and identifiers of the controllers that hosts see.
    pub(crate) fn present(&self) -> impl Iterator<Item = (u8, u16)> {
        self.mailboxes.present()
    }

    /// Returns whether a controller has fewer commands in flight than its share.
    pub(crate) fn has_share(&self, number: u8) -> bool {
        self.slab.in_flight_of(number) < self.share
    }
}
