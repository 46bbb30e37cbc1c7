//! Limits of the records that hosts of one drive cause: their size, and the rate of their stores.

use super::hosts::HostState;
use super::text;
use sluice_spec::error::ApiError;
use std::time::{Duration, Instant};

/// Maximum size of the records of one drive's hosts, bytes.
const BYTES_MAX: usize = 4 << 20;

/// Stores of one drive per second, in the long run.
const RATE: f64 = 50.0;

/// Stores of one drive that need not wait after a pause.
const BURST: f64 = 200.0;

/// Size of a file that counts as one more store, bytes.
const LARGE: usize = 64 << 10;

/// Minimum interval between two log messages that hosts of a drive wait.
const SAY_EVERY: Duration = Duration::from_secs(60);

impl HostState {
    /// Checks the size of a new host state against the limit, and returns its size in bytes. A state that is
    /// no larger than `now` is always accepted.
    ///
    /// # Errors
    /// The state is larger than the limit of a drive.
    pub fn check_size(&self, now: &HostState, drive: &str) -> Result<usize, ApiError> {
        let bytes = text::encode_hosts(self).len();
        if bytes <= BYTES_MAX || bytes <= text::encode_hosts(now).len() {
            return Ok(bytes);
        }
        Err(ApiError::conflict(format!(
            "the hosts of drive `{drive}` want {bytes} bytes stored, and a drive has {BYTES_MAX}"
        ))
        .hint("have them clear marks of Write Uncorrectable, reservations or namespaces that are of no use"))
    }
}

/// Rate limit for the stores of one drive's hosts.
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

    /// Returns whether another store may begin now.
    pub fn allows(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        (self.left, self.since) = ((self.left + passed * RATE).min(BURST), now);
        self.left >= 1.0
    }

    /// Counts a store of `bytes` bytes.
    pub fn spend(&mut self, bytes: usize) {
        self.left -= 1.0 + (bytes / LARGE) as f64;
    }

    /// Logs that hosts of a drive wait, at most once per interval.
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
        // An older daemon accepted larger states.
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
