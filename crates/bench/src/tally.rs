//! Result of one run.

use super::histogram::Histogram;
use std::time::Duration;

/// Result of one run of a load.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Commands completed.
    pub commands: u64,
    /// Completed commands that failed.
    pub failed: u64,
    pub elapsed: Duration,
    /// Latencies from the submission to the completion.
    pub latencies: Histogram,
    /// Commands that took longer than the limit for recording: begin and end, in raw ticks of the clock.
    pub slow: Vec<(u64, u64)>,
    /// Commands of each drive.
    pub shares: Vec<u64>,
}

impl Tally {
    /// Returns the commands per second.
    pub fn rate(&self) -> f64 {
        rate(self.commands, self.elapsed)
    }

    /// Adds another run of the same load.
    pub fn merge(&mut self, other: &Tally) {
        self.commands += other.commands;
        self.failed += other.failed;
        self.elapsed += other.elapsed;
        self.latencies.merge(&other.latencies);
        self.shares.iter_mut().zip(&other.shares).for_each(|(sum, share)| *sum += share);
    }

    /// Returns the fewest commands of a drive, divided by the most commands of a drive.
    pub fn fairness(&self) -> f64 {
        let fewest = self.shares.iter().min().copied().unwrap_or(0);
        let most = self.shares.iter().max().copied().unwrap_or(0);
        if most == 0 { 1.0 } else { fewest as f64 / most as f64 }
    }
}

/// Returns the rate per second.
pub fn rate(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}

/// Returns the middle value; the lower of the two if their number is even. Returns `None` if there is no
/// value.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0]), Some(3.0));
        assert_eq!(median(vec![5.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.0));
    }

    #[test]
    fn fairness_is_that_of_the_worst_off() {
        let tally = |shares: &[u64]| Tally { shares: shares.to_vec(), ..Tally::default() };
        assert_eq!(tally(&[10, 5, 8]).fairness(), 0.5);
        assert_eq!(tally(&[]).fairness(), 1.0);
    }

    #[test]
    fn runs_add_up_drive_by_drive() {
        let tally = |commands, shares: &[u64]| {
            let elapsed = Duration::from_secs(1);
            let mut tally = Tally { commands, elapsed, shares: shares.to_vec(), ..Tally::default() };
            tally.latencies.record(commands, 1);
            tally
        };
        let mut sum = tally(30, &[10, 20]);
        sum.merge(&tally(50, &[30, 20]));
        assert_eq!((sum.rate(), sum.fairness(), sum.shares), (40.0, 1.0, vec![40, 40]));
        assert_eq!((sum.latencies.count(), sum.latencies.largest()), (2, 50));
    }
}
