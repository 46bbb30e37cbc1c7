//! TLS 1.3 with pre-shared keys, for NVMe/TCP (NVMe/TCP Transport Specification, 3.6.1).
//!
//! - [`Keys`] are the keys of one party: a file with configured keys in the interchange format, or with keys
//!   derived from them, in the formats of nvme-cli.
//! - [`Psk`] is a key for one host and one subsystem, with the [`Identity`] that names it.
//! - [`Handshake`] is the beginning of a connection. It never blocks, and does not run on a reactor: s2n-tls does it.
//! - [`Session`] is the result of a handshake: records, in and out, in buffers of its own. It does no I/O.
//! - [`Stream`] is a session whose connection a reactor drives.
//!
//! A library does the handshake, because a mistake in it stays unnoticed. This crate does the records, since
//! a connection on a reactor may neither allocate nor copy more than it must. A record is a nonce, a header
//! and one call of a library's AES-GCM.
//!
//! No error message contains a byte of a key.
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

/// Returns whether the first byte of a peer begins a TLS record: an alert, or a handshake message.
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
    /// Returns the bytes of a digest, and of the keys that go with it.
    pub const fn length(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
        }
    }

    /// Returns its number in interchange format and in identities.
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

/// A key for connections of one host to one subsystem, which exists only during a handshake.
pub struct Psk {
    /// Name of the key, which the host sends.
    pub identity: Identity,
    /// The bytes, as many as the hash of the identity has.
    pub secret: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Psk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Psk").field("identity", &self.identity).finish_non_exhaustive()
    }
}
