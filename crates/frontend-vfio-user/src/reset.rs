//! Deferred vfio-user replies. DEVICE_RESET and DMA_UNMAP are answered when no command is in flight, or none
//! that uses the memory. Changes of memory or interrupts are answered when all queue groups are back on this
//! reactor.
//!
//! The device is never stopped and no other client waits. Commands finish in their own time. Each turn checks
//! whether the last one has finished, and then the answer is sent. Meanwhile the client's next messages stay
//! in its socket.

use super::region::Function;
use sluice_controller::{Controller, RecallCause, Subsystem};
use sluice_memory::{Removed, Space};

/// Time that a client waits before a warning is logged, in nanoseconds.
const WARN_NS: u64 = 5_000_000_000;

/// Condition that ends a wait.
#[derive(Debug)]
enum Until {
    /// No command in flight, and registers as after power-on.
    Quiescent,
    /// Every queue served by this reactor.
    Whole,
    /// No command in flight that points into this memory.
    Unused(Removed),
}

/// Wait for commands in flight.
#[derive(Debug)]
pub(super) struct Waiting {
    until: Until,
    /// Time of the warning in the log; `None` once it is written.
    warn_at_ns: Option<u64>,
}

impl Waiting {
    /// Begins a reset of controller and function: DEVICE_RESET, function level reset, the end of D3hot.
    pub(super) fn reset(
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        function: &mut Function,
        now_ns: u64,
    ) -> Self {
        function.reset();
        Self::final_reset(controller, subsystem, now_ns)
    }

    /// Begins the reset after a client that is gone.
    pub(super) fn final_reset(controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) -> Self {
        controller.reset(subsystem);
        Self::new(Until::Quiescent, now_ns)
    }

    /// Waits for the last use of memory that is unmapped already.
    pub(super) fn unmap(removed: Removed, now_ns: u64) -> Self {
        Self::new(Until::Unused(removed), now_ns)
    }

    /// Recalls all remote queues and waits for them: a remote queue would still use the state from before a
    /// change.
    pub(super) fn recall(controller: &mut Controller, now_ns: u64) -> Self {
        controller.recall_groups(RecallCause::Client);
        Self::new(Until::Whole, now_ns)
    }

    fn new(until: Until, now_ns: u64) -> Self {
        Self { until, warn_at_ns: Some(now_ns.saturating_add(WARN_NS)) }
    }

    pub(super) fn is_over(&self, controller: &Controller, subsystem: &Subsystem) -> bool {
        match &self.until {
            Until::Quiescent => controller.is_quiescent(subsystem),
            Until::Whole => controller.has_all_queues(),
            Until::Unused(removed) => !controller.uses(subsystem, removed),
        }
    }

    /// Logs a warning, once, if the wait has taken too long.
    pub(super) fn warn_if_overdue(&mut self, drive: &str, now_ns: u64) {
        if self.warn_at_ns.take_if(|at| *at <= now_ns).is_some() {
            let what = match self.until {
                Until::Quiescent => "reset",
                Until::Whole => "change of what its queues use",
                Until::Unused(_) => "unmap",
            };
            tracing::warn!(drive, "a client's {what} has waited seconds for commands in flight");
        }
    }

    /// Returns the time at which [`warn_if_overdue`](Self::warn_if_overdue) is due.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.warn_at_ns
    }

    /// Returns the memory whose last use was awaited. The memory stays mapped until the value is dropped.
    pub(super) fn into_removed(self) -> Option<Removed> {
        match self.until {
            Until::Quiescent | Until::Whole => None,
            Until::Unused(removed) => Some(removed),
        }
    }
}

/// Reset after a client that is gone, with all memory that commands in flight may still need.
#[derive(Debug)]
pub(super) struct FinalReset {
    reset: Waiting,
    /// Memory of an unmap that was not answered before the client was gone.
    _unmapped: Option<Removed>,
}

impl FinalReset {
    pub(super) fn begin(
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        unmapped: Option<Removed>,
        now_ns: u64,
    ) -> Self {
        Self { reset: Waiting::final_reset(controller, subsystem, now_ns), _unmapped: unmapped }
    }

    pub(super) fn waiting(&self) -> &Waiting {
        &self.reset
    }

    pub(super) fn is_over(
        &mut self,
        controller: &Controller,
        subsystem: &Subsystem,
        drive: &str,
        now_ns: u64,
    ) -> bool {
        self.reset.warn_if_overdue(drive, now_ns);
        self.reset.is_over(controller, subsystem)
    }

    /// Releases the client's memory on another thread. The controller must be quiescent.
    pub(super) fn finish(self, space: &mut Space) {
        sluice_frontend::drop_later((space.unmap_all(), self));
    }
}
