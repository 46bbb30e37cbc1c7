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
    heard_ns: u64,
    /// Set while nothing was received since the memory was returned.
    is_lean: bool,
    /// Set while the receive is being cancelled.
    is_asked: bool,
}

impl Reclaim {
    /// Returns the state of a new connection, which has touched little memory.
    pub(super) fn new() -> Self {
        Self { heard_ns: 0, is_lean: true, is_asked: false }
    }

    #[inline]
    pub(super) fn heard(&mut self, now_ns: u64) {
        (self.heard_ns, self.is_lean) = (now_ns, false);
    }

    /// Returns the time of the last receive.
    pub(super) fn heard_ns(&self) -> u64 {
        self.heard_ns
    }

    /// Returns whether a receive ended with `result` because it was cancelled for reclaiming.
    #[inline]
    pub(super) fn is_answer(&mut self, result: i32) -> bool {
        let ended = [Errno::CANCELED, Errno::INTR].map(|errno| -errno.raw_os_error());
        std::mem::take(&mut self.is_asked) && ended.contains(&result)
    }
}

impl Connection {
    /// Returns the memory, if the connection is still idle. Its receive has been cancelled.
    #[cold]
    pub(super) fn give_back(&mut self) {
        if self.is_at_rest() {
            self.memory.give_back();
            self.tls.iter().for_each(|stream| stream.give_back());
            self.reclaim.is_lean = true;
        }
    }

    /// Returns when the connection becomes due, if it has memory to return. The admin queue is exempt: it
    /// always has event requests outstanding, and little memory.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let has_some = self.qid != 0 && !self.reclaim.is_lean && !self.reclaim.is_asked && self.is_open();
        has_some.then(|| self.reclaim.heard_ns.saturating_add(SILENCE_NS))
    }

    /// Cancels the receive, so that nothing can write to the memory.
    #[cold]
    pub(crate) fn begin_to_reclaim(&mut self) {
        self.reclaim.is_asked = true;
        self.stop_receiving();
    }
}
