//! Checks of access to a namespace: its attachment to the controller, the ANA state of the path, and
//! reservations of other hosts.

use crate::model::{Namespace, Subsystem};
use crate::state::ana::Ana;
use crate::state::reservation::{Group, HostId};
use sluice_nvme::opcode::admin;
use sluice_nvme::{Status, SubmissionEntry};

/// Checks an I/O command of this controller to a namespace that [is guarded](Namespace::is_guarded).
#[cold]
pub(crate) fn check(
    ana: &Ana,
    hosts: &[HostId],
    number: u8,
    namespace: &Namespace,
    opcode: u8,
) -> Result<(), Status> {
    if !namespace.is_attached(number) {
        return Err(Subsystem::status_of_inactive(namespace.nsid()));
    }
    ana.check(number, namespace.ana_group())?;
    namespace.check_reservation(hosts[usize::from(number)], opcode)
}

impl Subsystem {
    /// Checks an I/O command to a namespace that may be guarded or not.
    pub(crate) fn check_access(&self, number: u8, namespace: &Namespace, opcode: u8) -> Result<(), Status> {
        check(&self.ana, &self.hosts, number, namespace, opcode)
    }

    /// Checks an admin command that reads or changes data of its namespace, or of all namespaces if it names
    /// none.
    pub(crate) fn check_admin(&self, number: u8, entry: &SubmissionEntry) -> Result<(), Status> {
        let (host, group) = (self.host(number), Group::of_admin(entry.opcode));
        // No host can have reserved a namespace that does not exist yet.
        let creates = entry.opcode == admin::NAMESPACE_MANAGEMENT && entry.cdw10 & 0xf == 0;
        if group == Group::Free || creates {
            return Ok(());
        }
        // A Sanitize concerns all namespaces, whatever its NSID.
        let names_one = entry.opcode != admin::SANITIZE;
        // Changes to the subsystem's list of namespaces use no path to a namespace, nor does a vendor's
        // command to the controller (Base 8.1: the states concern commands that name a namespace, or all).
        let takes_a_way = match entry.opcode {
            admin::NAMESPACE_MANAGEMENT | admin::NAMESPACE_ATTACHMENT => false,
            0xc0.. => entry.nsid != 0,
            _ => true,
        };
        let named = self.get(entry.nsid).filter(|_| names_one).map(Namespace::nsid);
        for namespace in self.iter().filter(|it| named.is_none_or(|nsid| nsid == it.nsid())) {
            if takes_a_way {
                self.ana.check(number, namespace.ana_group())?;
            }
            if !namespace.reservations.permits(host, group) {
                return Err(Status::RESERVATION_CONFLICT);
            }
        }
        Ok(())
    }
}
