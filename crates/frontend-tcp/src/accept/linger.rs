//! Lingering close: connections that are over stay open until their hosts have read the last message.
//!
//! The kernel resets a connection that is closed while bytes are unread, or when more arrive. The reset
//! discards a message that is not sent yet. So bytes are received and dropped until the host ends the
//! connection.

use super::connection_set::ConnectionSet;
use super::wire::Wire;
use rustix::event::PollFd;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Time that a host has to end the connection.
const LIMIT: Duration = Duration::from_secs(1);

/// Limits of all lingering connections, and of those of one address. The oldest is closed above a limit.
const LINGERING_MAX: usize = 64;
const OF_ONE_ADDRESS_MAX: usize = 32;

#[derive(Debug)]
pub(super) struct Lingering(ConnectionSet<(Wire, Instant)>);

impl Lingering {
    pub(super) fn new() -> Self {
        Self(ConnectionSet::new(LINGERING_MAX, OF_ONE_ADDRESS_MAX))
    }

    /// Adds a connection whose last message is already queued in `wire`.
    pub(super) fn add(&mut self, origin: IpAddr, mut wire: Wire, now: Instant) {
        if wire.linger() {
            self.0.add(origin, (wire, now + LIMIT));
        }
    }

    pub(super) fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.0.iter().map(|(wire, _)| wire.polled())
    }

    /// Returns when the first connection times out.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.iter().map(|(_, until)| *until).min()
    }

    /// Advances the ready connections, in the order in which they were polled. Closes connections that timed
    /// out.
    pub(super) fn advance(&mut self, ready: &[bool], now: Instant) {
        self.0.take_turns(
            |index, _| ready.get(index).copied().unwrap_or(false),
            |_, (mut wire, until)| wire.linger().then_some((wire, until)),
            || false,
        );
        self.0.retain(|(_, until)| now < *until);
    }
}
