//! Mailboxes of the controllers of a subsystem: commands that came back in the turn of another controller,
//! and notices for all of them.

use crate::state::limits::CONTROLLERS_MAX;
use crate::state::reservation::{HostId, notification};
use sluice_command::Command;

/// Change of the subsystem that other controllers must handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Change of the attributes of this namespace.
    NamespaceChanged(u32),
    /// Begin of the deletion of this namespace.
    Deleting(u32),
    /// End of the deletion of this namespace. From now on its NSID means another namespace.
    Deleted(u32),
    /// Begin of a format of this namespace.
    Formatted(u32),
    /// Begin of a sanitize operation.
    Sanitizing,
    /// End of a sanitize operation, successful or not.
    Sanitized,
    /// NVM Subsystem Reset.
    Reset,
    /// Change of the ANA state of namespace groups at the controller's port.
    AccessChanged,
    /// Reservation notification for a host.
    Reservation { host: HostId, nsid: u32, notification: notification::Notification },
    /// End of a hold: the drive takes commands again.
    Resumed,
}

#[derive(Debug)]
struct Mailbox {
    /// Identifier of the controller.
    cntlid: u16,
    /// Whether hosts see the controller.
    present: bool,
    done: Vec<Command>,
    /// Pending notices, each at most once.
    notices: Vec<Notice>,
}

impl Mailbox {
    fn add(&mut self, notice: Notice) {
        if self.notices.contains(&notice) {
            return;
        }
        // There may be any number of hosts, and a mailbox that is never drained. Other notices are few.
        let is_of_reservation = |notice: &Notice| matches!(notice, Notice::Reservation { .. });
        let of_reservations = self.notices.iter().filter(|notice| is_of_reservation(notice)).count();
        if is_of_reservation(&notice)
            && of_reservations == notification::NOTIFICATIONS_MAX
            && let Some(oldest) = self.notices.iter().position(is_of_reservation)
        {
            self.notices.remove(oldest);
        }
        self.notices.push(notice);
    }
}

/// Mailboxes by controller number, which is below [`CONTROLLERS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Mailboxes {
    mailboxes: Vec<Option<Mailbox>>,
    /// Bit per controller whose mailbox is not empty.
    unread: u32,
}

const _: () = assert!(CONTROLLERS_MAX <= u32::BITS as usize);

impl Mailboxes {
    /// Takes the lowest free number for a controller.
    pub(crate) fn add(&mut self, cntlid: u16) -> Option<u8> {
        let number = self.mailboxes.iter().position(Option::is_none).unwrap_or(self.mailboxes.len());
        if number == CONTROLLERS_MAX {
            return None;
        }
        if number == self.mailboxes.len() {
            self.mailboxes.push(None);
        }
        self.mailboxes[number] =
            Some(Mailbox { cntlid, present: true, done: Vec::new(), notices: Vec::new() });
        Some(number as u8)
    }

    /// Removes a controller that has no command in flight.
    pub(crate) fn remove(&mut self, number: u8) {
        self.unread &= !(1 << number);
        self.mailboxes[usize::from(number)] = None;
    }

    /// Returns the number of controllers, seen by hosts or not.
    pub(crate) fn count(&self) -> usize {
        self.mailboxes.iter().flatten().count()
    }

    /// Returns numbers and identifiers of the controllers that hosts see.
    pub(crate) fn present(&self) -> impl Iterator<Item = (u8, u16)> {
        let mailboxes = (0..).zip(&self.mailboxes);
        mailboxes
            .filter_map(|(number, mailbox)| Some((number, mailbox.as_ref().filter(|it| it.present)?.cntlid)))
    }

    pub(crate) fn present_numbers(&self) -> Vec<u8> {
        self.present().map(|(number, _)| number).collect()
    }

    pub(crate) fn set_present(&mut self, number: u8, present: bool) {
        self.mailboxes[usize::from(number)].iter_mut().for_each(|mailbox| mailbox.present = present);
    }

    #[inline]
    pub(crate) fn has_mail(&self, number: u8) -> bool {
        self.unread & 1 << number != 0
    }

    /// Returns whether no mailbox has a command or a notice.
    pub(crate) fn are_empty(&self) -> bool {
        self.unread == 0
    }

    /// Delivers a finished command. Its controller still exists, since a controller leaves after its
    /// commands.
    pub(crate) fn put(&mut self, number: u8, command: Command) {
        let mailbox =
            self.mailboxes[usize::from(number)].as_mut().expect("a controller goes after its commands");
        mailbox.done.push(command);
        self.unread |= 1 << number;
    }

    /// Delivers a notice to all controllers.
    pub(crate) fn announce(&mut self, notice: Notice) {
        (0..self.mailboxes.len() as u8).for_each(|number| self.notify(number, notice));
    }

    /// Delivers a notice to one controller, if it exists.
    pub(crate) fn notify(&mut self, number: u8, notice: Notice) {
        let Some(Some(mailbox)) = self.mailboxes.get_mut(usize::from(number)) else { return };
        mailbox.add(notice);
        self.unread |= 1 << number;
    }

    /// Drains the commands of all mailboxes.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Command> {
        self.mailboxes.iter_mut().flatten().flat_map(|mailbox| mailbox.done.drain(..))
    }

    /// Moves the commands of a mailbox to `done`, and returns its notices.
    pub(crate) fn take(&mut self, number: u8, done: &mut Vec<Command>) -> Vec<Notice> {
        self.unread &= !(1 << number);
        let Some(Some(mailbox)) = self.mailboxes.get_mut(usize::from(number)) else { return Vec::new() };
        done.append(&mut mailbox.done);
        std::mem::take(&mut mailbox.notices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_reservation(number: u64) -> Notice {
        let host = HostId::Short(number.to_le_bytes());
        Notice::Reservation { host, nsid: 1, notification: notification::Notification::ReservationReleased }
    }

    #[test]
    fn an_unread_mailbox_is_bounded() {
        let mut mailboxes = Mailboxes::default();
        let number = mailboxes.add(1).expect("room");
        mailboxes.notify(number, Notice::NamespaceChanged(3));
        (0..10_000).for_each(|host| mailboxes.announce(of_reservation(host)));
        let notices = mailboxes.take(number, &mut Vec::new());
        assert_eq!(notices[0], Notice::NamespaceChanged(3));
        let last: Vec<_> =
            (10_000 - notification::NOTIFICATIONS_MAX as u64..10_000).map(of_reservation).collect();
        assert!(notices[1..] == last, "{} of them", notices.len());
    }
}
