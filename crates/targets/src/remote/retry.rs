//! Times of reconnection attempts.

use std::time::{Duration, Instant};

/// Pause between two attempts: the first one, and the longest.
const FIRST: Duration = Duration::from_millis(20);
const MOST: Duration = Duration::from_secs(5);

/// The same pauses while a controller is reset by order, and its commands wait.
const FIRST_OF_RESET: Duration = Duration::from_millis(5);
const MOST_OF_RESET: Duration = Duration::from_millis(250);

/// A schedule of attempts with growing pauses. A connection that is lost before it was of any use counts as a
/// failed attempt: a server that accepts clients and drops them is not connected to without a pause.
#[derive(Debug)]
pub(crate) struct Retry {
    at: Instant,
    pause: Duration,
    most: Duration,
}

impl Retry {
    pub(crate) fn new() -> Self {
        Self { at: Instant::now(), pause: FIRST, most: MOST }
    }

    pub(crate) fn is_due(&self) -> bool {
        Instant::now() >= self.at
    }

    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Begins a reset: the next attempt is due, and the pauses are short.
    pub(crate) fn begin_reset(&mut self) {
        *self = Self { at: Instant::now(), pause: FIRST_OF_RESET, most: MOST_OF_RESET };
    }

    /// Ends a reset. The usual pauses apply to later attempts.
    pub(crate) fn end_reset(&mut self) {
        (self.pause, self.most) = (FIRST, MOST);
    }

    /// Records a failed attempt.
    pub(crate) fn failed(&mut self) {
        self.at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(self.most);
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

    #[test]
    fn a_reset_has_shorter_pauses() {
        let mut retry = Retry::new();
        (0..12).for_each(|_| retry.failed());
        for _ in 0..2 {
            retry.begin_reset();
            assert!(retry.is_due());
            let mut pauses = Vec::new();
            for _ in 0..8 {
                pauses.push(retry.pause.as_millis());
                retry.failed();
            }
            assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 250, 250]);
        }
        retry.end_reset();
        assert_eq!((retry.pause, retry.most), (FIRST, MOST));
    }
}
