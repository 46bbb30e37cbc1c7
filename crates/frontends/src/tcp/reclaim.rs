//! A connection that has fallen silent gives its memory back to the machine.
//!
//! Hosts stay connected for days and do nothing, and each connection has touched as much memory as its busiest moment
//! needed. What is under way may be received into that memory at any time; so the receive is ended first, and when that
//! is known and nothing came, there is nobody left who could write to it.

use super::association::Association;
use super::connection::Connection;
use rustix::io::Errno;

/// How long a connection says nothing before it is asked to, in nanoseconds.
const SILENCE_NS: u64 = 1_000_000_000;

/// Between two connections of an association, in nanoseconds: it takes the kernel a while for each.
const PAUSE_NS: u64 = 10_000_000;

/// What a connection knows of it.
#[derive(Debug)]
pub(super) struct Reclaim {
    /// When something came last.
    heard_ns: u64,
    /// Nothing came since it gave back what it had.
    is_lean: bool,
    /// Its receive is being ended.
    is_asked: bool,
}

impl Reclaim {
    /// Of a connection that is new, and has touched little.
    pub(super) fn new() -> Self {
        Self { heard_ns: 0, is_lean: true, is_asked: false }
    }

    #[inline]
    pub(super) fn heard(&mut self, now_ns: u64) {
        (self.heard_ns, self.is_lean) = (now_ns, false);
    }

    /// When something came last.
    pub(super) fn heard_ns(&self) -> u64 {
        self.heard_ns
    }

    /// True if a receive ended with this because it was asked to.
    #[inline]
    pub(super) fn is_answer(&mut self, result: i32) -> bool {
        let ended = [Errno::CANCELED, Errno::INTR].map(|errno| -errno.raw_os_error());
        std::mem::take(&mut self.is_asked) && ended.contains(&result)
    }
}

impl Connection {
    /// Its receive has ended for this alone.
    #[cold]
    pub(super) fn give_back(&mut self) {
        if self.is_at_rest() {
            self.memory.give_back();
            self.tls.iter().for_each(|stream| stream.give_back());
            self.reclaim.is_lean = true;
        }
    }

    /// When it is to be asked, if it has something. The admin queue always has requests for events, and little memory.
    fn due_ns(&self) -> Option<u64> {
        let has_some = self.qid != 0 && !self.reclaim.is_lean && !self.reclaim.is_asked && self.is_open();
        has_some.then(|| self.reclaim.heard_ns.saturating_add(SILENCE_NS))
    }
}

impl Association {
    /// Something came on a connection: it is looked at in a while.
    #[inline]
    pub(super) fn heard(&mut self, now_ns: u64) {
        if self.look_ns.is_none() {
            self.look_ns = Some(now_ns.saturating_add(SILENCE_NS));
        }
    }

    /// Has the next of those that have fallen silent give back what they have.
    #[cold]
    pub(super) fn look(&mut self, now_ns: u64) {
        let mut asked = false;
        let mut next = None::<u64>;
        for connection in self.connections.values_mut() {
            let Some(mut due_ns) = connection.due_ns() else { continue };
            if due_ns <= now_ns {
                if !connection.is_at_rest() {
                    // A command of its takes long, or its host does not read.
                    due_ns = now_ns.saturating_add(SILENCE_NS);
                } else if asked {
                    due_ns = now_ns.saturating_add(PAUSE_NS);
                } else {
                    connection.reclaim.is_asked = true;
                    connection.stop_receiving();
                    asked = true;
                    continue;
                }
            }
            next = [next, Some(due_ns)].into_iter().flatten().min();
        }
        self.look_ns = next;
    }
}
