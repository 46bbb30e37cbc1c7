//! Counts of power cycles of the drive, over restarts of the daemon.
//!
//! For a host, the end of a daemon is a loss of the drive's power: data that was not flushed may be lost. The
//! daemon stores the counts, and the next one begins with them.

use crate::state::persistent_event::PersistentEventRecord;
use sluice_nvme::log::SmartHealth;
use sluice_nvme::persistent_event::{PowerOnOrReset, event};
use zerocopy::FromBytes;

/// Counts of the SMART / Health Information log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerCounts {
    pub cycles: u64,
    pub unsafe_shutdowns: u64,
}

impl PowerCounts {
    /// Returns the later of two stored counts.
    pub fn max(self, other: Self) -> Self {
        Self {
            cycles: self.cycles.max(other.cycles),
            unsafe_shutdowns: self.unsafe_shutdowns.max(other.unsafe_shutdowns),
        }
    }
}

impl PersistentEventRecord {
    /// Returns the last counts in the events.
    pub fn power_counts(&self) -> PowerCounts {
        let of = |(kind, data): (u8, &[u8])| match kind {
            event::POWER_ON_OR_RESET => PowerOnOrReset::read_from_prefix(data)
                .map(|(data, _)| PowerCounts { cycles: data.power_cycles.get().into(), unsafe_shutdowns: 0 })
                .ok(),
            event::SMART_SNAPSHOT => SmartHealth::read_from_prefix(data)
                .map(|(page, _)| PowerCounts {
                    cycles: page.power_cycles[0],
                    unsafe_shutdowns: page.unsafe_shutdowns[0],
                })
                .ok(),
            _ => None,
        };
        self.events().filter_map(of).fold(PowerCounts::default(), PowerCounts::max)
    }
}
