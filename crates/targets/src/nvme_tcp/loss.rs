//! How long commands wait for a connection, or for a better one.

/// How soon it is seen whether those that wait for a better path, or a better access state, can go on, nanoseconds.
pub(super) const LOOK_NS: u64 = 20_000_000;

/// While there is none, a clock runs; when it has run out, what waits fails, and what comes.
#[derive(Debug)]
pub(super) struct Patience {
    limit_ns: Option<u64>,
    lost_at_ns: Option<u64>,
    /// What waits was told that it fails.
    is_told: bool,
}

impl Patience {
    /// Without a limit, commands wait for ever.
    pub(super) fn new(limit_ns: Option<u64>) -> Self {
        Self { limit_ns, lost_at_ns: None, is_told: false }
    }

    pub(super) fn lost(&mut self, now_ns: u64) {
        self.lost_at_ns.get_or_insert(now_ns);
    }

    pub(super) fn found(&mut self) {
        (self.lost_at_ns, self.is_told) = (None, false);
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
        (!self.is_told).then_some(deadline)
    }

    /// It runs out with this.
    pub(super) fn run_out(&mut self) {
        self.is_told = true;
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_out_once_for_each_loss() {
        let mut patience = Patience::new(Some(100));
        assert_eq!(patience.deadline_ns(), None);
        patience.lost(5);
        patience.lost(50);
        assert_eq!((patience.deadline_ns(), patience.is_over()), (Some(105), false));
        patience.run_out();
        assert_eq!((patience.deadline_ns(), patience.is_over()), (None, true));
        assert!(!patience.is_exceeded(7, 106) && patience.is_exceeded(7, 107));
        patience.found();
        patience.lost(200);
        assert_eq!((patience.deadline_ns(), patience.is_over()), (Some(300), false));
    }

    #[test]
    fn without_a_limit_it_does_not() {
        let mut patience = Patience::new(None);
        patience.lost(5);
        assert_eq!(patience.deadline_ns(), None);
        assert!(!patience.is_exceeded(0, u64::MAX));
    }
}
