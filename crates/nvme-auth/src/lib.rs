//! DH-HMAC-CHAP: NVMe's in-band authentication (Base 8.3.5 in revision 2.1, 8.13.5 in 2.0).
//!
//! A host and a controller that share a key convince one another that they have it, on each queue of their
//! own: the [`Controller`] challenges the host, and the [`Host`] may challenge back. Both roles take messages
//! and give messages; how they travel (Authentication Send and Receive) is somebody else's.
//!
//! - [`Key`] reads what `nvme gen-dhchap-key` writes.
//! - [`Terms`] are the keys of a pair, and what the two may agree on.
//! - [`Entropy`] is what is drawn for one transaction.
//!
//! A peer may send anything: what is wrong ends the transaction with a [`Failure`]. Finite fields take
//! milliseconds, up to a tenth of a second for the largest: both roles belong on a thread that has the time.
//! Keys are on pages of their own, and what is computed of them is overwritten.
#![forbid(unsafe_code)]

mod controller;
mod entropy;
mod field;
mod group;
mod hash;
mod host;
mod key;
mod message;
mod response;
mod terms;

pub use controller::{Controller, Progress, Verdict};
pub use entropy::Entropy;
pub use group::Group;
pub use hash::Hash;
pub use host::{Host, Step};
pub use key::{Key, KeyError};
pub use message::{Failure, MESSAGE_MAX, is_negotiate};
pub use terms::{Names, Offer, Terms};

/// SECP of Authentication Send and Receive: the protocols of NVMe (SPC-5).
pub const SECURITY_PROTOCOL: u8 = 0xe9;

/// SPSP0 and SPSP1 of Authentication Send and Receive, the low byte first (Base 6.2, 6.1).
pub const PROTOCOL_SPECIFIC: u16 = 0x0101;
