//! What a client waits for: a reset, or an unmap, that is over when nothing is in flight any more; or a change of what
//! its queues have elsewhere, that is over when they are here.
//!
//! The device is never stopped and nobody else waits: commands finish in their own time, each turn looks
//! whether the last one has, and the answer goes out then. Meanwhile the client's next messages stay
//! in its socket.

use super::device::Device;
use super::region::Function;
use sluice_memory::{Removed, Space};

/// How long a client waits before that is worth a line in the log, in nanoseconds.
const PATIENCE_NS: u64 = 5_000_000_000;

/// What has to be over.
#[derive(Debug)]
enum Until {
    /// Nothing is in flight, and registers are as after power-on.
    Quiescent,
    /// Every queue is served here.
    Whole,
    /// No command in flight points into this memory.
    Unused(Removed),
}

/// Something that takes as long as commands in flight do.
#[derive(Debug)]
pub(super) struct Waiting {
    until: Until,
    /// When it is worth a line in the log; `None` after that.
    complain_at_ns: Option<u64>,
}

impl Waiting {
    /// Begins a reset of device and function: DEVICE_RESET, function level reset, the end of D3hot.
    pub(super) fn reset(device: &mut dyn Device, function: &mut Function, now_ns: u64) -> Self {
        function.reset();
        Self::final_reset(device, now_ns)
    }

    /// Begins the reset after a client that is gone.
    pub(super) fn final_reset(device: &mut dyn Device, now_ns: u64) -> Self {
        device.reset();
        Self::new(Until::Quiescent, now_ns)
    }

    /// Waits for the last use of memory that is unmapped already.
    pub(super) fn unmap(removed: Removed, now_ns: u64) -> Self {
        Self::new(Until::Unused(removed), now_ns)
    }

    /// Waits until all queues are here: one that is elsewhere does not know of what has changed.
    pub(super) fn recall(device: &mut dyn Device, now_ns: u64) -> Self {
        device.recall_groups();
        Self::new(Until::Whole, now_ns)
    }

    fn new(until: Until, now_ns: u64) -> Self {
        Self { until, complain_at_ns: Some(now_ns.saturating_add(PATIENCE_NS)) }
    }

    pub(super) fn is_over(&self, device: &dyn Device) -> bool {
        match &self.until {
            Until::Quiescent => device.is_quiescent(),
            Until::Whole => device.is_whole(),
            Until::Unused(removed) => !device.uses(removed),
        }
    }

    /// Writes a line in the log, once, if this has taken too long.
    pub(super) fn complain_if_overdue(&mut self, drive: &str, now_ns: u64) {
        if self.complain_at_ns.take_if(|at| *at <= now_ns).is_some() {
            let what = match self.until {
                Until::Quiescent => "reset",
                Until::Whole => "change of what its queues use",
                Until::Unused(_) => "unmap",
            };
            tracing::warn!(drive, "a client's {what} has waited seconds for commands in flight");
        }
    }

    /// When [`complain_if_overdue`](Self::complain_if_overdue) wants to be called.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.complain_at_ns
    }

    /// The memory that was waited for, mapped until it is dropped.
    pub(super) fn into_removed(self) -> Option<Removed> {
        match self.until {
            Until::Quiescent | Until::Whole => None,
            Until::Unused(removed) => Some(removed),
        }
    }
}

/// The reset after a client that is gone, with all that commands in flight may still need.
#[derive(Debug)]
pub(super) struct FinalReset {
    reset: Waiting,
    /// An unmap that the client did not live to see.
    _unmapped: Option<Removed>,
}

impl FinalReset {
    pub(super) fn begin(device: &mut dyn Device, unmapped: Option<Removed>, now_ns: u64) -> Self {
        Self { reset: Waiting::final_reset(device, now_ns), _unmapped: unmapped }
    }

    pub(super) fn waiting(&self) -> &Waiting {
        &self.reset
    }

    pub(super) fn is_over(&mut self, device: &dyn Device, drive: &str, now_ns: u64) -> bool {
        self.reset.complain_if_overdue(drive, now_ns);
        self.reset.is_over(device)
    }

    /// The device is quiescent: its memory can go, on a thread that has the time.
    pub(super) fn finish(self, space: &mut Space) {
        crate::deferred_drop::drop_later((space.unmap_all(), self));
    }
}
