//! How connections end.

use rustix::io::Errno;
use sluice_nvme_tcp::Violation;
use sluice_tls::Failure;
use std::fmt;

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The host closed it.
    ByHost,
    Socket(Errno),
    /// The host sent what is no TLS of this connection, or ended that.
    Tls(Failure),
    /// The host sent what it must not.
    Violation(Violation),
    /// The host says that we did.
    GivenUp(Violation),
    /// The keep-alive timer expired, or the controller failed.
    Fatal,
    /// It did not prove who it is, and another host wants its place.
    GaveWay,
    /// Nothing that the host did.
    ByServer,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseReason::ByHost => f.write_str("the host closed the connection"),
            CloseReason::Socket(errno) => write!(f, "the connection is lost: {errno}"),
            CloseReason::Tls(failure) => failure.fmt(f),
            CloseReason::Violation(violation) => write!(f, "the host broke the protocol: {violation}"),
            CloseReason::GivenUp(violation) => write!(f, "the host gave up: {violation}"),
            CloseReason::Fatal => f.write_str("the host was not heard of for its keep-alive timeout"),
            CloseReason::GaveWay => f.write_str("it has yet to prove who it is, and another wants its place"),
            CloseReason::ByServer => f.write_str("the server ends it"),
        }
    }
}
