//! The server process of a socket.

use nix::sys::socket::{getsockopt, sockopt};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// The process that a client is connected to. The process can reach mapped memory for as long as it lives,
/// even after its socket is closed.
#[derive(Debug)]
pub struct Peer {
    /// Process identifier; none if it is not visible here.
    pid: Option<Pid>,
    kind: PeerKind,
}

#[derive(Debug)]
enum PeerKind {
    Ourselves,
    /// A pidfd, which is readable once the process has ended.
    Another(OwnedFd),
    /// A process that is not visible here, in another PID namespace.
    Unknown,
}

impl Peer {
    /// Returns the process that began to listen for the connection.
    pub(super) fn of(socket: &UnixStream) -> Self {
        // The kernel returns 0 for a process in another namespace, which rustix's credentials have no value
        // for.
        let credentials = getsockopt(socket, sockopt::PeerCredentials).ok();
        let pid = credentials.and_then(|peer| Pid::from_raw(peer.pid()));
        let kind = match pid {
            Some(pid) if pid == getpid() => PeerKind::Ourselves,
            Some(pid) => pidfd_open(pid, PidfdFlags::empty()).map_or(PeerKind::Unknown, PeerKind::Another),
            None => PeerKind::Unknown,
        };
        Self { pid, kind }
    }

    /// Returns its identifier, if it is visible here. Another process may have it once this one has ended.
    #[must_use]
    pub fn pid(&self) -> Option<Pid> {
        self.pid
    }

    /// Returns whether the process has certainly ended. A server in this process counts as ended once its
    /// socket is closed.
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
