//! Conversation of a daemon with the process that takes its place.
//!
//! The daemon (the *predecessor*) starts another binary (the *successor*) with a socket as its standard input.
//! Both greet with the version of the conversation. The successor prepares all that touches no storage, and
//! reports that it is ready. Then the predecessor suspends one item after the other (a drive, a socket) and sends
//! its record with its descriptors. The successor answers for each. One message commits: after it the successor
//! has everything, and the predecessor ends. Before it, the end of either leaves the predecessor in charge: it
//! kills the successor, waits until that process is gone, and goes on.
//!
//! Every step has a time limit. No byte of the other process is trusted: an upgrade to any program at all ends
//! with an error in words.
#![forbid(unsafe_code)]

mod channel;
mod greeting;
pub mod locks;
mod predecessor;
mod successor;

pub use channel::{BYTES_MAX, Channel, ChannelError, FDS_MAX, Message};
pub use greeting::Version;
pub use predecessor::{Limits, Parcel, Source, Stage, UpgradeError, upgrade, upgrade_over};
pub use successor::{Sink, TakeOverError, take_over};

/// Kinds of messages.
mod kind {
    pub(crate) const HELLO: u16 = 1;
    pub(crate) const READY: u16 = 2;
    pub(crate) const ITEM: u16 = 3;
    pub(crate) const TAKEN: u16 = 4;
    pub(crate) const REFUSED: u16 = 5;
    pub(crate) const COMMIT: u16 = 6;
}
