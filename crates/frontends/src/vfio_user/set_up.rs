//! A guest that does not set its controller up.
//!
//! A virtual machine that was migrated or restored believes that it has done so. Its monitor has a new device, or one that
//! was reset, and nothing of what the guest does reaches that. No message tells such a machine from one that has not
//! started yet, so this is found out by waiting. Looked at when the drive goes to sleep: a turn pays nothing for it.

/// How long a guest may take: firmware that waits for its user takes as long.
const LIMIT_NS: u64 = 60_000_000_000;

#[derive(Debug, Default)]
pub(super) struct SetUp {
    /// Of the client and reset that it began with.
    life: u64,
    /// None once it is known whether it was set up.
    until_ns: Option<u64>,
}

impl SetUp {
    /// When to look.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.until_ns
    }

    /// `life` is another number after each client and each reset; none if no guest can be at work. True once in each, if
    /// the controller was not enabled in time.
    pub(super) fn is_overdue(
        &mut self,
        life: Option<u64>,
        is_enabled: impl FnOnce() -> bool,
        now_ns: u64,
    ) -> bool {
        let Some(life) = life else {
            *self = Self::default();
            return false;
        };
        if life != self.life {
            *self = Self { life, until_ns: Some(now_ns.saturating_add(LIMIT_NS)) };
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
        for life in 1..=3 {
            let began_ns = life * 1_000_000_000_000;
            assert!(!set_up.is_overdue(Some(life), || false, began_ns));
            let until_ns = set_up.deadline_ns().expect("it is looked at again");
            assert!(!set_up.is_overdue(Some(life), || false, until_ns - 1));
            assert!(set_up.is_overdue(Some(life), || false, until_ns));
            assert_eq!(set_up.deadline_ns(), None);
            assert!(!set_up.is_overdue(Some(life), || false, until_ns + 1));
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
