//! The transport to a controller: a stream of bytes in each direction.

use rustix::io::Errno;
use rustix::net::sockopt;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A maker of connections to one address. A connection is a blocking stream socket, for sends and receives of
/// the reactor's [`Io`](sluice_reactor::Io).
///
/// TCP is the only transport. Another one has the same interface, and nothing above changes.
pub(super) trait Transport: fmt::Debug + Send {
    /// Connects within `limit`. Blocks.
    fn connect(&self, limit: Duration) -> io::Result<OwnedFd>;

    /// Waits, for `limit` at most, until the peer of a shut down connection has ended it, too. Returns false
    /// if that is not certain.
    fn has_ended(&self, socket: BorrowedFd<'_>, limit: Duration) -> bool;

    /// Resets a connection, and drops all bytes that have not left this machine. None of them may arrive
    /// after bytes of the next connection. Operations in progress end with an error.
    fn reset(&self, socket: BorrowedFd<'_>);
}

/// TCP, to an address that is resolved anew for each connection.
#[derive(Debug)]
pub(super) struct Tcp {
    pub(super) address: String,
}

/// Time between two checks whether the peer has ended a connection.
const LOOK: Duration = Duration::from_millis(2);

/// Time of silence after which the kernel sends keepalive probes, and the time between two of them.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_secs(5);

impl Transport for Tcp {
    fn connect(&self, limit: Duration) -> io::Result<OwnedFd> {
        let addresses: Vec<SocketAddr> = self.address.to_socket_addrs()?.collect();
        let stream = connect_to_one(&addresses, limit)?;
        prepare(&stream)?;
        Ok(stream.into())
    }

    fn has_ended(&self, socket: BorrowedFd<'_>, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        // A socket is connected until both ends have closed it, one has reset it, or the kernel has given up.
        while rustix::net::getpeername(socket) != Err(Errno::NOTCONN) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        matches!(sockopt::socket_error(socket), Ok(Ok(()) | Err(Errno::CONNRESET | Errno::PIPE)))
    }

    fn reset(&self, socket: BorrowedFd<'_>) {
        // A connect to an unspecified address resets a TCP socket at once. If that fails, the socket is reset
        // with the close of its last descriptor, and sends nothing from now on.
        let _ = rustix::net::connect_unspec(socket);
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    }
}

/// Connects to the first address that answers. The untried addresses share the remaining time. So an address
/// without an answer, such as an unreachable IPv6 one, leaves time for the next.
fn connect_to_one(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let deadline = Instant::now() + limit;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (untried, address) in (1..=addresses.len() as u32).rev().zip(addresses) {
        let share = deadline.saturating_duration_since(Instant::now()) / untried;
        if share.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(address, share) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn prepare(stream: &TcpStream) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_linger(stream, Some(Duration::ZERO))?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE_MAX)?;
    sockopt::set_tcp_keepintvl(stream, ASK_EVERY)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE_MAX.as_millis() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, bind, connect, getsockname, listen, socket};

    /// Creates an address that neither accepts nor refuses connections: its backlog is full.
    fn hole() -> (SocketAddr, [OwnedFd; 2]) {
        let of_tcp = || socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let (listener, first) = (of_tcp(), of_tcp());
        bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        listen(&listener, 0).expect("it listens");
        let address = getsockname(&listener).expect("an address").try_into().expect("one of TCP");
        connect(&first, &address).expect("it is the first");
        (address, [listener, first])
    }

    #[test]
    fn an_address_that_leads_nowhere_leaves_time_for_the_next() {
        let (hole, _sockets) = hole();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let there = listener.local_addr().expect("an address");
        let connect = |addresses: &[SocketAddr]| connect_to_one(addresses, Duration::from_secs(1));
        assert_eq!(connect(&[hole]).map(drop).map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        let stream = connect(&[hole, there]).expect("somebody is there");
        assert_eq!(stream.peer_addr().expect("an address"), there);
        assert!(connect(&[]).is_err());
    }
}
