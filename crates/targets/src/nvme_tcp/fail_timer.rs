//! How long commands wait for a connection, or for a better one.

/// How soon it is seen whether those that wait for a better path, or a better access state, can go on, nanoseconds.
pub(super) const RECHECK_NS: u64 = 20_000_000;

/// While there is none, a clock runs; when it has run out, what waits fails, and what comes.
#[derive(Debug)]
pub(super) struct FailTimer {
    limit_ns: Option<u64>,
    lost_at_ns: Option<u64>,
    /// What waits was told that it fails.
    is_expired: bool,
}

impl FailTimer {
    /// Without a limit, commands wait for ever.
    pub(super) fn new(limit_ns: Option<u64>) -> Self {
        Self { limit_ns, lost_at_ns: None, is_expired: false }
    }

    pub(super) fn start(&mut self, now_ns: u64) {
        self.lost_at_ns.get_or_insert(now_ns);
    }

    pub(super) fn stop(&mut self) {
        (self.lost_at_ns, self.is_expired) = (None, false);
    }

    /// Something is missed, or was when nobody asked since.
    pub(super) fn is_running(&self) -> bool {
        self.lost_at_ns.is_some()
    }

    /// The clock would have run out by now, had it begun then.
    pub(super) fn is_exceeded(&self, since_ns: u64, now_ns: u64) -> bool {
        self.limit_ns.is_some_and(|limit_ns| now_ns >= since_ns.saturating_add(limit_ns))
    }

    /// When it runs out; none if it does not, or has.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        let deadline = self.lost_at_ns?.saturating_add(self.limit_ns?);
        (!self.is_expired).then_some(deadline)
    }

    /// It runs out with this.
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
