//! Changes by the reservation commands (Base 7.2 to 7.4; 8.19).
//!
//! A change is computed before any of it takes effect, since it may have to be persisted first.

use crate::state::reservation::host::HostId;
use crate::state::reservation::name::KnownAs;
use crate::state::reservation::notification::Notification;
use crate::state::reservation::state::{Registrant, Reservation, ReservationType, Reservations};
use crate::state::reservation::{REGISTRANTS_MAX, name};
use sluice_nvme::Status;

/// Action that a host requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Reservation Register, with the new state of Persist Through Power Loss.
    Register { what: Register, persists: Option<bool> },
    /// Reservation Acquire: acquire.
    Acquire { key: u64, kind: ReservationType },
    /// Reservation Acquire: preempt, and preempt and abort.
    Preempt { key: u64, victims: u64, kind: ReservationType, aborts: bool },
    /// Reservation Release: release.
    Release { key: u64, kind: ReservationType },
    /// Reservation Release: clear.
    Clear { key: u64 },
    /// Set Features: Reservation Persistence. The host need not be registered (Base 5.27.1.27).
    Persist(bool),
}

/// Change of a registration. A missing key is not checked (IEKEY).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    New { key: u64 },
    Unregister { key: Option<u64> },
    Replace { current: Option<u64>, key: u64 },
}

/// Result of an action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) next: Reservations,
    /// Notifications for hosts.
    pub(crate) notifications: Vec<(HostId, Notification)>,
    /// Hosts whose commands must end before the command does.
    pub(crate) aborted: Vec<HostId>,
}

impl Reservations {
    /// Computes the change by an action of this host.
    ///
    /// # Errors
    /// Reservation Conflict, or the status of an invalid field. Nothing changes then.
    pub(crate) fn change(&self, host: HostId, name: &KnownAs, action: Action) -> Result<Change, Status> {
        let mut change = Change { next: self.clone(), ..Change::default() };
        match action {
            Action::Register { what, persists } => {
                change.register(host, name, what)?;
                change.next.persists = persists.unwrap_or(self.persists);
                change.count();
            }
            Action::Acquire { key, kind } => {
                self.check_key(host, key)?;
                change.acquire(host, kind)?;
            }
            Action::Preempt { key, victims, kind, aborts } => {
                self.check_key(host, key)?;
                change.preempt(host, victims, kind)?;
                if aborts {
                    change.aborted = self.missing_in(&change.next, host);
                }
                change.count();
            }
            Action::Release { key, kind } => {
                self.check_key(host, key)?;
                change.release(host, kind)?;
            }
            Action::Clear { key } => {
                self.check_key(host, key)?;
                change.notify_others(host, Notification::ReservationPreempted);
                change.next.registrants.clear();
                change.next.reservation = None;
                change.count();
            }
            Action::Persist(persists) => change.next.persists = persists,
        }
        Ok(change)
    }

    /// Returns the change when a host without an identifier is gone.
    pub(crate) fn without(&self, host: HostId) -> Change {
        let mut change = Change { next: self.clone(), ..Change::default() };
        change.unregister(host);
        change
    }

    /// Checks that the host is a registrant and has sent its key.
    fn check_key(&self, host: HostId, key: u64) -> Result<(), Status> {
        match self.registrant(host) {
            Some(registrant) if registrant.key == key => Ok(()),
            _ => Err(Status::RESERVATION_CONFLICT),
        }
    }

    /// Returns the hosts that are registered here and not in `next`, except for the preemptor.
    fn missing_in(&self, next: &Self, preemptor: HostId) -> Vec<HostId> {
        let hosts = self.registrants.iter().map(|it| it.host);
        hosts.filter(|host| *host != preemptor && !next.is_registrant(*host)).collect()
    }
}

impl Change {
    fn count(&mut self) {
        self.next.generation = self.next.generation.wrapping_add(1);
    }

    fn notify_others(&mut self, host: HostId, notification: Notification) {
        let others = self.next.registrants.iter().filter(|it| it.host != host);
        self.notifications.extend(others.map(|it| (it.host, notification)));
    }

