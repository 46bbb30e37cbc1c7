//! Connection on its way to a drive. It is initialized, and its Connect command is checked as far as possible
//! without the drive.

use super::auth_state::AuthState;
use super::memory::QueueMemory;
use super::transmit::Agreed;
use rustix::net::{SendFlags, Shutdown};
use sluice_nvme::fabrics::{Connect, InvalidParameter};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};
use sluice_nvme_tcp::Digests;
use sluice_nvme_tcp::encode::{self, Head};
use sluice_tls::Session;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// Identity of a host. All connections of an association have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) nqn: String,
    pub(super) id: [u8; 16],
}

#[derive(Debug)]
pub(super) struct AcceptedConnect {
    pub(super) socket: OwnedFd,
    /// TLS session, if the connection is encrypted.
    pub(super) tls: Option<Box<Session>>,
    pub(super) peer: SocketAddr,
    /// Local address that the host connected to.
    pub(super) port: SocketAddr,
    pub(super) host: Host,
    pub(super) cntlid: u16,
    pub(super) connect: Connect,
    pub(super) agreed: Agreed,
    /// Connect command.
    pub(super) entry: SubmissionEntry,
    pub(super) memory: QueueMemory,
    /// Authentication state, if the drive requires authentication.
    pub(super) auth: Option<Box<AuthState>>,
}

/// Error of a Connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: Status,
    pub(super) dw0: u32,
    /// Reason, for the log.
    pub(super) why: &'static str,
}

impl Refusal {
    pub(super) const fn new(status: Status, why: &'static str) -> Self {
        Self { status, dw0: 0, why }
    }

    pub(super) fn parameter(parameter: InvalidParameter, why: &'static str) -> Self {
        Self { status: Status::CONNECT_INVALID_PARAMETERS, dw0: parameter.dw0(), why }
    }
}

impl AcceptedConnect {
    /// Fails the Connect command, and closes the connection.
    pub(super) fn refuse(mut self, refusal: &Refusal) {
        refuse(self.socket.as_fd(), self.tls.as_deref_mut(), self.entry.cid, refusal, self.agreed.digests);
    }
}

/// Fails a Connect command without blocking. The socket buffer always has space for the first response on a
/// connection, unless the host is gone.
pub(super) fn refuse(
    socket: impl AsFd,
    tls: Option<&mut Session>,
    cid: u16,
    refusal: &Refusal,
    digests: Digests,
) {
    const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
    let head = response(cid, refusal, digests);
    let bytes = match tls {
        Some(session) => session.seal(head.as_bytes().len(), |room| room.copy_from_slice(head.as_bytes())),
        None => head.as_bytes(),
    };
    let _ = rustix::net::send(&socket, bytes, FLAGS);
    let _ = rustix::net::shutdown(&socket, Shutdown::Write);
}

/// Returns the response to a Connect command that failed.
pub(super) fn response(cid: u16, refusal: &Refusal, digests: Digests) -> Head {
    let entry = CompletionEntry::new(refusal.dw0, 0, 0, cid, refusal.status, false);
    encode::capsule_resp(&entry, digests)
}
