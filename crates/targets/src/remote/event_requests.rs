//! Limits for asynchronous events of a controller: how often they are requested, and how many are logged.

use std::time::{Duration, Instant};

/// Time between two requests for an event. A controller that always has another event does not keep its admin
/// thread from the requests of targets.
const PAUSE: Duration = Duration::from_millis(100);

/// Events that are logged in each window. All of them are counted.
const LOGGED: u32 = 8;
const WINDOW: Duration = Duration::from_secs(40);

/// Asynchronous Event Requests to a controller: one is outstanding, or due.
#[derive(Debug)]
pub(crate) struct EventRequests {
    /// Time of the last request.
    made: Instant,
    owed: bool,
}

impl EventRequests {
    /// Creates the state after a request that was just sent.
    pub(crate) fn new() -> Self {
        Self { made: Instant::now(), owed: false }
    }

    /// Records that the request was completed: the next may be sent.
    pub(crate) fn set_due(&mut self) {
        self.owed = true;
    }

    /// Returns the time until the next request may be sent; none if one is outstanding.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.owed.then(|| PAUSE.saturating_sub(self.made.elapsed()))
    }
}

/// A limit on logged events of a controller.
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

    /// Returns how many events were left out since the last logged one; none if this one may not be logged.
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
