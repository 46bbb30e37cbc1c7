//! Connections to controllers, which are to be shut down before the process ends.
//!
//! The thread of a connection shuts its controller down when no drive needs it any more. A process that ended
//! before would leave a device without a shutdown, and a remote controller would count an unsafe one.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

static CONNECTIONS: Presence = Presence::new();

/// The number of connections.
#[derive(Debug)]
struct Presence {
    count: Mutex<usize>,
    less: Condvar,
}

impl Presence {
    const fn new() -> Self {
        Self { count: Mutex::new(0), less: Condvar::new() }
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self) {
        *self.count() -= 1;
        self.less.notify_all();
    }

    /// Waits until there are none, for `limit` at most; returns how many are left.
    fn wait(&self, limit: Duration) -> usize {
        let waited = self.less.wait_timeout_while(self.count(), limit, |count| *count > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A count of one connection, for as long as it is held.
#[derive(Debug)]
pub(crate) struct Present(());

impl Present {
    pub(crate) fn new() -> Self {
        *CONNECTIONS.count() += 1;
        Self(())
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        CONNECTIONS.leave();
    }
}

/// Waits until every controller of a drive is shut down, for `limit` at most. Returns how many are not.
pub fn await_shutdowns(limit: Duration) -> usize {
    CONNECTIONS.wait(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_end_are_waited_for() {
        let presence = Presence::new();
        *presence.count() = 2;
        assert_eq!(presence.wait(Duration::ZERO), 2);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..2).for_each(|_| presence.leave()));
            assert_eq!(presence.wait(Duration::from_secs(60)), 0);
        });
    }
}
