//! How often the drive's power came and went, over restarts of the daemon.
//!
//! For a host, the end of a daemon is a loss of the drive's power: data that was not flushed may be lost. The daemon stores the
//! counts, and the next one begins with them.

use crate::persistent_event::PersistentEventRecord;
use crate::subsystem::Subsystem;
use sluice_nvme::log::SmartHealth;
use sluice_nvme::persistent_event::{HardwareError, PowerOnOrReset, event};
use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Of the SMART / Health Information log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerCounts {
    pub cycles: u64,
    pub unsafe_shutdowns: u64,
}

impl PowerCounts {
    /// The later of two that were stored.
    pub fn max(self, other: Self) -> Self {
        Self {
            cycles: self.cycles.max(other.cycles),
            unsafe_shutdowns: self.unsafe_shutdowns.max(other.unsafe_shutdowns),
        }
    }
}

impl PersistentEventRecord {
    /// The last that it has.
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

impl Subsystem {
    /// Goes on with the counts of earlier daemons, the last of which was cut off if `was_cut`, together with writes that
    /// were not flushed: hosts find that in the Persistent Event Log, whose events come first.
    pub fn resume_power(&mut self, counts: PowerCounts, was_cut: bool) {
        self.health.resume_power(counts);
        if was_cut {
            let mut data = HardwareError::new_zeroed();
            data.code = U16::new(HardwareError::UNSAFE_SHUTDOWN);
            self.record_event(
                event::HARDWARE_ERROR,
                crate::persistent_event::NO_CONTROLLER,
                data.as_bytes(),
                0,
            );
        }
    }

    pub fn power_counts(&self) -> PowerCounts {
        self.health.power_counts()
    }
}
