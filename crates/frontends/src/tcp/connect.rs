//! A connection on its way to its drive: initialized, its Connect command checked as far as that can be done
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

/// Who connects. All connections of an association come from one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) nqn: String,
    pub(super) id: [u8; 16],
}

#[derive(Debug)]
pub(super) struct AcceptedConnect {
    pub(super) socket: OwnedFd,
    /// How it is encrypted, if it is.
    pub(super) tls: Option<Box<Session>>,
    pub(super) peer: SocketAddr,
    /// The address that it came to.
    pub(super) port: SocketAddr,
    pub(super) host: Host,
    pub(super) cntlid: u16,
    pub(super) connect: Connect,
    pub(super) agreed: Agreed,
    /// The Connect command.
    pub(super) entry: SubmissionEntry,
    pub(super) memory: QueueMemory,
    /// What it has to pass, if the drive says so.
    pub(super) auth: Option<Box<AuthState>>,
}

/// Why a Connect command fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: Status,
    pub(super) dw0: u32,
    /// In words, for the log.
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
    /// Says why, and closes the connection.
    pub(super) fn refuse(mut self, refusal: &Refusal) {
        refuse(self.socket.as_fd(), self.tls.as_deref_mut(), self.entry.cid, refusal, self.agreed.digests);
    }
}

/// Answers a Connect command with an error, without waiting: there is room for the first answer on a
/// connection, or nobody to read it.
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

/// The response to a Connect command that failed.
pub(super) fn response(cid: u16, refusal: &Refusal, digests: Digests) -> Head {
    let entry = CompletionEntry::new(refusal.dw0, 0, 0, cid, refusal.status, false);
    encode::capsule_resp(&entry, digests)
}
