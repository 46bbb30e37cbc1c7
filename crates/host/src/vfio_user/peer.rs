//! The process at the other end of a socket.

use nix::sys::socket::{getsockopt, sockopt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// The process that a client is connected to. What it has mapped it can reach for as long as it lives, whatever becomes
/// of its socket.
#[derive(Debug)]
pub struct Peer {
    /// None if it cannot be seen from here.
    pid: Option<Pid>,
    kind: PeerKind,
}

#[derive(Debug)]
enum PeerKind {
    Ourselves,
    /// A descriptor that is readable once it has ended.
    Another(OwnedFd),
    /// One that cannot be seen from here: in another namespace of processes.
    Unknown,
}

impl Peer {
    /// That which began to listen for the connection.
    pub(super) fn of(socket: &UnixStream) -> Self {
        // The kernel says 0 of a process in another namespace, which rustix's credentials have no value for.
        let credentials = getsockopt(socket, sockopt::PeerCredentials).ok();
        let pid = credentials.and_then(|peer| Pid::from_raw(peer.pid()));
        let kind = match pid {
            Some(pid) if pid == getpid() => PeerKind::Ourselves,
            Some(pid) => pidfd_open(pid, PidfdFlags::empty()).map_or(PeerKind::Unknown, PeerKind::Another),
            None => PeerKind::Unknown,
        };
        Self { pid, kind }
    }

    /// Its number, if it can be seen from here. Another process may have it once this one has ended.
    #[must_use]
    pub fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// True if it is known to have ended. A part of our own process is as good as ended once nobody listens any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match &self.kind {
            PeerKind::Ourselves => true,
            PeerKind::Unknown => false,
            PeerKind::Another(process) => {
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)), Ok(1..))
            }
        }
    }
}
