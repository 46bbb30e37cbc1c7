//! DH-HMAC-CHAP: NVMe's in-band authentication (Base 8.3.5 in revision 2.1, 8.13.5 in 2.0).
//!
//! A host and a controller that share a key prove to one another that they have it, on each of their queues.
//! The [`Controller`] challenges the host, and the [`Host`] may challenge the controller in turn. Both roles
//! take messages and return messages; their transport (Authentication Send and Receive) is not part of this
//! crate.
//!
//! - [`Key`] reads the output of `nvme gen-dhchap-key`.
//! - [`Terms`] are the keys of a pair, and the algorithms that the two may choose.
//! - [`Entropy`] has the random values of one transaction.
//!
//! A peer may send anything: an invalid message ends the transaction with a [`Failure`]. Finite fields take
//! milliseconds, up to a tenth of a second for the largest: both roles belong on a thread with enough time.
//! Keys are on pages of their own, and all values computed from them are overwritten.
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