    fn register(&mut self, host: HostId, name: &KnownAs, what: Register) -> Result<(), Status> {
        let now = self.next.registrant(host).map(|it| it.key);
        match what {
            // Zero is no key: a preemptor uses it for all registrants.
            Register::New { key: 0 } | Register::Replace { key: 0, .. } => Err(Status::INVALID_FIELD),
            Register::New { key } => match now {
                Some(now) if now != key => Err(Status::RESERVATION_CONFLICT),
                Some(_) => Ok(()),
                None => self.add(host, name, key),
            },
            Register::Replace { current, key } => match (now, current) {
                (Some(now), Some(current)) if now != current => Err(Status::RESERVATION_CONFLICT),
                (None, Some(_)) => Err(Status::RESERVATION_CONFLICT),
                // The former registration and its key do not matter.
                (None, None) => self.add(host, name, key),
                (Some(_), _) => {
                    let registrants = &mut self.next.registrants;
                    registrants.iter_mut().filter(|it| it.host == host).for_each(|it| it.key = key);
                    Ok(())
                }
            },
            Register::Unregister { key } => match now {
                Some(now) if key.is_none_or(|key| key == now) => {
                    self.unregister(host);
                    Ok(())
                }
                _ => Err(Status::RESERVATION_CONFLICT),
            },
        }
    }

    fn add(&mut self, host: HostId, name: &KnownAs, key: u64) -> Result<(), Status> {
        let registrants = &mut self.next.registrants;
        if registrants.iter().any(|it| !it.host.goes_with(host)) {
            return Err(Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT);
        }
        if registrants.len() == REGISTRANTS_MAX || name::has_enough(registrants, name) {
            return Err(Status::INTERNAL_ERROR);
        }
        registrants.push(Registrant { host, name: name.clone(), key });
        Ok(())
    }

    /// Removes a registration. A reservation that the host held alone is released, and one of all registrants
    /// with the last of them.
    fn unregister(&mut self, host: HostId) {
        let next = &mut self.next;
        let held_alone = next.reservation.is_some_and(|it| !it.kind.is_all_registrants() && it.by == host);
        next.registrants.retain(|it| it.host != host);
        if held_alone || next.registrants.is_empty() {
            self.released(host);
        }
    }

    /// Removes the reservation. Registrants that had more access than other hosts are notified.
    fn released(&mut self, by: HostId) {
        let before = self.next.reservation.take();
        if before.is_some_and(|it| !it.kind.is_exclusive_to_holder()) {
            self.notify_others(by, Notification::ReservationReleased);
        }
    }

    fn acquire(&mut self, host: HostId, kind: ReservationType) -> Result<(), Status> {
        match self.next.reservation {
            None => {
                self.next.reservation = Some(Reservation { kind, by: host });
                Ok(())
            }
            Some(now) if now.kind == kind && self.next.is_holder(host) => Ok(()),
            Some(_) => Err(Status::RESERVATION_CONFLICT),
        }
    }

    /// Removes registrations, and the reservation of a removed holder.
    fn preempt(&mut self, host: HostId, victims: u64, kind: ReservationType) -> Result<(), Status> {
        let Some(now) = self.next.reservation else { return self.preempt_registrants(host, victims) };
        let holder = self.next.registrant(now.by).map(|it| it.key);
        match (now.kind.is_all_registrants(), victims) {
            (true, 0) => self.preempt_holder(host, kind, |_| true),
            (false, 0) => return Err(Status::INVALID_FIELD),
            (false, key) if holder == Some(key) => self.preempt_holder(host, kind, |it| it.key == key),
            _ => return self.preempt_registrants(host, victims),
        }
        Ok(())
    }

    /// Takes the reservation, and removes the registrations of other hosts that are `among` the victims.
    fn preempt_holder(&mut self, host: HostId, kind: ReservationType, among: impl Fn(&Registrant) -> bool) {
        let before = self.next.kind();
        self.remove(|it| it.host != host && among(it), host);
        self.next.reservation = Some(Reservation { kind, by: host });
        if before != Some(kind) {
            self.notify_others(host, Notification::ReservationReleased);
        }
    }

    /// Removes the registrations with this key, even the preemptor's own, and leaves the reservation.
    fn preempt_registrants(&mut self, host: HostId, victims: u64) -> Result<(), Status> {
        if !self.next.registrants.iter().any(|it| it.key == victims) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        self.remove(|it| it.key == victims, host);
        if self.next.registrants.is_empty() {
            self.next.reservation = None;
        }
        Ok(())
    }

    fn remove(&mut self, victim: impl Fn(&Registrant) -> bool, preemptor: HostId) {
        let registrants = std::mem::take(&mut self.next.registrants);
        let (victims, others): (Vec<_>, Vec<_>) = registrants.into_iter().partition(victim);
        self.next.registrants = others;
        let notified = victims.iter().filter(|it| it.host != preemptor);
        self.notifications.extend(notified.map(|it| (it.host, Notification::RegistrationPreempted)));
    }

    /// Releases the reservation. A registrant that is no holder releases nothing.
    fn release(&mut self, host: HostId, kind: ReservationType) -> Result<(), Status> {
        if !self.next.is_holder(host) {
            return Ok(());
        }
        if self.next.kind() != Some(kind) {
            return Err(Status::INVALID_FIELD);
        }
        self.released(host);
        Ok(())
    }
}
