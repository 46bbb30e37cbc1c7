//! What the hosts of one drive may store: so many bytes, and so often.

use super::hosts::HostState;
use super::text;
use sluice_spec::problem::Problem;
use std::time::{Duration, Instant};

/// Bytes that what hosts of one drive did has at most.
const BYTES_MAX: usize = 4 << 20;

/// Stores of one drive in a second, in the long run.
const RATE: f64 = 50.0;

/// Stores of one drive that need not wait after a pause.
const BURST: f64 = 200.0;

/// Bytes of a file that count as one more store.
const LARGE: usize = 64 << 10;

/// Between two messages that hosts of a drive wait.
const SAY_EVERY: Duration = Duration::from_secs(60);

impl HostState {
    /// Checks what the hosts of a drive want remembered, beside what is remembered now. Less than that is always taken.
    /// Returns its bytes.
    ///
    /// # Errors
    /// In words: it is more than a drive has.
    pub fn check_size(&self, now: &HostState, drive: &str) -> Result<usize, Problem> {
        let bytes = text::encode_hosts(self).len();
        if bytes <= BYTES_MAX || bytes <= text::encode_hosts(now).len() {
            return Ok(bytes);
        }
        Err(Problem::conflict(format!(
            "the hosts of drive `{drive}` want {bytes} bytes stored, and a drive has {BYTES_MAX}"
        ))
        .hint("have them clear marks of Write Uncorrectable, reservations or namespaces that are of no use"))
    }
}

/// How often the hosts of one drive may have something stored.
#[derive(Debug)]
pub struct StoreBudget {
    left: f64,
    since: Instant,
    said: Option<Instant>,
}

impl StoreBudget {
    pub fn new(now: Instant) -> Self {
        Self { left: BURST, since: now, said: None }
    }

    /// Returns true if another store may begin now.
    pub fn allows(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        (self.left, self.since) = ((self.left + passed * RATE).min(BURST), now);
        self.left >= 1.0
    }

    /// Notes a store of so many bytes.
    pub fn spend(&mut self, bytes: usize) {
        self.left -= 1.0 + (bytes / LARGE) as f64;
    }

    /// Logs that hosts of a drive wait, now and then.
    pub fn say_that_they_wait(&mut self, drive: &str, now: Instant) {
        if self.said.is_none_or(|said| now.saturating_duration_since(said) >= SAY_EVERY) {
            self.said = Some(now);
            tracing::warn!(
                "hosts of drive {drive} change what is to be stored of it more than {RATE} times a second, or with many \
                 bytes each time: their commands wait"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Uncorrectable;
    use super::*;

    fn marked(ranges: u64) -> HostState {
        let ranges = (0..ranges).map(|range| [range << 20, (range << 20) + 512]).collect();
        HostState {
            uncorrectable: vec![Uncorrectable { drive: "a".into(), nsid: 1, ranges }],
            ..HostState::default()
        }
    }

    #[test]
    fn hosts_of_a_drive_have_their_bytes_and_may_always_take_less() {
        let none = HostState::default();
        marked(50_000).check_size(&none, "a").expect("it is a lot");
        let problem = marked(250_000).check_size(&none, "a").expect_err("it is too much");
        assert!(problem.error.contains("hosts of drive `a`") && problem.hint.is_some(), "{problem}");
        // A daemon before this one took more.
        marked(250_000).check_size(&marked(250_001), "a").expect("it is less than it was");
    }

    #[test]
    fn hosts_of_a_drive_store_as_often_as_its_budget_says() {
        let began = Instant::now();
        let mut budget = StoreBudget::new(began);
        let mut stores = |from: Duration, bytes: usize| {
            let mut stored = 0;
            for tick in 0..1000 {
                let now = began + from + Duration::from_millis(tick);
                while budget.allows(now) {
                    budget.spend(bytes);
                    stored += 1;
                }
            }
            stored
        };
        let first = stores(Duration::ZERO, 100);
        assert!((249..=250).contains(&first), "{first}");
        let second = stores(Duration::from_secs(1), 100);
        assert!((49..=51).contains(&second), "{second}");
        let large = stores(Duration::from_secs(2), BYTES_MAX);
        assert!((1..=2).contains(&large), "{large}");
    }
}
