//! Reservation state that survives a loss of power (Base 8.19, Persist Through Power Loss).

use crate::state::reservation::REGISTRANTS_MAX;
use crate::state::reservation::host::HostId;
use crate::state::reservation::name::KnownAs;
use crate::state::reservation::state::{Registrant, Reservation, ReservationType, Reservations};

/// Reservation state of a namespace whose reservations persist. Other namespaces have no record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationRecord {
    /// Hosts with identifiers, in the order they registered.
    pub registrants: Vec<RegistrantRecord>,
    /// Type of the reservation, if there is one.
    pub reservation: Option<ReservationType>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrantRecord {
    pub host: HostId,
    /// Name that registered the identifier.
    pub name: KnownAs,
    pub key: u64,
    /// Whether the host acquired the reservation.
    pub holds: bool,
}

impl Reservations {
    /// Returns the record, or none if a loss of power ends everything.
    pub(crate) fn record(&self) -> Option<ReservationRecord> {
        let named = self.registrants.iter().filter(|it| it.host.is_named());
        let registrants: Vec<_> = named
            .map(|it| {
                let Registrant { host, key, .. } = *it;
                RegistrantRecord { host, name: it.name.clone(), key, holds: self.is_holder(host) }
            })
            .collect();
        let held = registrants.iter().any(|it| it.holds);
        let reservation = self.kind().filter(|_| held);
        self.persists.then_some(ReservationRecord { registrants, reservation })
    }

    /// Restores a record. Invalid parts are left out: a reservation without a holder, a duplicate host, and
    /// more registrants than the limit.
    pub(crate) fn restore(record: &ReservationRecord) -> Self {
        let mut registrants: Vec<Registrant> = Vec::new();
        for it in record.registrants.iter().filter(|it| it.host.is_named() && it.key != 0) {
            let is_new = registrants.iter().all(|other| other.host != it.host);
            if is_new && registrants.len() < REGISTRANTS_MAX {
                registrants.push(Registrant { host: it.host, name: it.name.clone(), key: it.key });
            }
        }
        let holder = record.registrants.iter().find(|it| it.holds).map(|it| it.host);
        let holder = holder.filter(|host| registrants.iter().any(|it| it.host == *host));
        let reservation = record.reservation.zip(holder).map(|(kind, by)| Reservation { kind, by });
        Self { registrants, reservation, generation: 0, persists: true }
    }
}
