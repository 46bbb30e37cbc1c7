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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    /// Returns a connection, and the end of its host.
    fn pair() -> (Wire, UnixStream) {
        let (near, far) = UnixStream::pair().expect("sockets");
        let near = TcpStream::from(OwnedFd::from(near));
        near.set_nonblocking(true).expect("a socket");
        (Wire::new(near), far)
    }

    fn origin(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    #[test]
    fn a_host_reads_the_last_message_and_has_a_second_to_leave() {
        let (mut lingering, begin) = (Lingering::new(), Instant::now());
        assert!(lingering.until().is_none());
        let (mut wire, mut far) = pair();
        wire.put(b"the end");
        far.write_all(&[1; 1000]).expect("room");
        lingering.add(origin(1), wire, begin);
        let (second, mut other) = pair();
        lingering.add(origin(2), second, begin + LIMIT / 2);
        assert_eq!((lingering.until(), lingering.polled().count()), (Some(begin + LIMIT), 2));
        let mut heard = Vec::new();
        far.read_to_end(&mut heard).expect("the end of the stream");
        assert_eq!(heard, b"the end");
        // It stays until its time is over, and the other one longer.
        lingering.advance(&[false, false], begin + LIMIT - Duration::from_nanos(1));
        assert_eq!(lingering.polled().count(), 2);
        lingering.advance(&[false, false], begin + LIMIT);
        assert_eq!((lingering.until(), lingering.polled().count()), (Some(begin + LIMIT * 3 / 2), 1));
        // A host that leaves is not awaited.
        other.write_all(&[1]).expect("room");
        drop(other);
        lingering.advance(&[false], begin + LIMIT);
        assert_eq!(lingering.polled().count(), 1, "without an event");
        lingering.advance(&[true], begin + LIMIT);
        assert_eq!(lingering.polled().count(), 0);
    }

    #[test]
    fn a_host_that_is_gone_does_not_linger() {
        let mut lingering = Lingering::new();
        let (wire, far) = pair();
        drop(far);
        lingering.add(origin(1), wire, Instant::now());
        assert_eq!(lingering.polled().count(), 0);
    }

    #[test]
    fn few_connections_linger() {
        let (mut lingering, now) = (Lingering::new(), Instant::now());
        let mut ends = Vec::new();
        for number in 0..3 * OF_ONE_ADDRESS_MAX {
            let (wire, far) = pair();
            lingering.add(origin((number / (OF_ONE_ADDRESS_MAX + 1)) as u8), wire, now);
            ends.push(far);
            assert!(lingering.polled().count() <= LINGERING_MAX.min(number + 1));
        }
        assert_eq!(lingering.polled().count(), LINGERING_MAX);
    }
}
