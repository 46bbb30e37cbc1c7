//! Connection on its way to a drive. It is initialized, and its Connect command is checked as far as possible
//! without the drive.

use crate::auth::AuthState;
use crate::conn::{Agreed, QueueMemory};
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
pub(crate) struct Host {
    pub(crate) nqn: String,
    pub(crate) id: [u8; 16],
}

#[derive(Debug)]
pub(crate) struct AcceptedConnect {
    pub(crate) socket: OwnedFd,
    /// TLS session, if the connection is encrypted.
    pub(crate) tls: Option<Box<Session>>,
    pub(crate) peer: SocketAddr,
    /// Local address that the host connected to.
    pub(crate) port: SocketAddr,
    pub(crate) host: Host,
    pub(crate) cntlid: u16,
    pub(crate) connect: Connect,
    pub(crate) agreed: Agreed,
    /// Connect command.
    pub(crate) entry: SubmissionEntry,
    pub(crate) memory: QueueMemory,
    /// Authentication state, if the drive requires authentication.
    pub(crate) auth: Option<Box<AuthState>>,
}

/// Error of a Connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    pub(crate) dw0: u32,
    /// Reason, for the log.
    pub(crate) why: &'static str,
}

impl Refusal {
    pub(crate) const fn new(status: Status, why: &'static str) -> Self {
        Self { status, dw0: 0, why }
    }

    pub(crate) fn parameter(parameter: InvalidParameter, why: &'static str) -> Self {
        Self { status: Status::CONNECT_INVALID_PARAMETERS, dw0: parameter.dw0(), why }
    }
}

impl AcceptedConnect {
    /// Fails the Connect command, and closes the connection.
    pub(crate) fn refuse(mut self, refusal: &Refusal) {
        refuse(self.socket.as_fd(), self.tls.as_deref_mut(), self.entry.cid, refusal, self.agreed.digests);
    }
}

/// Fails a Connect command without blocking. The socket buffer always has space for the first response on a
/// connection, unless the host is gone.
pub(crate) fn refuse(
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
pub(crate) fn response(cid: u16, refusal: &Refusal, digests: Digests) -> Head {
    let entry = CompletionEntry::new(refusal.dw0, 0, 0, cid, refusal.status, false);
    encode::capsule_resp(&entry, digests)
}
