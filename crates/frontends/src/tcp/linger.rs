//! Connections that are over, until their hosts have read why.
//!
//! The kernel resets a connection that is closed while bytes of it are unread, or that more come for, and throws away what
//! was said last and is not sent yet. So what such a host sends is taken until it ends the connection itself.

use super::crowd::Crowd;
use super::wire::Wire;
use rustix::event::PollFd;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a host gets.
const LIMIT: Duration = Duration::from_secs(1);

/// So many hosts at once, and so many of one address; then the oldest has had its time.
const LINGERING_MAX: usize = 64;
const OF_ONE_ADDRESS_MAX: usize = 32;

#[derive(Debug)]
pub(super) struct Lingering(Crowd<(Wire, Instant)>);

impl Lingering {
    pub(super) fn new() -> Self {
        Self(Crowd::new(LINGERING_MAX, OF_ONE_ADDRESS_MAX))
    }

    /// One more, of which all was put that is to be said.
    pub(super) fn add(&mut self, origin: IpAddr, mut wire: Wire, now: Instant) {
        if wire.linger() {
            self.0.add(origin, (wire, now + LIMIT));
        }
    }

    pub(super) fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.0.iter().map(|(wire, _)| wire.polled())
    }

    /// When there is something to do although nobody says anything.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.iter().map(|(_, until)| *until).min()
    }

    /// Goes on with those that are ready, in the order in which they were polled, and ends those whose time is up.
    pub(super) fn advance(&mut self, ready: &[bool], now: Instant) {
        self.0.take_turns(
            |index, _| ready.get(index).copied().unwrap_or(false),
            |_, (mut wire, until)| wire.linger().then_some((wire, until)),
            || false,
        );
        self.0.retain(|(_, until)| now < *until);
    }
}
