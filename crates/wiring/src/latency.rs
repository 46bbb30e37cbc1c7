//! Histograms of the latency of drives, and traces of their commands, between the reactors that write them and the
//! control side.

use sluice_command::NodeId;
use sluice_control::drives::{DriveCounts, LatencyView, LayerCounts, NamespaceCounts, QueueCounts};
use sluice_controller::{
    LatencyCells, LatencyClock, OperationLatency, SlowCommand, Subsystem, TraceChoice, TraceRing,
};
use sluice_spec::error::ApiError;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Histograms of a drive: one set for its subsystem, and one for each subsystem of its remote queue groups.
#[derive(Debug)]
pub(super) struct DriveLatency {
    /// Clock of the measurement; none if it is off.
    clock: Option<LatencyClock>,
    /// Time from which on a command is slow.
    slow_ns: u64,
    /// Whether layers are counted.
    layers: bool,
    all: Mutex<Vec<Arc<LatencyCells>>>,
    /// Ring of the last trace of the drive.
    trace: Mutex<Weak<TraceRing>>,
}

/// Histograms on their way to the subsystem that writes them.
#[derive(Debug)]
pub(super) struct LatencyWriter(Option<(LatencyClock, Arc<LatencyCells>)>);

impl LatencyWriter {
    pub(super) fn install(self, subsystem: &mut Subsystem) {
        if let Some((clock, cells)) = self.0 {
            subsystem.measure_latency(clock, cells);
        }
    }
}

impl DriveLatency {
    pub(super) fn new(clock: Option<LatencyClock>, slow_ns: u64, layers: bool) -> Self {
        Self { clock, slow_ns, layers, all: Mutex::default(), trace: Mutex::default() }
    }

    /// Returns histograms for a subsystem. Histograms whose subsystem is gone are used again.
    pub(super) fn writer(&self) -> LatencyWriter {
        let Some(clock) = &self.clock else { return LatencyWriter(None) };
        // A panic ends the process, so the lock is never poisoned.
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = all.iter().find(|cells| Arc::strong_count(cells) == 1).cloned();
        let cells = unused.unwrap_or_else(|| {
            let cells = LatencyCells::new(self.slow_ns);
            let cells = Arc::new(if self.layers { cells.with_layers() } else { cells });
            all.push(Arc::clone(&cells));
            cells
        });
        LatencyWriter(Some((clock.clone(), cells)))
    }

    /// Returns the number of slow commands, and takes the slowest one since the last call.
    pub(super) fn take_slowest(&self) -> (u64, Option<SlowCommand>) {
        // The lock makes this the only thread that takes.
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let slow = all.iter().map(|cells| cells.slow()).sum();
        (slow, all.iter().filter_map(|cells| cells.take_slowest()).max_by_key(|slowest| slowest.ns))
    }

    /// Returns the counters of a drive with these layers: NSID, layer and kind of each.
    pub(super) fn counts(&self, layers: &[(u32, NodeId, &'static str)]) -> DriveCounts {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let cells = || all.iter().map(|cells| &**cells);
        let namespaces = LatencyCells::namespaces(cells().collect::<Vec<_>>());
        let namespaces = namespaces.into_iter().map(|(nsid, counts, times)| NamespaceCounts {
            nsid,
            counts,
            operations: times.into_iter().map(LatencyView::from).collect(),
        });
        let queues = LatencyCells::queues(cells()).into_iter();
        let queues =
            queues.map(|it| QueueCounts { controller: it.controller, queue: it.queue, counts: it.counts });
        let layer = |(nsid, node, kind): &(u32, NodeId, &'static str)| {
            let each = cells().filter_map(|cells| cells.layers()?.get(*nsid as usize - 1, *node));
            let mut sum = LayerCounts {
                nsid: *nsid,
                number: node.0,
                kind,
                commands: 0,
                bytes_read: 0,
                bytes_written: 0,
            };
            for counts in each {
                sum.commands += counts.commands;
                sum.bytes_read = sum.bytes_read.wrapping_add(counts.bytes_read);
                sum.bytes_written = sum.bytes_written.wrapping_add(counts.bytes_written);
            }
            sum
        };
        DriveCounts {
            drive: String::new(),
            namespaces: namespaces.collect(),
            queues: queues.collect(),
            layers: layers.iter().filter(|_| self.layers).map(layer).collect(),
        }
    }

    /// Returns whether commands are measured.
    pub(super) fn is_on(&self) -> bool {
        self.clock.is_some()
    }

    /// Begins a trace, which `start` installs in the drive.
    pub(super) fn begin_trace(
        &self,
        choice: TraceChoice,
        start: impl FnOnce(Arc<TraceRing>) -> Result<(), ApiError>,
    ) -> Result<Arc<TraceRing>, ApiError> {
        let mut last = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        if last.upgrade().is_some_and(|ring| !ring.is_over()) {
            return Err(ApiError::conflict("the commands of this drive are traced already")
                .hint("end the other trace first: a drive has one at a time"));
        }
        let ring = Arc::new(TraceRing::new(self.clock.clone().unwrap_or_default(), choice));
        start(Arc::clone(&ring))?;
        *last = Arc::downgrade(&ring);
        Ok(ring)
    }

    /// Returns the sums of all histograms by operation; none if nothing is measured.
    pub(super) fn sums(&self) -> Vec<OperationLatency> {
        if self.clock.is_none() {
            return Vec::new();
        }
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        LatencyCells::sums(all.iter().map(|cells| &**cells))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_subsystems_have_the_same_histograms_at_a_time() {
        let latency = DriveLatency::new(Some(LatencyClock::mock().0), u64::MAX, true);
        let cells = |writer: &LatencyWriter| writer.0.as_ref().map(|(_, cells)| Arc::as_ptr(cells));
        let (first, second) = (latency.writer(), latency.writer());
        assert_ne!(cells(&first), cells(&second));
        let unused = cells(&second);
        drop(second);
        assert_eq!(cells(&latency.writer()), unused);
        assert_eq!(latency.sums().len(), 4);
        let off = DriveLatency::new(None, u64::MAX, false);
        assert!(off.writer().0.is_none() && off.sums().is_empty());
    }
}
