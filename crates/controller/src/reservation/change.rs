//! What the reservation commands change (Base 7.2 to 7.4; 8.19).
//!
//! A change is worked out before anything of it is so: it may have to be stored first.

use super::name;
use super::state::Reservation;
use super::{HostId, KnownAs, Notification, REGISTRANTS_MAX, Registrant, ReservationType, Reservations};
use sluice_nvme::Status;

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Reservation Register, and what Persist Through Power Loss becomes.
    Register { what: Register, persists: Option<bool> },
    /// Reservation Acquire: acquire.
    Acquire { key: u64, kind: ReservationType },
    /// Reservation Acquire: preempt, and preempt and abort.
    Preempt { key: u64, victims: u64, kind: ReservationType, aborts: bool },
    /// Reservation Release: release.
    Release { key: u64, kind: ReservationType },
    /// Reservation Release: clear.
    Clear { key: u64 },
    /// Set Features: Reservation Persistence. Whoever sends it need not be registered (Base 5.27.1.27).
    Persist(bool),
}

/// What of its registration. A key that is not there is not looked at (IEKEY).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    New { key: u64 },
    Unregister { key: Option<u64> },
    Replace { current: Option<u64>, key: u64 },
}

/// What comes of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) next: Reservations,
    /// Who is to be told what.
    pub(crate) notifications: Vec<(HostId, Notification)>,
    /// Whose commands end before the command does.
    pub(crate) aborted: Vec<HostId>,
}

impl Reservations {
    /// What the wish of the host of this name makes of this.
    ///
    /// # Errors
    /// Reservation Conflict and what else is wrong with it. Nothing changes then.
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

    /// What is left when a host is gone that is known by nothing but its controller.
    pub(crate) fn without(&self, host: HostId) -> Change {
        let mut change = Change { next: self.clone(), ..Change::default() };
        change.unregister(host);
        change
    }

    /// Only a registrant may, with its key.
    fn check_key(&self, host: HostId, key: u64) -> Result<(), Status> {
        match self.registrant(host) {
            Some(registrant) if registrant.key == key => Ok(()),
            _ => Err(Status::RESERVATION_CONFLICT),
        }
    }

    /// Hosts that are registered here and not there, but for the one that did it.
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
            // Zero is no key: a preemptor says it when it means everybody.
            Register::New { key: 0 } | Register::Replace { key: 0, .. } => Err(Status::INVALID_FIELD),
            Register::New { key } => match now {
                Some(now) if now != key => Err(Status::RESERVATION_CONFLICT),
                Some(_) => Ok(()),
                None => self.add(host, name, key),
            },
            Register::Replace { current, key } => match (now, current) {
                (Some(now), Some(current)) if now != current => Err(Status::RESERVATION_CONFLICT),
                (None, Some(_)) => Err(Status::RESERVATION_CONFLICT),
                // Whether or not it was registered, with whichever key.
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

    /// What the host alone held is released; what all registrants hold, with the last of them.
    fn unregister(&mut self, host: HostId) {
        let next = &mut self.next;
        let held_alone = next.reservation.is_some_and(|it| !it.kind.is_all_registrants() && it.by == host);
        next.registrants.retain(|it| it.host != host);
        if held_alone || next.registrants.is_empty() {
            self.released(host);
        }
    }

    /// There is no reservation any more. Registrants who could do more with it than others hear of that.
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

    /// Takes registrations away, and with the holder's its reservation.
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

    /// Takes the reservation, and the registrations of those others that are `among` the victims.
    fn preempt_holder(&mut self, host: HostId, kind: ReservationType, among: impl Fn(&Registrant) -> bool) {
        let before = self.next.kind();
        self.remove(|it| it.host != host && among(it), host);
        self.next.reservation = Some(Reservation { kind, by: host });
        if before != Some(kind) {
            self.notify_others(host, Notification::ReservationReleased);
        }
    }

    /// Takes the registrations with this key, be it the preemptor's own, and leaves the reservation.
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
        let told = victims.iter().filter(|it| it.host != preemptor);
        self.notifications.extend(told.map(|it| (it.host, Notification::RegistrationPreempted)));
    }

    /// A registrant that holds nothing releases nothing.
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
