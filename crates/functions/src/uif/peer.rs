//! Where the function is.

use super::COMMANDS;
use super::offer::Link;
use sluice_uif::Session;
use sluice_uif::abi::OTHERS_MAX;
use sluice_uif::ring::{Receiver, Sender};
use std::fmt;

pub(super) enum Peer {
    /// On its way back.
    Absent,
    /// In this process.
    Here(Box<Session>),
    /// In a process of its own.
    There(There),
}

/// A connection to a function's process.
#[derive(Debug)]
pub(super) struct There {
    pub(super) number: u32,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Commands that it has at a time.
    pub(super) commands: u16,
    /// When the last request of its own was done.
    pub(super) done_ns: u64,
    /// It was built with version 1: it gets commands, and nothing else.
    pub(super) is_first_version: bool,
}

impl There {
    pub(super) fn new(number: u32, link: &Link) -> Self {
        let (sender, receiver) = link.rings.daemon();
        receiver.excuse();
        let is_first_version = link.version == 1;
        let others = if is_first_version { 0 } else { OTHERS_MAX };
        let commands = link.rings.entries().saturating_sub(others).clamp(1, COMMANDS);
        Self { number, sender, receiver, commands, done_ns: 0, is_first_version }
    }
}

impl Peer {
    /// Of the connection; zero for a function in this process, and for none.
    pub(super) fn number(&self) -> u32 {
        if let Self::There(there) = self { there.number } else { 0 }
    }

    pub(super) fn is_first_version(&self) -> bool {
        matches!(self, Self::There(there) if there.is_first_version)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("Absent"),
            Self::Here(_) => f.write_str("Here"),
            Self::There(there) => there.fmt(f),
        }
    }
}
