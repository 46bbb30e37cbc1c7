//! Detection of a guest that does not set its controller up.
//!
//! The guest of a migrated or restored virtual machine believes that it has set the controller up. But the
//! virtual machine monitor has a new or a reset device, which the guest's doorbells and registers do not
//! reach. No message distinguishes such a machine from one that has not started yet, so only waiting shows
//! it. The check is made when the drive goes to sleep: a turn pays nothing for it.

/// Time that a guest may take: firmware that waits for its user takes as long.
const LIMIT_NS: u64 = 60_000_000_000;

#[derive(Debug, Default)]
pub(super) struct SetUp {
    /// Number of the client and reset with which the wait began.
    generation: u64,
    /// End of the wait; `None` once the outcome is certain.
    until_ns: Option<u64>,
}

impl SetUp {
    /// Returns the time of the next check.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.until_ns
    }

    /// Returns true, once for each `generation`, if the controller was not enabled in time. `generation`
    /// differs after each client and each reset, and is `None` if no guest can be at work.
    pub(super) fn is_overdue(
        &mut self,
        generation: Option<u64>,
        is_enabled: impl FnOnce() -> bool,
        now_ns: u64,
    ) -> bool {
        let Some(generation) = generation else {
            *self = Self::default();
            return false;
        };
        if generation != self.generation {
            *self = Self { generation, until_ns: Some(now_ns.saturating_add(LIMIT_NS)) };
        }
        let Some(until_ns) = self.until_ns else { return false };
        let is_enabled = is_enabled();
        let is_over = now_ns >= until_ns;
        if is_enabled || is_over {
            self.until_ns = None;
        }
        is_over && !is_enabled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_never_set_up_is_told_of_once_in_each_life() {
        let mut set_up = SetUp::default();
        for generation in 1..=3 {
            let began_ns = generation * 1_000_000_000_000;
            assert!(!set_up.is_overdue(Some(generation), || false, began_ns));
            let until_ns = set_up.deadline_ns().expect("it is looked at again");
            assert!(!set_up.is_overdue(Some(generation), || false, until_ns - 1));
            assert!(set_up.is_overdue(Some(generation), || false, until_ns));
            assert_eq!(set_up.deadline_ns(), None);
            assert!(!set_up.is_overdue(Some(generation), || false, until_ns + 1));
        }
    }

    #[test]
    fn one_that_was_set_up_is_not_looked_at_again() {
        let mut set_up = SetUp::default();
        assert!(!set_up.is_overdue(Some(1), || false, 0));
        assert!(!set_up.is_overdue(Some(1), || true, 5));
        assert_eq!(set_up.deadline_ns(), None);
        assert!(!set_up.is_overdue(Some(1), || false, u64::MAX));
        assert!(!set_up.is_overdue(Some(2), || true, 0), "nor one that is set up at once");
        assert!(!set_up.is_overdue(None, || false, u64::MAX), "nor nobody");
        assert_eq!(set_up.deadline_ns(), None);
    }
}
