//! The end of a drive's service while a client is there.
//!
//! The client goes last: nothing more is taken from its queues, what is in flight finishes as ever, its
//! completions are posted and its interrupts sent, and only then is it disconnected. Whoever ordered the
//! drain limits how long that may take.

use super::device::Device;
use super::interrupts::Interrupts;

/// How long the last interrupts may take, in nanoseconds: a client that leaves an eventfd full and
/// blocking does not get more.
const INTERRUPTS_NS: u64 = 100_000_000;

/// A drain that has begun.
#[derive(Debug, Default)]
pub(super) struct Drain {
    /// When interrupts are not waited for any more; `None` while commands are.
    give_up_ns: Option<u64>,
}

impl Drain {
    /// After a turn: whether the client has got everything that it will.
    pub(super) fn is_over(&mut self, device: &dyn Device, interrupts: &Interrupts, now_ns: u64) -> bool {
        if !device.is_at_rest() {
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
