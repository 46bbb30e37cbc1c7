//! Times of reconnection attempts.

use std::time::{Duration, Instant};

/// Pause between two attempts: the first one, and the longest.
const FIRST: Duration = Duration::from_millis(20);
const MOST: Duration = Duration::from_secs(5);

/// A schedule of attempts with growing pauses. A connection that is lost before it was of any use counts as a
/// failed attempt: a server that accepts clients and drops them is not connected to without a pause.
#[derive(Debug)]
pub(crate) struct Retry {
    at: Instant,
    pause: Duration,
}

impl Retry {
    pub(crate) fn new() -> Self {
        Self { at: Instant::now(), pause: FIRST }
    }

    pub(crate) fn is_due(&self) -> bool {
        Instant::now() >= self.at
    }

    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Makes the next attempt due after a short pause.
    pub(crate) fn soon(&mut self, pause: Duration) {
        *self = Self { at: Instant::now() + pause, pause: FIRST };
    }

    /// Records a failed attempt.
    pub(crate) fn failed(&mut self) {
        self.at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(MOST);
    }

    /// Records the loss of a connection, and whether that connection was of use.
    pub(crate) fn lost(&mut self, was_of_use: bool) {
        match was_of_use {
            true => *self = Self::new(),
            false => self.failed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_no_use_is_tried_more_and_more_rarely() {
        let mut retry = Retry::new();
        assert!(retry.is_due());
        let mut pauses = Vec::new();
        for attempt in 0..12 {
            pauses.push(retry.pause);
            if attempt % 2 == 0 {
                retry.failed()
            } else {
                retry.lost(false)
            }
            assert!(retry.left() > Duration::ZERO || retry.is_due());
        }
        assert!(pauses.is_sorted() && pauses[0] == FIRST && pauses[11] == MOST);
        retry.lost(true);
        assert!(retry.is_due() && retry.pause == FIRST);
    }
}
