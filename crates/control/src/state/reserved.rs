//! Reservations as the state file has them.

use serde::{Deserialize, Serialize};
use sluice_controller::{HostId, KnownAs, RegistrantRecord, ReservationRecord, ReservationType};

/// A namespace whose reservations persist through power loss: who is registered, and how it is reserved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserved {
    pub drive: String,
    pub nsid: u32,
    pub registrants: Vec<SavedRegistrant>,
    /// The specification's number of the reservation's type; zero for none.
    pub rtype: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRegistrant {
    /// The Host Identifier in hexadecimal digits, as it stands in memory: 16 of them or 32.
    pub host: String,
    /// Who registered it: a host's NQN, or a guest's socket. Nothing in states that are older than this.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub key: u64,
    /// It holds the reservation.
    pub holds: bool,
}

impl Reserved {
    pub fn of(drive: &str, nsid: u32, record: &ReservationRecord) -> Self {
        let registrants = record.registrants.iter().filter_map(SavedRegistrant::of).collect();
        let rtype = record.reservation.map_or(0, |kind| kind as u8);
        Self { drive: drive.to_owned(), nsid, registrants, rtype }
    }

    /// Without what no daemon has stored.
    pub fn record(&self) -> ReservationRecord {
        let registrants = self.registrants.iter().filter_map(SavedRegistrant::record).collect();
        ReservationRecord { registrants, reservation: ReservationType::of(self.rtype) }
    }
}

impl SavedRegistrant {
    /// None of a host that has no name.
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

/// Two digits for each byte, in their order.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
