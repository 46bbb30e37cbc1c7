//! What a reservation keeps other hosts from (Base 8.19, "Command Behavior in the Presence of a Reservation").

use super::{HostId, Reservations};
use sluice_nvme::opcode::{admin, io};

/// What a command is to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// It reads.
    Read,
    /// It writes, or does what only somebody who may write should.
    Write,
    /// Nobody is kept from it, or it looks at the registrants itself.
    Free,
}

impl Group {
    /// Of an I/O command. A Copy writes to its namespace; its sources are read, which is to be asked for each of
    /// them. What a vendor's own command does nobody knows.
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

    /// Of an admin command; a vendor's own as above.
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
    /// True unless the command of this host conflicts with the reservation.
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
