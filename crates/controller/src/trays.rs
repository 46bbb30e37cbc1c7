//! What the controllers of a subsystem leave for one another: commands that came back in another's turn, and
//! what all of them tell their hosts.

use crate::events::Event;
use crate::reservation::{self, HostId};
use crate::{Controller, Subsystem, self_test};
use sluice_command::Command;

/// Controllers of a subsystem at a time.
pub const CONTROLLERS_MAX: usize = sluice_command::Controllers::MAX;

/// Something that happened to the subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// What a host was told of this namespace is not true any more.
    NamespaceChanged(u32),
    /// This namespace is being deleted.
    Leaves(u32),
    /// It was: what is said of its NSID from now on is said of another.
    Gone(u32),
    /// This namespace is being formatted.
    Formatted(u32),
    /// The drive is being sanitized.
    Sanitizes,
    /// It was, or could not be.
    Sanitized,
    /// An NVM Subsystem Reset.
    Reset,
    /// Groups of namespaces are in another state at the controller's port.
    AccessChanged,
    /// A host is told of a reservation.
    Reservation { host: HostId, nsid: u32, notice: reservation::Notice },
    /// The drive takes commands again.
    GoesOn,
}

#[derive(Debug)]
struct Tray {
    /// Identifier of the controller.
    cntlid: u16,
    /// It is there for hosts to see.
    present: bool,
    done: Vec<Command>,
    /// Each at most once.
    notices: Vec<Notice>,
}

impl Tray {
    fn add(&mut self, notice: Notice) {
        if self.notices.contains(&notice) {
            return;
        }
        // There may be any number of hosts, and nobody who empties the tray. Of all others there are few.
        let is_of_reservation = |notice: &Notice| matches!(notice, Notice::Reservation { .. });
        let of_reservations = self.notices.iter().filter(|notice| is_of_reservation(notice)).count();
        if is_of_reservation(&notice)
            && of_reservations == reservation::NOTICES_MAX
            && let Some(oldest) = self.notices.iter().position(is_of_reservation)
        {
            self.notices.remove(oldest);
        }
        self.notices.push(notice);
    }
}

/// By the numbers of the controllers, which are below [`CONTROLLERS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Trays {
    trays: Vec<Option<Tray>>,
    /// Bit per controller that has something.
    full: u32,
}

const _: () = assert!(CONTROLLERS_MAX <= u32::BITS as usize);

impl Trays {
    /// The lowest number that is free, which is taken now.
    pub(crate) fn add(&mut self, cntlid: u16) -> Option<u8> {
        let number = self.trays.iter().position(Option::is_none).unwrap_or(self.trays.len());
        if number == CONTROLLERS_MAX {
            return None;
        }
        if number == self.trays.len() {
            self.trays.push(None);
        }
        self.trays[number] = Some(Tray { cntlid, present: true, done: Vec::new(), notices: Vec::new() });
        Some(number as u8)
    }

    /// A controller is no more, and no command of it is in flight.
    pub(crate) fn remove(&mut self, number: u8) {
        self.full &= !(1 << number);
        self.trays[usize::from(number)] = None;
    }

    /// Numbers and identifiers of the controllers there are.
    pub(crate) fn present(&self) -> impl Iterator<Item = (u8, u16)> {
        let trays = (0..).zip(&self.trays);
        trays.filter_map(|(number, tray)| Some((number, tray.as_ref().filter(|it| it.present)?.cntlid)))
    }

    pub(crate) fn present_numbers(&self) -> Vec<u8> {
        self.present().map(|(number, _)| number).collect()
    }

    pub(crate) fn set_present(&mut self, number: u8, present: bool) {
        self.trays[usize::from(number)].iter_mut().for_each(|tray| tray.present = present);
    }

    #[inline]
    pub(crate) fn is_full(&self, number: u8) -> bool {
        self.full & 1 << number != 0
    }

    /// A command that is back. One of a controller that is gone cannot be.
    pub(crate) fn put(&mut self, number: u8, command: Command) {
        let tray = self.trays[usize::from(number)].as_mut().expect("a controller goes after its commands");
        tray.done.push(command);
        self.full |= 1 << number;
    }

    /// For all of them.
    pub(crate) fn announce(&mut self, notice: Notice) {
        (0..self.trays.len() as u8).for_each(|number| self.tell(number, notice));
    }

    /// For one of them, if it is there.
    pub(crate) fn tell(&mut self, number: u8, notice: Notice) {
        let Some(Some(tray)) = self.trays.get_mut(usize::from(number)) else { return };
        tray.add(notice);
        self.full |= 1 << number;
    }

    /// All commands, whosever they are.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Command> {
        self.trays.iter_mut().flatten().flat_map(|tray| tray.done.drain(..))
    }

    /// Moves the commands of a tray to `done`, and returns what else was in it.
    pub(crate) fn empty(&mut self, number: u8, done: &mut Vec<Command>) -> Vec<Notice> {
        self.full &= !(1 << number);
        let Some(Some(tray)) = self.trays.get_mut(usize::from(number)) else { return Vec::new() };
        done.append(&mut tray.done);
        std::mem::take(&mut tray.notices)
    }
}

impl Controller {
    /// Takes what other turns have left for this controller.
    #[cold]
    pub(crate) fn empty_tray(&mut self, subsystem: &mut Subsystem, now_ns: u64) {
        for notice in subsystem.trays.empty(self.number, &mut subsystem.done) {
            match notice {
                Notice::NamespaceChanged(nsid) => self.events.namespace_changed(nsid),
                Notice::Leaves(nsid) => self_test::removal(self, subsystem, nsid, now_ns),
                Notice::Gone(nsid) => {
                    self.features.retry_limits[nsid as usize - 1] = 0;
                    self.notices.forget(nsid);
                }
                Notice::Formatted(nsid) => self_test::format(self, subsystem, nsid, now_ns),
                Notice::Sanitizes => self_test::sanitize(self, subsystem, now_ns),
                Notice::Sanitized => self.events.raise(Event::SANITIZE_COMPLETED),
                Notice::AccessChanged => self.events.raise(Event::ASYMMETRIC_ACCESS_CHANGE),
                Notice::Reset => self.subsystem_was_reset(subsystem),
                Notice::Reservation { host, nsid, notice } => {
                    if subsystem.host(self.number) == host && self.notices.add(nsid, notice) {
                        self.events.raise(Event::RESERVATION_LOG_PAGE);
                    }
                }
                // What rested has a deadline again.
                Notice::GoesOn => self.next_deadline_ns = 0,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_reservation(number: u64) -> Notice {
        let host = HostId::Short(number.to_le_bytes());
        Notice::Reservation { host, nsid: 1, notice: reservation::Notice::ReservationReleased }
    }

    #[test]
    fn a_tray_that_nobody_empties_does_not_grow_with_the_hosts_that_are_told() {
        let mut trays = Trays::default();
        let number = trays.add(1).expect("room");
        trays.tell(number, Notice::NamespaceChanged(3));
        (0..10_000).for_each(|host| trays.announce(of_reservation(host)));
        let notices = trays.empty(number, &mut Vec::new());
        assert_eq!(notices[0], Notice::NamespaceChanged(3));
        let last: Vec<_> = (10_000 - reservation::NOTICES_MAX as u64..10_000).map(of_reservation).collect();
        assert!(notices[1..] == last, "{} of them", notices.len());
    }
}
