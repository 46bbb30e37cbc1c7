//! Reasons why connections end.

use rustix::io::Errno;
use sluice_nvme_tcp::Violation;
use sluice_tls::Failure;
use std::fmt;

/// Reason why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// The host closed the connection.
    ByHost,
    Socket(Errno),
    /// The host sent bytes that are not valid TLS records, or ended the TLS session.
    Tls(Failure),
    /// The host violated the protocol.
    Violation(Violation),
    /// The host reported a violation by this controller.
    GivenUp(Violation),
    /// The keep-alive timer expired, or the controller failed.
    Fatal,
    /// The host was unauthenticated, and another host needed its place.
    Evicted,
    /// The server ends the connection, for no fault of the host.
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
            CloseReason::Evicted => f.write_str("it has yet to prove who it is, and another wants its place"),
            CloseReason::ByServer => f.write_str("the server ends it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_words() {
        let violation = Violation::SEQUENCE;
        let words = [
            (CloseReason::ByHost, "the host closed the connection".to_owned()),
            (CloseReason::Socket(Errno::PIPE), format!("the connection is lost: {}", Errno::PIPE)),
            (CloseReason::Violation(violation), format!("the host broke the protocol: {violation}")),
            (CloseReason::GivenUp(violation), format!("the host gave up: {violation}")),
        ];
        for (reason, expected) in words {
            assert_eq!(reason.to_string(), expected);
        }
        assert!(CloseReason::Evicted.to_string().contains("another wants its place"));
    }
}
