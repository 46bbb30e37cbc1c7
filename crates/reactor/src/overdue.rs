//! Deadlines that have passed without an effect.
//!
//! A task that arms a timer and does not check it in its turn would be woken for ever. That is a fault of the
//! task. Here it costs a few wake-ups a second instead of a processor, and is counted.

/// Wake-ups without effect that a task may have for one deadline. Some work takes a few turns.
const IN_VAIN_MAX: u32 = 16;

/// First pause of a task after that; doubled each time, up to the longest.
const SHORTEST_NS: u64 = 1_000_000;
const LONGEST_NS: u64 = 256_000_000;

/// Deadline for which a task was last woken, and the number of wake-ups without effect.
#[derive(Debug, Default)]
pub(crate) struct Overdue {
    until_ns: u64,
    times: u32,
}

impl Overdue {
    /// Returns the wake-up time of a task without work that requests `until_ns`. The result is later only if
    /// the same time was due again and again. A time of zero is no deadline: it means that there is more to
    /// do at once.
    pub(crate) fn defer(&mut self, until_ns: u64, now_ns: u64) -> u64 {
        if until_ns > now_ns || until_ns == 0 || until_ns != self.until_ns {
            (self.until_ns, self.times) = (until_ns, 0);
            return until_ns;
        }
        self.times = self.times.saturating_add(1);
        let Some(more) = self.times.checked_sub(IN_VAIN_MAX) else { return until_ns };
        let pause_ns = SHORTEST_NS.checked_shl(more).map_or(LONGEST_NS, |ns| ns.min(LONGEST_NS));
        if more == 0 {
            tracing::error!("a task is woken for a time that has passed, and does nothing: it is delayed");
        }
        now_ns.saturating_add(pause_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_at_which_nothing_is_done_is_put_off_further_and_further() {
        let mut overdue = Overdue::default();
        let at: Vec<u64> = (0..64).map(|_| overdue.defer(5, 10)).collect();
        assert!(at[..16].iter().all(|at| *at == 5), "{at:?}");
        assert!(at.is_sorted(), "{at:?}");
        assert_eq!((at[16], at[63]), (10 + SHORTEST_NS, 10 + LONGEST_NS));
        assert_eq!(overdue.defer(6, 10), 6, "another time is a beginning");
    }

    #[test]
    fn a_time_to_come_and_more_to_do_at_once_are_not_put_off() {
        let mut overdue = Overdue::default();
        assert!((0..100).all(|_| overdue.defer(0, 10) == 0));
        assert!((0..100).all(|_| overdue.defer(11, 10) == 11));
    }
}
