//! Ciphers and keys.
//!
//! - [`Xts`] is AES-XTS, sector by sector.
//! - [`SecretBytes`] holds a key or a passphrase; [`sealed`] and [`ciphering`] wrap work with one.
//! - [`Source`] is the place of a secret: a file, a credential of systemd's, a descriptor.
//! - [`luks`] reads LUKS2 headers, as cryptsetup writes them.
//!
//! No error message contains a byte of a secret.
#![forbid(unsafe_code)]

pub mod luks;
mod sealed;
mod secret;
mod source;
mod xts;

pub use sealed::{ciphering, sealed};
pub use secret::SecretBytes;
pub use source::{Given, Source};
pub use xts::Xts;
