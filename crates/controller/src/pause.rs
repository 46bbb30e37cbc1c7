//! A controller at rest: for a front-end that wants to part from its host without losing completions.

use crate::Controller;

impl Controller {
    /// The next turn takes no entry out of any queue there is now; commands in flight go on, complete and
    /// interrupt. Whoever wants that to last says it before every turn, since the host may create queues
    /// in between.
    ///
    /// To the queues it is as if their memory were gone: there is no way back but a reset.
    pub fn pause(&mut self) {
        self.interrupts.release();
        self.sqs.iter_mut().flatten().for_each(|queue| queue.broken = true);
    }

    /// Commands that were taken and have no completion entry yet. Asynchronous Event Requests do not
    /// count: they wait for something that may never happen (Base 5.2).
    pub fn unfinished(&self) -> u32 {
        self.subsystem.slab.in_flight() - self.events.outstanding()
    }
}
