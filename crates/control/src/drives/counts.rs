//! Counters of namespaces, queues and layers.

use super::Drives;
use super::latency::LatencyView;
use sluice_controller::CommandCounts;

/// Counters of the parts of a drive since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriveCounts {
    pub drive: String,
    pub namespaces: Vec<NamespaceCounts>,
    pub queues: Vec<QueueCounts>,
    pub layers: Vec<LayerCounts>,
}

/// Counters of a namespace that has had commands.
#[derive(Clone, Debug, PartialEq)]
pub struct NamespaceCounts {
    pub nsid: u32,
    pub counts: CommandCounts,
    /// Histograms of its commands, by operation.
    pub operations: Vec<LatencyView>,
}

/// Counters of the queues that a controller has had under one identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    pub controller: u8,
    pub queue: u16,
    pub counts: CommandCounts,
}

/// Counters of a function or a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCounts {
    pub nsid: u32,
    /// Number of the layer in its namespace.
    pub number: u8,
    /// Kind, as the configuration spells it.
    pub kind: &'static str,
    pub commands: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl Drives {
    /// Returns the counters of the parts of each open drive that is measured.
    pub fn counts(&self) -> Vec<DriveCounts> {
        let counts = |(drive, running): (String, std::sync::Arc<dyn super::Running>)| {
            let counts = running.counts().ok()?;
            (counts != DriveCounts::default()).then_some(DriveCounts { drive, ..counts })
        };
        self.running().into_iter().filter_map(counts).collect()
    }
}
