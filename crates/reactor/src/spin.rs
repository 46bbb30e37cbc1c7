//! Time that a task is polled without work, given the competition for the processor.

use crate::clock;
use crate::config::IdlePolicy;

/// Amount of spinning that is enough for an evaluation.
const ENOUGH_SPIN_NS: u64 = 10_000_000;
/// Interval at which a reactor that spins less than its maximum tries more.
const RETRY_NS: u64 = 100_000_000;
/// Smallest budget; less is not worth a turn.
const LEAST_NS: u64 = 1_000;

/// Spin time in force. The time is halved while the thread is kept off its processor for more than a tenth of
/// its awake time, and doubled otherwise.
#[derive(Debug)]
pub(crate) struct SpinBudget {
    max_ns: u64,
    budget_ns: u64,
    spun_ns: u64,
    slept_ns: u64,
    since_ns: u64,
    cpu_since_ns: u64,
}

impl SpinBudget {
    pub(crate) fn new(policy: &IdlePolicy, now_ns: u64) -> Self {
        let max_ns = u64::try_from(policy.spin.as_nanos()).unwrap_or(u64::MAX);
        let cpu_since_ns = clock::thread_cpu_ns();
        Self { max_ns, budget_ns: max_ns, spun_ns: 0, slept_ns: 0, since_ns: now_ns, cpu_since_ns }
    }

    pub(crate) fn ns(&self) -> u64 {
        self.budget_ns
    }

    pub(crate) fn slept(&mut self, ns: u64) {
        self.slept_ns += ns;
    }

    /// Counts time spun; returns whether the budget was evaluated anew.
    pub(crate) fn spun(&mut self, ns: u64, now_ns: u64) -> bool {
        self.spun_ns += ns;
        let retry = self.budget_ns < self.max_ns && now_ns - self.since_ns >= RETRY_NS;
        if self.spun_ns < ENOUGH_SPIN_NS && !retry {
            return false;
        }
        let cpu_now_ns = clock::thread_cpu_ns();
        let awake_ns = (now_ns - self.since_ns).saturating_sub(self.slept_ns);
        self.adjust(awake_ns, cpu_now_ns - self.cpu_since_ns);
        (self.spun_ns, self.slept_ns) = (0, 0);
        (self.since_ns, self.cpu_since_ns) = (now_ns, cpu_now_ns);
        true
    }

    /// Adjusts the budget for a thread that was awake for `awake_ns` and ran for `ran_ns` of them.
    fn adjust(&mut self, awake_ns: u64, ran_ns: u64) {
        let kept_off_ns = awake_ns.saturating_sub(ran_ns);
        if kept_off_ns > awake_ns / 10 {
            self.budget_ns /= 2;
            if self.budget_ns < LEAST_NS {
                self.budget_ns = 0;
            }
        } else if kept_off_ns <= awake_ns / 50 {
            self.budget_ns = (self.budget_ns * 2).max(self.max_ns / 16).min(self.max_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn budget() -> SpinBudget {
        let policy = IdlePolicy { spin: Duration::from_micros(50), ..IdlePolicy::default() };
        SpinBudget::new(&policy, 0)
    }

    #[test]
    fn a_shared_core_shrinks_it_to_nothing_and_a_free_one_restores_it() {
        let mut spin = budget();
        for _ in 0..6 {
            spin.adjust(10_000_000, 5_000_000);
        }
        assert_eq!(spin.ns(), 0);
        for _ in 0..5 {
            spin.adjust(10_000_000, 10_000_000);
        }
        assert_eq!(spin.ns(), 50_000);
    }

    #[test]
    fn a_little_competition_changes_nothing() {
        let mut spin = budget();
        spin.adjust(10_000_000, 9_500_000);
        assert_eq!(spin.ns(), 50_000);
    }

    #[test]
    fn it_is_judged_only_after_enough_spinning() {
        let mut spin = budget();
        assert!(!spin.spun(ENOUGH_SPIN_NS - 1, ENOUGH_SPIN_NS));
        assert!(spin.spun(1, ENOUGH_SPIN_NS));
    }
}
