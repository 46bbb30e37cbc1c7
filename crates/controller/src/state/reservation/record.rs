//! Reservation state that survives a loss of power (Base 8.19, Persist Through Power Loss).

use crate::state::reservation::REGISTRANTS_MAX;
use crate::state::reservation::host::HostId;
use crate::state::reservation::name::KnownAs;
use crate::state::reservation::state::{Registrant, Reservation, ReservationType, Reservations};
use sluice_command::record::{Reader, RecordError, Writer};

/// Bytes of the longest host name in a record. An NQN is shorter.
const NAME_MAX: usize = 512;

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

/// Reservations in a record for another process: no power is lost, so nothing ends.
impl Reservations {
    pub(crate) fn put(&self, part: &mut Writer) {
        part.list(&self.registrants, |part, it| {
            it.host.put(part);
            part.bytes(it.name.to_string().as_bytes());
            part.put(it.key);
        });
        part.option(self.reservation, |part, it| {
            part.put(it.kind as u8);
            it.by.put(part);
        });
        part.put(self.generation);
        part.put(self.persists);
    }

    pub(crate) fn take(part: &mut Reader<'_>) -> Result<Self, RecordError> {
        let registrants = part.list(REGISTRANTS_MAX, |part| {
            let host = HostId::take(part)?;
            let name = std::str::from_utf8(part.bytes(NAME_MAX)?);
            let name = KnownAs::parse(name.map_err(|_| RecordError::Invalid("host name"))?);
            Ok(Registrant { host, name, key: part.get()? })
        })?;
        let reservation = part.option(|part| {
            let kind = ReservationType::of(part.get()?).ok_or(RecordError::Invalid("reservation"))?;
            Ok(Reservation { kind, by: HostId::take(part)? })
        })?;
        Ok(Self { registrants, reservation, generation: part.get()?, persists: part.get()? })
    }
}
