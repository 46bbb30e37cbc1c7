//! Time that commands wait for a connection, or for a better one.

/// Time between two checks whether commands that wait for a path, or an access state, can continue,
/// nanoseconds.
pub(super) const RECHECK_NS: u64 = 20_000_000;

/// A timer that runs while there is no connection. Once it expires, waiting and new commands fail.
#[derive(Debug)]
pub(super) struct FailTimer {
    limit_ns: Option<u64>,
    lost_at_ns: Option<u64>,
    /// Set once the waiting commands have failed.
    is_expired: bool,
}

impl FailTimer {
    /// Creates a stopped timer. Without a limit, commands wait for ever.
    pub(super) fn new(limit_ns: Option<u64>) -> Self {
        Self { limit_ns, lost_at_ns: None, is_expired: false }
    }

    pub(super) fn start(&mut self, now_ns: u64) {
        self.lost_at_ns.get_or_insert(now_ns);
    }

    pub(super) fn stop(&mut self) {
        (self.lost_at_ns, self.is_expired) = (None, false);
    }

    /// Returns whether a connection is missing, or was when the timer was last used.
    pub(super) fn is_running(&self) -> bool {
        self.lost_at_ns.is_some()
    }

    /// Returns whether a timer that was started at `since_ns` would have expired.
    pub(super) fn is_exceeded(&self, since_ns: u64, now_ns: u64) -> bool {
        self.limit_ns.is_some_and(|limit_ns| now_ns >= since_ns.saturating_add(limit_ns))
    }

    /// Returns the time at which the timer expires; none if it does not run, has no limit or has expired.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let deadline = self.lost_at_ns?.saturating_add(self.limit_ns?);
        (!self.is_expired).then_some(deadline)
    }

    /// Marks the timer as expired.
    pub(super) fn expire(&mut self) {
        self.is_expired = true;
    }

    pub(super) fn is_expired(&self) -> bool {
        self.is_expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_out_once_for_each_loss() {
        let mut fail_timer = FailTimer::new(Some(100));
        assert_eq!(fail_timer.deadline_ns(), None);
        fail_timer.start(5);
        fail_timer.start(50);
        assert_eq!((fail_timer.deadline_ns(), fail_timer.is_expired()), (Some(105), false));
        fail_timer.expire();
        assert_eq!((fail_timer.deadline_ns(), fail_timer.is_expired()), (None, true));
        assert!(!fail_timer.is_exceeded(7, 106) && fail_timer.is_exceeded(7, 107));
        fail_timer.stop();
        fail_timer.start(200);
        assert_eq!((fail_timer.deadline_ns(), fail_timer.is_expired()), (Some(300), false));
    }

    #[test]
    fn without_a_limit_it_does_not() {
        let mut fail_timer = FailTimer::new(None);
        fail_timer.start(5);
        assert_eq!(fail_timer.deadline_ns(), None);
        assert!(!fail_timer.is_exceeded(0, u64::MAX));
    }
}
