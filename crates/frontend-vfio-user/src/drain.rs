//! Drain: the end of a drive's service while a client is connected.
//!
//! The client is disconnected last. No more commands are taken from its queues, and commands in flight finish
//! as ever. Their completions are posted and their interrupts sent, and only then is the client disconnected.
//! The caller that ordered the drain limits its duration.

use super::interrupts::Interrupts;
use sluice_controller::{Controller, Subsystem};

/// Time limit for the last interrupts, in nanoseconds: a client that leaves an eventfd full and blocking gets
/// no more time.
const INTERRUPTS_NS: u64 = 100_000_000;

/// Drain that has begun.
#[derive(Debug, Default)]
pub(super) struct Drain {
    /// Time after which interrupts are not awaited any more; `None` while commands are awaited.
    give_up_ns: Option<u64>,
}

impl Drain {
    /// Returns whether the client has got all completions and interrupts that it will get. Call after a turn.
    pub(super) fn is_over(
        &mut self,
        controller: &Controller,
        subsystem: &Subsystem,
        interrupts: &Interrupts,
        now_ns: u64,
    ) -> bool {
        if !is_at_rest(controller, subsystem) {
            self.give_up_ns = None;
            return false;
        }
        let give_up_ns = *self.give_up_ns.get_or_insert(now_ns.saturating_add(INTERRUPTS_NS));
        interrupts.are_sent() || now_ns >= give_up_ns
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.give_up_ns
    }
}

/// Returns whether all taken commands have completed, except requests for events that may never come.
fn is_at_rest(controller: &Controller, subsystem: &Subsystem) -> bool {
    controller.unfinished(subsystem) + subsystem.unfinished() == 0 && !controller.is_delivering()
}
