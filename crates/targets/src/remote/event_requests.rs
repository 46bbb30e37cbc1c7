//! How often a controller is heard that reports something by itself, and how much of that is logged.

use std::time::{Duration, Instant};

/// From one request for an event to the next: a controller that always has another does not keep its keeper from the
/// orders.
const PAUSE: Duration = Duration::from_millis(100);

/// Events that are logged in so much time. All are counted.
const LOGGED: u32 = 8;
const WINDOW: Duration = Duration::from_secs(40);

/// The requests for events. One is out, or is owed.
#[derive(Debug)]
pub(crate) struct EventRequests {
    /// When the last was made.
    made: Instant,
    owed: bool,
}

impl EventRequests {
    /// One was made just now.
    pub(crate) fn new() -> Self {
        Self { made: Instant::now(), owed: false }
    }

    /// It was answered, and the next may be made.
    pub(crate) fn set_due(&mut self) {
        self.owed = true;
    }

    /// How long until the next may be made; none if one is out.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.owed.then(|| PAUSE.saturating_sub(self.made.elapsed()))
    }
}

/// How much of what a controller reports was logged of late.
#[derive(Debug)]
pub(crate) struct LogLimit {
    since: Instant,
    count: u32,
    left_out: u64,
}

impl LogLimit {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), count: 0, left_out: 0 }
    }

    /// Whether one more may be logged; if so, how many were left out since the last.
    pub(crate) fn admit(&mut self) -> Option<u64> {
        if self.count == 0 || self.since.elapsed() >= WINDOW {
            (self.since, self.count) = (Instant::now(), 0);
        }
        if self.count >= LOGGED {
            self.left_out += 1;
            return None;
        }
        self.count += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_for_the_log_is_counted_there() {
        let mut logged = LogLimit::new();
        assert!((0..LOGGED).all(|_| logged.admit() == Some(0)));
        assert_eq!((logged.admit(), logged.admit()), (None, None));
        logged.since -= WINDOW;
        assert_eq!((logged.admit(), logged.admit()), (Some(2), Some(0)));
    }
}
