//! Hosts of the controllers: names, identifiers, and the registrations that end with them.

use crate::model::{Controller, Subsystem};
use crate::state::mailbox::Notice;
use crate::state::reservation::{Change, HostId, KnownAs, Notifications, Registrant};
use std::time::Duration;

impl Controller {
    /// Sets name and 128-bit identifier of the association's host. Returns false if the identifier belongs to
    /// another host; then this host has none.
    pub fn set_host(&mut self, subsystem: &mut Subsystem, nqn: &str, identifier: [u8; 16]) -> bool {
        // Notifications for the last host are not for this one.
        self.reservation_notifications = Notifications::new();
        subsystem.set_host_name(self.number, KnownAs::Nqn(nqn.into()));
        let host = HostId::extended(identifier, self.number);
        subsystem.set_host(self.number, host);
        subsystem.host(self.number) == host
    }

    /// Sets whether hosts see this controller in the subsystem's list of controllers. A controller that is
    /// made for an association exists only during the association (Base 3.1.1).
    pub fn set_present(&self, subsystem: &mut Subsystem, present: bool) {
        subsystem.mailboxes.set_present(self.number, present);
        match present {
            true => subsystem.attach_all(self.number),
            false => subsystem.detach_all(self.number),
        }
    }

    /// Leaves the subsystem. Nothing may be in flight: see [`is_quiescent`](Self::is_quiescent).
    pub fn leave(self, subsystem: &mut Subsystem) {
        subsystem.remove_controller(self.number);
    }
}

impl Subsystem {
    /// Returns the host that a controller belongs to.
    pub(crate) fn host(&self, number: u8) -> HostId {
        self.hosts.get(usize::from(number)).copied().unwrap_or(HostId::Unnamed(number))
    }

    /// Sets the host of a controller, when it sets an identifier or is gone.
    pub(crate) fn set_host(&mut self, number: u8, host: HostId) {
        let host = if self.belongs_to_another(host, number) { HostId::Unnamed(number) } else { host };
        let Some(entry) = self.hosts.get_mut(usize::from(number)) else { return };
        let before = std::mem::replace(entry, host);
        // The registrations of a host without an identifier end with it.
        if before.is_named() {
            return;
        }
        if !self.jobs.orders.are_storing() {
            return self.unregister_host(before);
        }
        // The change that is being persisted may register the host again. Until then nothing begins, also for
        // later hosts of the controller, so one entry is enough.
        if !self.jobs.orders.gone.contains(&before) {
            self.jobs.orders.gone.push(before);
        }
    }

    pub(crate) fn apply(&mut self, nsid: u32, change: Change) {
        if let Some(namespace) = self.get_mut(nsid) {
            namespace.set_reservations(change.next);
        }
        // In the mailboxes of other controllers they would displace the notices of those.
        let Self { mailboxes, hosts, .. } = self;
        for (host, notification) in change.notifications {
            let controllers = (0..).zip(hosts.iter()).filter(|(_, of)| **of == host);
            let notice = Notice::Reservation { host, nsid, notification };
            controllers.for_each(|(number, _)| mailboxes.notify(number, notice));
        }
    }

    pub(crate) fn unregister_host(&mut self, host: HostId) {
        // A holder is also a registrant.
        let there = self.iter().filter(|it| it.reservations.is_registrant(host));
        let changes: Vec<_> = there.map(|it| (it.nsid(), it.reservations.without(host))).collect();
        changes.into_iter().for_each(|(nsid, change)| self.apply(nsid, change));
    }

    /// Declares all sockets paths of one guest, so that they share registrations.
    pub fn set_one_guest(&mut self, one_guest: bool) {
        self.one_guest = one_guest;
    }

    /// Sets the time after which hosts give up a command, zero for never. Commands that only wait are answered
    /// before, so that the host submits them again.
    pub fn set_host_timeout(&mut self, timeout: Duration) {
        self.host_timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    }

    pub(crate) fn host_timeout_ns(&self) -> u64 {
        self.host_timeout_ns
    }

    /// Returns the name of a controller's host.
    pub(crate) fn host_name(&self, number: u8) -> KnownAs {
        self.names.get(usize::from(number)).cloned().unwrap_or_default()
    }

    pub(crate) fn set_host_name(&mut self, number: u8, name: KnownAs) {
        self.names.get_mut(usize::from(number)).into_iter().for_each(|it| *it = name.clone());
        self.attach_all(number);
    }

    /// Returns whether a host with another name than this controller's has registered the identifier.
    pub(crate) fn belongs_to_another(&self, host: HostId, number: u8) -> bool {
        let is_others = |it: &Registrant| {
            it.host == host && !it.name.may_be(&self.names[usize::from(number)], self.one_guest)
        };
        host.is_named() && self.iter().any(|it| it.reservations.registrants().iter().any(is_others))
    }

    /// Removes the identifiers of hosts that present an identifier which another name has just registered.
    pub(crate) fn drop_foreign_identifiers(&mut self) {
        for number in 0..self.hosts.len() as u8 {
            if self.belongs_to_another(self.host(number), number) {
                self.hosts[usize::from(number)] = HostId::Unnamed(number);
            }
        }
    }
}
