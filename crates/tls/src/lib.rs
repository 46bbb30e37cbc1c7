//! TLS 1.3 with pre-shared keys, as NVMe/TCP has it (NVMe/TCP Transport Specification, 3.6.1).
//!
//! - [`Keys`] are what one party has: a file with configured keys in the interchange format, or with keys
//!   derived from them, as nvme-cli writes both.
//! - [`Psk`] is a key for one host and one subsystem, with the [`Identity`] that says which it is.
//! - [`Handshake`] is how a connection begins. It never blocks, and it is no reactor's: s2n-tls does it.
//! - [`Session`] is what comes of it: records, in and out, in buffers of its own. It does no I/O.
//! - [`Stream`] is a session whose connection a reactor drives.
//!
//! The handshake is a library's, because a mistake in it is one that nobody sees. Records are ours, since a
//! connection on a reactor may neither allocate nor copy more than it must; they are a nonce, a header and
//! one call of a library's AES-GCM.
//!
//! No error has a byte of a key in its words.
#![forbid(unsafe_code)]

mod derive;
mod handshake;
mod hello;
mod identity;
mod keys;
mod record;
#[cfg(any(test, feature = "rig"))]
pub mod rig;
mod session;
mod stream;

pub use handshake::{Handshake, HandshakeError, Keyring};
pub use identity::{Identity, Version};
pub use keys::{Keys, KeysError};
pub use record::Suite;
pub use session::{Failure, Session};
pub use stream::Stream;

use zeroize::Zeroizing;

/// True if what a peer said first begins as TLS does: with an alert, or a message of a handshake.
pub const fn is_tls(first: u8) -> bool {
    first == record::Kind::ALERT.0 || first == record::Kind::HANDSHAKE.0
}

/// The hash function of a key, and with it the cipher suite that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// TLS_AES_128_GCM_SHA256.
    Sha256,
    /// TLS_AES_256_GCM_SHA384.
    Sha384,
}

impl Hash {
    /// Bytes of a digest, and of the keys that go with it.
    pub const fn length(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
        }
    }

    /// The number that it has in interchange format and in identities.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Hash::Sha256 => 1,
            Hash::Sha384 => 2,
        }
    }

    pub(crate) const fn of_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Hash::Sha256),
            2 => Some(Hash::Sha384),
            _ => None,
        }
    }

    pub(crate) const fn of_length(bytes: usize) -> Option<Self> {
        match bytes {
            32 => Some(Hash::Sha256),
            48 => Some(Hash::Sha384),
            _ => None,
        }
    }
}

/// A key for connections of one host to one subsystem. It lives as long as a handshake.
pub struct Psk {
    /// What the host says to name it.
    pub identity: Identity,
    /// The bytes, as many as the hash of the identity has.
    pub secret: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Psk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Psk").field("identity", &self.identity).finish_non_exhaustive()
    }
}
