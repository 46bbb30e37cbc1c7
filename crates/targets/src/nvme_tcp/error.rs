//! Reasons why a subsystem cannot be connected to, with advice.

use crate::remote::Incompatible;
use sluice_nvme::Status;
use sluice_nvme_auth as auth;
use sluice_nvme_tcp::Violation;
use sluice_tls::{self as tls, HandshakeError};
use std::{error, fmt, io};

/// An error of a subsystem that cannot be a drive, or part of one.
#[derive(Debug)]
pub struct NvmeTcpError {
    pub(super) address: String,
    pub(super) subnqn: String,
    pub(super) kind: ErrorKind,
}

/// An error on a connection that a thread drives.
#[derive(Debug)]
pub(super) enum ErrorKind {
    /// The name cannot be resolved, or no server listens.
    Connect(io::Error),
    /// The TLS handshake failed.
    Handshake(HandshakeError),
    /// The controller uses TLS, and this host has no key.
    Encrypted,
    /// The controller closed the connection before it sent anything, as a server does that expects TLS.
    Silent,
    /// TLS failed, or the controller ended it.
    Tls(tls::Failure),
    /// There is no key for this host and the subsystem.
    NoTlsKey(String),
    /// The connection was lost.
    Socket(io::Error),
    /// The controller did not answer in time.
    Timeout(&'static str),
    /// The answer was abandoned, since the I/O queue's connection is given up.
    Abandoned,
    /// An earlier long command has no answer yet.
    Busy,
    /// The controller closed the connection.
    Closed,
    /// The controller violated the protocol.
    Violation(Violation),
    /// The controller reported a violation by this host.
    Terminated(Violation),
    /// The controller refuses a connection to the subsystem.
    Refused(Status, u32),
    /// The controller requires authentication, and there is no key for it.
    NoKey,
    /// The controller requires no authentication, and so does not prove its identity, which it has to.
    Unproved,
    /// The authentication of the host or of the controller failed.
    Authentication(auth::Failure),
    /// The controller closed the connection during the authentication.
    BrokenOff,
    /// A command failed.
    Status(&'static str, Status),
    /// The controller has a property that this host does not support.
    Unsupported(&'static str),
    Incompatible(Incompatible),
    /// Another subsystem, namespace or format answers at the address than before.
    Replaced,
    /// Another namespace answers at this address than at the other addresses.
    Differs,
    /// The thread cannot be started, or has ended.
    NoThread,
}

impl ErrorKind {
    /// Returns whether a later attempt may succeed.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Handshake(error) => error.may_pass(),
            Self::Connect(_) | Self::Socket(_) | Self::Timeout(_) | Self::Closed | Self::Silent => true,
            Self::BrokenOff | Self::Refused(..) => true,
            _ => false,
        }
    }
}

impl NvmeTcpError {
    /// Returns whether the server may be down, or starting.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Connect(_)
                | ErrorKind::Socket(_)
                | ErrorKind::Timeout(_)
                | ErrorKind::Closed
                | ErrorKind::Silent
        )
    }
}

impl From<Violation> for ErrorKind {
    fn from(violation: Violation) -> Self {
        ErrorKind::Violation(violation)
    }
}

impl From<Incompatible> for ErrorKind {
    fn from(incompatible: Incompatible) -> Self {
        ErrorKind::Incompatible(incompatible)
    }
}

impl fmt::Display for NvmeTcpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVMe/TCP subsystem {} at {}: {}", self.subnqn, self.address, self.kind)?;
        match &self.kind {
            ErrorKind::Connect(_) | ErrorKind::Timeout(_) => {
                f.write_str("; see that its server runs, and that the address and port are right")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Connect(error) => write!(f, "it cannot be connected to: {error}"),
            ErrorKind::Handshake(error) => error.fmt(f),
            ErrorKind::Encrypted => {
                f.write_str("TLS alone is spoken there; name a file with the key of this host (`tls_keys`)")
            }
            ErrorKind::Silent => f.write_str(
                "it closed the connection before it said anything, as is done where TLS alone is spoken; if it is, \
                 name a file with the key of this host (`tls_keys`)",
            ),
            ErrorKind::Tls(failure) => failure.fmt(f),
            ErrorKind::NoTlsKey(hostnqn) => {
                write!(f, "the file of keys has none for the host {hostnqn}; add one with `nvme gen-tls-key`")
            }
            ErrorKind::Socket(error) => write!(f, "the connection is lost: {error}"),
            ErrorKind::Timeout(what) => write!(f, "{what} was not answered in time"),
            ErrorKind::Busy => f.write_str("an earlier Firmware Commit is still in progress"),
            ErrorKind::Abandoned => f.write_str("its other connection is given up"),
            ErrorKind::Closed => f.write_str("it closed the connection"),
            ErrorKind::Violation(violation) => write!(f, "it violated the protocol: {violation}"),
            ErrorKind::Terminated(violation) => write!(f, "it reported a protocol violation by this host: {violation}"),
            ErrorKind::Refused(status, dw0) => refused(f, *status, *dw0),
            ErrorKind::NoKey => f.write_str(
                "it asks its hosts to prove who they are, and there is no key for that; name one with `dhchap`",
            ),
            ErrorKind::Unproved => f.write_str(
                "it does not prove who it is; give it the keys of this host, or remove `controller_key`",
            ),
            ErrorKind::Authentication(why) => write!(
                f,
                "the authentication failed: {why}; see that both ends have the same keys for this host"
            ),
            ErrorKind::BrokenOff => f.write_str(
                "the authentication failed: it closed the connection; \
                 see that both ends have the same keys for this host",
            ),
            ErrorKind::Status(what, status) => write!(f, "{what} failed with {status:?}"),
            ErrorKind::Unsupported(what) => write!(f, "it has {what}, which is not supported"),
            ErrorKind::Incompatible(incompatible) => incompatible.fmt(f),
            ErrorKind::Replaced => f.write_str(
                "another subsystem, namespace or format answers there than before; \
                 close the drive and open it again if that is meant",
            ),
            ErrorKind::Differs => f.write_str(
                "another subsystem, namespace or format answers there than at the address before; \
                 all addresses of a drive have to lead to the same",
            ),
            ErrorKind::NoThread => f.write_str("there is no thread to drive it; see the daemon's log"),
        }
    }
}

/// Writes why a Connect command failed (Base 6.3), with advice.
fn refused(f: &mut fmt::Formatter<'_>, status: Status, dw0: u32) -> fmt::Result {
    let same = |other: Status| status.same_code(other);
    if same(Status::CONNECT_CONTROLLER_BUSY) {
        f.write_str("it has a host already, or as many as it lets in at a time; disconnect another")
    } else if same(Status::CONNECT_INVALID_HOST) {
        f.write_str("it does not let this host in; add the name of `hostnqn` to its list of hosts")
    } else if same(Status::CONNECT_INVALID_PARAMETERS) && dw0 == 1 << 16 | 256 {
        f.write_str("there is no such subsystem; see what `sluice discover` lists there")
    } else {
        write!(f, "it refuses the connection with {status:?} ({dw0:#x})")
    }
}

impl error::Error for NvmeTcpError {}
