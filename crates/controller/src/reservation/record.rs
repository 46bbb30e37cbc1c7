//! What of reservations survives a loss of power (Base 8.19, Persist Through Power Loss).

use super::state::Reservation;
use super::{HostId, KnownAs, REGISTRANTS_MAX, Registrant, ReservationType, Reservations};

/// What is kept of a namespace whose reservations persist. There is none for one whose reservations do not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationRecord {
    /// Hosts that said who they are, in the order they registered.
    pub registrants: Vec<RegistrantRecord>,
    /// How the namespace is reserved, if it is.
    pub reservation: Option<ReservationType>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrantRecord {
    pub host: HostId,
    /// Who registered it.
    pub name: KnownAs,
    pub key: u64,
    /// It acquired the reservation.
    pub holds: bool,
}

impl Reservations {
    /// What is to be kept; none where a loss of power ends it all.
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

    /// As it was kept. What no record of ours says is left out: a reservation that nobody holds, a host that comes
    /// twice, and more registrants than there can be.
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
