//! The way to a controller, as bytes in order both ways.

use rustix::io::Errno;
use rustix::net::sockopt;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Makes connections to one place. What is made is a stream socket that blocks, as the reactor's
/// [`Io`](sluice_reactor::Io) sends and receives on.
///
/// TCP is the only one there is. Another brings its bytes the same way, and everything above stays as it is.
pub(super) trait Transport: fmt::Debug + Send {
    /// A new connection, within so long. Blocks.
    fn connect(&self, limit: Duration) -> io::Result<OwnedFd>;

    /// Waits for so long until the other end of a connection, which is shut down, has ended it, too. False if that is not
    /// known.
    fn has_ended(&self, socket: BorrowedFd<'_>, limit: Duration) -> bool;

    /// Ends a connection, and forgets what was given to it and has not left this machine: none of it may
    /// arrive when the next connection has said something newer. Operations under way end with an error.
    fn reset(&self, socket: BorrowedFd<'_>);
}

/// TCP, to an address that is resolved anew for each connection.
#[derive(Debug)]
pub(super) struct Tcp {
    pub(super) address: String,
}

/// How often it is looked whether the other end has ended a connection.
const LOOK: Duration = Duration::from_millis(2);

/// How long a peer may be silent before the kernel asks whether it is there, and how often it asks.
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
        // A TCP socket that is connected to nothing is reset at once. Should that fail, it is reset when the
        // last descriptor of it is closed, and says nothing more from now on.
        let _ = rustix::net::connect_unspec(socket);
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    }
}

/// Connects to the first address that answers. What is left of the time is shared by those that were not tried: one at
/// which nobody answers, as where a name has an IPv6 address that leads nowhere, leaves some to the next.
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

    /// An address that lets nobody in and refuses nobody: as many wait there as may.
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
