//! Access under a reservation (Base 8.19, "Command Behavior in the Presence of a Reservation").

use crate::state::reservation::host::HostId;
use crate::state::reservation::state::Reservations;
use sluice_nvme::opcode::{admin, io};

/// Group of commands that a reservation treats alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Commands that read.
    Read,
    /// Commands that write, or that only hosts with write access may send.
    Write,
    /// Commands that no reservation excludes, or that check the registrants themselves.
    Free,
}

impl Group {
    /// Returns the group of an I/O command. A Copy writes to its namespace; its sources must be checked as
    /// reads. The effect of vendor specific commands is unknown, so they count as writes.
    pub(crate) fn of_io(opcode: u8) -> Self {
        match opcode {
            io::READ | io::COMPARE | io::VERIFY => Self::Read,
            io::RESERVATION_REGISTER
            | io::RESERVATION_REPORT
            | io::RESERVATION_ACQUIRE
            | io::RESERVATION_RELEASE => Self::Free,
            _ => Self::Write,
        }
    }

    /// Returns the group of an admin command; vendor specific ones count as writes.
    pub(crate) fn of_admin(opcode: u8) -> Self {
        match opcode {
            admin::FORMAT_NVM
            | admin::SANITIZE
            | admin::NAMESPACE_MANAGEMENT
            | admin::NAMESPACE_ATTACHMENT
            | 0xc0.. => Self::Write,
            _ => Self::Free,
        }
    }
}

impl Reservations {
    /// Returns whether a command of this host does not conflict with the reservation.
    pub(crate) fn permits(&self, host: HostId, group: Group) -> bool {
        let Some(kind) = self.kind() else { return true };
        let concerned = match group {
            Group::Read => kind.excludes_readers(),
            Group::Write => true,
            Group::Free => false,
        };
        !concerned
            || match kind.is_exclusive_to_holder() {
                true => self.is_holder(host),
                false => self.is_registrant(host),
            }
    }
}
