//! Counters of a target, readable from other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Status of an NVMe target, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmeStatus {
    /// Set while the device is connected.
    pub connected: bool,
    /// Commands sent to the device.
    pub sent: u64,
    /// Commands that the device has completed.
    pub completed: u64,
    /// Sent commands whose data was copied, because its memory was not mapped for the device.
    pub copied: u64,
    /// Number of losses of the device.
    pub losses: u64,
    /// Commands that were on the device when it was lost.
    pub interrupted: u64,
    /// Completions of the device that belonged to no command.
    pub strays: u64,
    /// Asynchronous events of the device, such as an error or a temperature; the log has the details.
    pub events: u64,
}

/// Handle of the control plane on a target's counters.
#[derive(Clone, Debug, Default)]
pub struct NvmeControl(Arc<Cells>);

#[derive(Debug, Default)]
struct Cells {
    disconnected: AtomicBool,
    sent: AtomicU64,
    completed: AtomicU64,
    copied: AtomicU64,
    losses: AtomicU64,
    interrupted: AtomicU64,
    strays: AtomicU64,
    events: AtomicU64,
}

impl NvmeControl {
    pub fn status(&self) -> NvmeStatus {
        let cells = &self.0;
        NvmeStatus {
            connected: !cells.disconnected.load(Relaxed),
            sent: cells.sent.load(Relaxed),
            completed: cells.completed.load(Relaxed),
            copied: cells.copied.load(Relaxed),
            losses: cells.losses.load(Relaxed),
            interrupted: cells.interrupted.load(Relaxed),
            strays: cells.strays.load(Relaxed),
            events: cells.events.load(Relaxed),
        }
    }

    pub(super) fn count_sent(&self, copied: bool) {
        add(&self.0.sent, 1);
        add(&self.0.copied, copied.into());
    }

    pub(super) fn count_completed(&self, commands: u64) {
        add(&self.0.completed, commands);
    }

    pub(super) fn count_interrupted(&self, commands: u64, strays: u64) {
        add(&self.0.interrupted, commands);
        add(&self.0.strays, strays);
    }

    pub(super) fn count_events(&self, events: u64) {
        add(&self.0.events, events);
    }

    /// Sets the state of the connection. The admin thread calls it, since a target without a host takes no
    /// turns.
    pub(super) fn set_connected(&self, connected: bool) {
        let before = self.0.disconnected.swap(!connected, Relaxed);
        if !connected && !before {
            add(&self.0.losses, 1);
        }
    }
}

/// Adds to a cell. Each cell has one thread that adds to it: the target's, or the admin thread.
fn add(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Relaxed) + more, Relaxed);
}
