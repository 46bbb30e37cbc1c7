//! Overview of a controller for an operator.

use crate::model::{Controller, Subsystem};
use crate::state::registers::State;

/// State of a controller, as its CSTS register shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not enabled by a host.
    Disabled,
    /// CSTS.RDY.
    Ready,
    /// Disabled or reset, while commands are still in flight.
    Resetting,
    /// CSTS.SHST: making everything durable.
    ShuttingDown,
    /// CSTS.SHST: shutdown complete. No data is lost when the machine is switched off.
    ShutDown,
    /// CSTS.CFS: the host has to reset the controller.
    Fatal,
}

/// State of a controller at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overview {
    pub phase: Phase,
    /// I/O queues of either kind that the host has created.
    pub submission_queues: u16,
    pub completion_queues: u16,
    /// Commands in flight, without the waiting Asynchronous Event Requests.
    pub in_flight: u32,
    pub event_requests: u32,
    /// Whether the host uses Doorbell Buffer Config.
    pub shadow_doorbells: bool,
    /// Whether the host has disabled the write cache, so that writes are durable when they finish.
    pub write_through: bool,
    /// Entries ever made in the Error Information log.
    pub error_log_entries: u64,
}

impl Controller {
    pub fn overview(&self, subsystem: &Subsystem) -> Overview {
        let events = self.events.outstanding();
        Overview {
            phase: self.phase(),
            submission_queues: io_queues(&self.sqs),
            completion_queues: io_queues(&self.cqs),
            in_flight: self.in_flight(subsystem) - events,
            event_requests: events,
            shadow_doorbells: self.doorbells.has_shadow(),
            write_through: !self.features.write_cache_enabled(),
            error_log_entries: self.errors.count(),
        }
    }

    fn phase(&self) -> Phase {
        let registers = &self.registers;
        match registers.state {
            _ if registers.is_fatal() => Phase::Fatal,
            State::Draining => Phase::Resetting,
            _ if registers.is_shutting_down() => Phase::ShuttingDown,
            _ if registers.is_shut_down() => Phase::ShutDown,
            State::Enabled => Phase::Ready,
            State::Disabled => Phase::Disabled,
        }
    }
}

/// Counts the queues, except for the admin queue, which is the first.
fn io_queues<Q>(queues: &[Option<Q>]) -> u16 {
    queues.iter().skip(1).flatten().count() as u16
}
