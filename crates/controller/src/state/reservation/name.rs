//! Host identifiers and the names of hosts.
//!
//! Host identifiers are not authenticated. The first host name to register an identifier owns it; a host with
//! a different name that presents the same identifier is treated as having none.

use crate::state::reservation::REGISTRANTS_OF_ONE_MAX;
use crate::state::reservation::state::Registrant;
use std::fmt;
use std::sync::Arc;

/// Name of a host, as its transport provides it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KnownAs {
    /// Unknown name of a registration from before names were stored.
    #[default]
    Unknown,
    /// Guest, by the identifier of its socket's controller.
    Socket(u16),
    /// Host on the network.
    Nqn(Arc<str>),
}

impl KnownAs {
    /// Parses a name in its [written form](fmt::Display).
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix("socket ").map(str::parse) {
            _ if text.is_empty() => Self::Unknown,
            Some(Ok(cntlid)) => Self::Socket(cntlid),
            _ => Self::Nqn(text.strip_prefix("host ").unwrap_or(text).into()),
        }
    }

    /// Returns whether both may be the same host. With `one_guest` all sockets are paths of one guest.
    /// Without it each socket is a guest of its own, since a guest cannot forge the socket but can send any
    /// identifier.
    pub(crate) fn may_be(&self, other: &Self, one_guest: bool) -> bool {
        match (self, other) {
            (Self::Nqn(one), Self::Nqn(other)) => one == other,
            (Self::Socket(one), Self::Socket(other)) => one_guest || one == other,
            (Self::Unknown, _) | (_, Self::Unknown) => true,
            _ => false,
        }
    }
}

impl fmt::Display for KnownAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => Ok(()),
            Self::Socket(cntlid) => write!(f, "socket {cntlid}"),
            Self::Nqn(nqn) if nqn.starts_with("nqn.") => f.write_str(nqn),
            // A host may send any name, which must not parse as another kind.
            Self::Nqn(name) => write!(f, "host {name}"),
        }
    }
}

/// Returns whether a name has as many registrations among these as one may have.
pub(super) fn has_enough(registrants: &[Registrant], name: &KnownAs) -> bool {
    let own = registrants.iter().filter(|it| it.name == *name && it.name != KnownAs::Unknown);
    own.count() >= REGISTRANTS_OF_ONE_MAX
}
