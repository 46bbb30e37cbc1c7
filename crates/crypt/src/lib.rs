//! Ciphers and keys.
//!
//! - [`Xts`] is AES-XTS, sector by sector.
//! - [`SecretBytes`] holds a key or a passphrase; [`sealed`] and [`ciphering`] are how to work with one.
//! - [`Source`] is where they come from: a file, a credential of systemd's, a descriptor.
//! - [`luks`] reads LUKS2 headers, as cryptsetup writes them.
//!
//! No error has a byte of a secret in its words.
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
