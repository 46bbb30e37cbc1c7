//! Return of the memory of idle connections to the kernel.
//!
//! Hosts stay connected for days without I/O, and each connection has touched as much memory as its busiest
//! moment needed. A receive in flight may write to that memory at any time. So the receive is cancelled
//! first. Once it has completed without data, nothing can write to the memory.

use super::connection::Connection;
use rustix::io::Errno;

/// Idle time after which a connection returns its memory, in nanoseconds.
pub(crate) const SILENCE_NS: u64 = 1_000_000_000;

/// State of a connection for reclaiming its memory.
#[derive(Debug)]
pub(super) struct Reclaim {
    /// Time of the last receive.
    received_ns: u64,
    /// Set while nothing was received since the memory was returned.
    is_returned: bool,
    /// Set while the receive is being cancelled.
    is_cancelling: bool,
}

impl Reclaim {
    /// Returns the state of a new connection, which has touched little memory.
    pub(super) fn new() -> Self {
        Self { received_ns: 0, is_returned: true, is_cancelling: false }
    }

    #[inline]
    pub(super) fn note_receive(&mut self, now_ns: u64) {
        (self.received_ns, self.is_returned) = (now_ns, false);
    }

    /// Returns the time of the last receive.
    pub(super) fn received_ns(&self) -> u64 {
        self.received_ns
    }

    /// Returns whether a receive ended with `result` because it was cancelled for reclaiming.
    #[inline]
    pub(super) fn is_answer(&mut self, result: i32) -> bool {
        let ended = [Errno::CANCELED, Errno::INTR].map(|errno| -errno.raw_os_error());
        std::mem::take(&mut self.is_cancelling) && ended.contains(&result)
    }
}

impl Connection {
    /// Returns the memory, if the connection is still idle. Its receive has been cancelled.
    #[cold]
    pub(super) fn give_back(&mut self) {
        if self.is_at_rest() {
            self.memory.give_back();
            self.tls.iter().for_each(|stream| stream.give_back());
            self.reclaim.is_returned = true;
        }
    }

    /// Returns when the connection becomes due, if it has memory to return. The admin queue is exempt: it
    /// always has event requests outstanding, and little memory.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let has_some =
            self.qid != 0 && !self.reclaim.is_returned && !self.reclaim.is_cancelling && self.is_open();
        has_some.then(|| self.reclaim.received_ns.saturating_add(SILENCE_NS))
    }

    /// Cancels the receive, unless that has begun.
    pub(super) fn cancel_receive(&mut self) {
        if !self.reclaim.is_cancelling {
            self.begin_to_reclaim();
        }
    }

    /// Cancels the receive, so that nothing can write to the memory.
    #[cold]
    pub(crate) fn begin_to_reclaim(&mut self) {
        self.reclaim.is_cancelling = true;
        self.stop_receiving();
    }
}
