//! Where the function is.

use super::COMMANDS;
use super::offer::Link;
use sluice_memory::SharedRegion;
use sluice_uif::abi::OTHERS_MAX;
use sluice_uif::ring::{Receiver, Sender};
use sluice_uif::{Function, Session};
use std::fmt;

pub(super) enum Peer {
    /// On its way back.
    Absent,
    /// In this process.
    Here(Here),
    /// In a process of its own.
    There(There),
}

/// Somebody for the seat, on the way.
pub(super) enum Comer {
    /// With its arena.
    Here(Box<dyn Function>, SharedRegion),
    There(Link),
}

impl From<Link> for Comer {
    fn from(link: Link) -> Self {
        Self::There(link)
    }
}

impl fmt::Debug for Comer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if let Self::There(_) = self { "There" } else { "Here" })
    }
}

/// A function in this process.
#[derive(Debug)]
pub(super) struct Here {
    pub(super) number: u32,
    pub(super) session: Box<Session>,
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
    /// Of the connection; zero for none.
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Absent => 0,
            Self::Here(here) => here.number,
            Self::There(there) => there.number,
        }
    }

    pub(super) fn is_first_version(&self) -> bool {
        matches!(self, Self::There(there) if there.is_first_version)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("Absent"),
            Self::Here(here) => here.fmt(f),
            Self::There(there) => there.fmt(f),
        }
    }
}
