//! The process at the other end of a socket.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// The process that a client is connected to. What it has mapped it can reach for as long as it lives, whatever becomes
/// of its socket.
#[derive(Debug)]
pub struct Peer(Which);

#[derive(Debug)]
enum Which {
    Ourselves,
    /// A descriptor that is readable once it has ended.
    Another(OwnedFd),
    /// One that cannot be seen from here: in another namespace of processes.
    Unknown,
}

impl Peer {
    /// That which began to listen for the connection.
    pub(super) fn of(socket: &UnixStream) -> Self {
        let which = match socket_peercred(socket) {
            Ok(peer) if peer.pid == getpid() => Which::Ourselves,
            Ok(peer) => pidfd_open(peer.pid, PidfdFlags::empty()).map_or(Which::Unknown, Which::Another),
            Err(_) => Which::Unknown,
        };
        Self(which)
    }

    /// True if it is known to have ended. A part of our own process is as good as ended once nobody listens any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match &self.0 {
            Which::Ourselves => true,
            Which::Unknown => false,
            Which::Another(process) => {
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)), Ok(1..))
            }
        }
    }
}
