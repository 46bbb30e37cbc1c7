//! Connections that are over, until their hosts have read why.
//!
//! The kernel resets a connection that is closed while bytes of it are unread, or that more come for, and throws away what
//! was said last and is not sent yet. So what such a host sends is taken until it ends the connection itself.

use super::wire::Wire;
use rustix::event::PollFd;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a host gets.
const LIMIT: Duration = Duration::from_secs(1);

/// So many hosts at once; then the oldest has had its time.
const PARTINGS_MAX: usize = 64;

/// The oldest first.
#[derive(Debug, Default)]
pub(super) struct Partings(VecDeque<(Wire, Instant)>);

impl Partings {
    /// One more, of which all was put that is to be said.
    pub(super) fn add(&mut self, mut wire: Wire, now: Instant) {
        if !wire.part() {
            return;
        }
        if self.0.len() == PARTINGS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((wire, now + LIMIT));
    }

    pub(super) fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.0.iter().map(|(wire, _)| wire.polled())
    }

    /// When there is something to do although nobody says anything.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.front().map(|(_, until)| *until)
    }

    /// Goes on with those that are ready, in the order in which they were polled, and ends those whose time is up.
    pub(super) fn advance(&mut self, ready: &[bool], now: Instant) {
        let mut ready = ready.iter().copied();
        self.0.retain_mut(|(wire, until)| {
            let goes_on = !ready.next().unwrap_or(false) || wire.part();
            goes_on && now < *until
        });
    }
}
