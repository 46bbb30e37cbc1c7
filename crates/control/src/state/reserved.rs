//! Reservations in the format of the state file.

use serde::{Deserialize, Serialize};
use sluice_controller::{HostId, KnownAs, RegistrantRecord, ReservationRecord, ReservationType};

/// A namespace whose reservations persist through power loss: its registrants and the type of its
/// reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserved {
    pub drive: String,
    pub nsid: u32,
    pub registrants: Vec<SavedRegistrant>,
    /// Reservation type as numbered by the specification; zero for no reservation.
    pub rtype: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRegistrant {
    /// The Host Identifier in hexadecimal digits, in the byte order of memory: 16 or 32 digits.
    pub host: String,
    /// Name that registered the identifier: a host's NQN, or a guest's socket. Empty in states of older
    /// daemons.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub key: u64,
    /// Whether the registrant holds the reservation.
    pub holds: bool,
}

impl Reserved {
    pub fn of(drive: &str, nsid: u32, record: &ReservationRecord) -> Self {
        let registrants = record.registrants.iter().filter_map(SavedRegistrant::of).collect();
        let rtype = record.reservation.map_or(0, |kind| kind as u8);
        Self { drive: drive.to_owned(), nsid, registrants, rtype }
    }

    /// Returns the reservations as the controller holds them. Registrants and types that no daemon stores are
    /// left out.
    pub fn record(&self) -> ReservationRecord {
        let registrants = self.registrants.iter().filter_map(SavedRegistrant::record).collect();
        ReservationRecord { registrants, reservation: ReservationType::of(self.rtype) }
    }
}

impl SavedRegistrant {
    /// Returns the record of a registrant; none for a host without an identifier.
    fn of(record: &RegistrantRecord) -> Option<Self> {
        let host = match record.host {
            HostId::Short(bytes) => hex(&bytes),
            HostId::Extended(bytes) => hex(&bytes),
            HostId::Unnamed(_) => return None,
        };
        Some(Self { host, name: record.name.to_string(), key: record.key, holds: record.holds })
    }

    fn record(&self) -> Option<RegistrantRecord> {
        let value = u128::from_str_radix(&self.host, 16).ok().filter(|value| *value != 0)?;
        let host = match self.host.len() {
            16 => HostId::Short((value as u64).to_be_bytes()),
            32 => HostId::Extended(value.to_be_bytes()),
            _ => return None,
        };
        let name = KnownAs::parse(&self.name);
        Some(RegistrantRecord { host, name, key: self.key, holds: self.holds })
    }
}

/// Returns two hexadecimal digits for each byte, in order.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
