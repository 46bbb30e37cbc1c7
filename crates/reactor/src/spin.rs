//! Time that a task is polled without work: the budget of its reactor, given the competition for the
//! processor, and the part of it that pays off for the task.

use std::time::Duration;

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
        // On the only processor nothing happens while a reactor spins.
        let spin = if has_one_processor() { Duration::ZERO } else { policy.spin };
        let max_ns = u64::try_from(spin.as_nanos()).unwrap_or(u64::MAX);
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

/// Returns whether the machine has only one processor. The affinity of the thread does not count.
fn has_one_processor() -> bool {
    // A list of ranges, such as `0-3,6`.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
    online.is_ok_and(|list| !list.contains(['-', ',']))
}

/// Spin time of one task. Work within the budget of the last lengthens it, and work after the budget shortens
/// it: then the task spun in vain.
#[derive(Debug)]
pub(crate) struct TaskSpin {
    ns: u64,
    /// Time of the last work before the task went to sleep; none once work was found after it.
    idle_since_ns: Option<u64>,
}

impl TaskSpin {
    pub(crate) fn new() -> Self {
        Self { ns: u64::MAX, idle_since_ns: None }
    }

    #[inline]
    pub(crate) fn ns(&self, budget_ns: u64) -> u64 {
        self.ns.min(budget_ns)
    }

    /// Records that the task goes to sleep.
    pub(crate) fn sleeps(&mut self, last_work_ns: u64) {
        self.idle_since_ns.get_or_insert(last_work_ns);
    }

    /// Records that the task found work.
    #[inline]
    pub(crate) fn found(&mut self, now_ns: u64, budget_ns: u64) {
        if let Some(since_ns) = self.idle_since_ns {
            self.adjust(now_ns.saturating_sub(since_ns), budget_ns);
        }
    }

    #[cold]
    fn adjust(&mut self, idle_ns: u64, budget_ns: u64) {
        self.idle_since_ns = None;
        let ns = self.ns(budget_ns);
        self.ns = match idle_ns <= budget_ns {
            true => (ns * 2).max(budget_ns / 8).min(budget_ns),
            false if ns / 2 < LEAST_NS => 0,
            false => ns / 2,
        };
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_task_spins_only_where_work_comes_in_time() {
        const BUDGET_NS: u64 = 50_000;
        let mut spin = TaskSpin::new();
        assert_eq!(spin.ns(BUDGET_NS), BUDGET_NS);
        let mut now_ns = 0;
        let mut idle = |spin: &mut TaskSpin, ns: u64| {
            spin.sleeps(now_ns);
            // A wake-up without work changes nothing.
            spin.sleeps(now_ns + ns / 2);
            now_ns += ns;
            spin.found(now_ns, BUDGET_NS);
            spin.found(now_ns, BUDGET_NS);
            spin.ns(BUDGET_NS)
        };
        let shorter: Vec<_> = (0..7).map(|_| idle(&mut spin, BUDGET_NS + 1)).collect();
        assert_eq!(shorter, [25_000, 12_500, 6_250, 3_125, 1_562, 0, 0]);
        let longer: Vec<_> = (0..5).map(|_| idle(&mut spin, BUDGET_NS)).collect();
        assert_eq!(longer, [6_250, 12_500, 25_000, 50_000, 50_000]);
        assert_eq!(spin.ns(0), 0);
    }
}
