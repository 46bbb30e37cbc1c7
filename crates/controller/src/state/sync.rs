//! State and outcome of a sync.

use crate::state::power::PowerCounts;

/// Flushes of a sync. A failed one is repeated: a layer that reports a loss by a failed Flush has not
/// flushed.
#[derive(Debug, Default)]
pub(crate) struct Sync {
    pub(crate) in_flight: u32,
    pub(crate) is_second: bool,
    /// NSIDs whose flush of this round has failed.
    pub(crate) failed: Vec<u32>,
    /// NSIDs whose first flush has failed.
    pub(crate) lost: Vec<u32>,
}

/// Outcome of a sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Whether all data that was written, and is not lost, is durable.
    pub is_durable: bool,
    /// NSIDs with losses of acknowledged writes that not all hosts were notified of.
    pub unreported: Vec<u32>,
    pub power: PowerCounts,
}
