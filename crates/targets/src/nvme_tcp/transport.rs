//! The way to a controller, as bytes in order both ways.

use rustix::io::Errno;
use rustix::net::sockopt;
use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Makes connections to one place. What is made is a stream socket that blocks, as the reactor's
/// [`Io`](sluice_reactor::Io) sends and receives on.
///
/// TCP is the only one there is. Another brings its bytes the same way, and everything above stays as it is.
pub(super) trait Transport: fmt::Debug + Send {
    /// A new connection, within so long. Blocks.
    fn connect(&self, limit: Duration) -> io::Result<OwnedFd>;

    /// Ends a connection, and forgets what was given to it and has not left this machine: none of it may
    /// arrive when the next connection has said something newer. Operations under way end with an error.
    fn reset(&self, socket: BorrowedFd<'_>);
}

/// TCP, to an address that is resolved anew for each connection.
#[derive(Debug)]
pub(super) struct Tcp {
    pub(super) address: String,
}

/// How long a peer may be silent before the kernel asks whether it is there, and how often it asks.
const SILENCE_MAX: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_secs(5);

impl Transport for Tcp {
    fn connect(&self, limit: Duration) -> io::Result<OwnedFd> {
        let deadline = Instant::now() + limit;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.address.to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    prepare(&stream)?;
                    return Ok(stream.into());
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn reset(&self, socket: BorrowedFd<'_>) {
        // A TCP socket that is connected to nothing is reset at once. Should that fail, it is reset when the
        // last descriptor of it is closed, and says nothing more from now on.
        let _ = rustix::net::connect_unspec(socket);
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
    }
}

fn prepare(stream: &TcpStream) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_linger(stream, Some(Duration::ZERO))?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE_MAX)?;
    sockopt::set_tcp_keepintvl(stream, ASK_EVERY)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE_MAX.as_millis() as u32)
}
