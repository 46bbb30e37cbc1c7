//! Instance of a function that a layer is connected to.

use super::COMMANDS;
use super::handshake::Link;
use sluice_memory::SharedRegion;
use sluice_uif::abi::OTHERS_MAX;
use sluice_uif::ring::{Receiver, Sender};
use sluice_uif::{Direct, Function};
use std::fmt;

pub(super) enum Peer {
    /// No instance: the next one is not there yet.
    Absent,
    /// Function in this process.
    Local(Local),
    /// Function in a process of its own.
    External(External),
}

/// Instance on its way to the layer.
pub(super) enum Incoming {
    /// Function in this process, with its arena.
    Local(Box<dyn Function>, SharedRegion),
    External(Link),
}

impl From<Link> for Incoming {
    fn from(link: Link) -> Self {
        Self::External(link)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if let Self::External(_) = self { "External" } else { "Local" })
    }
}

/// Function in this process.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) number: u32,
    pub(super) function: Box<Direct>,
}

/// Connection to a function's process.
#[derive(Debug)]
pub(super) struct External {
    pub(super) number: u32,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    /// Commands that the process has at a time.
    pub(super) commands: u16,
    /// Time at which the last request of the function's own was done.
    pub(super) done_ns: u64,
    /// Whether the process was built with version 1: it gets commands, and nothing else.
    pub(super) is_first_version: bool,
}

impl External {
    pub(super) fn new(number: u32, link: &Link) -> Self {
        let (sender, receiver) = link.rings.daemon();
        receiver.cancel_wakeup();
        let is_first_version = link.version == 1;
        let others = if is_first_version { 0 } else { OTHERS_MAX };
        let commands = link.rings.entries().saturating_sub(others).clamp(1, COMMANDS);
        Self { number, sender, receiver, commands, done_ns: 0, is_first_version }
    }
}

impl Peer {
    /// Returns the number of the connection; zero for none.
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Absent => 0,
            Self::Local(local) => local.number,
            Self::External(external) => external.number,
        }
    }

    pub(super) fn is_first_version(&self) -> bool {
        matches!(self, Self::External(external) if external.is_first_version)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("Absent"),
            Self::Local(local) => local.fmt(f),
            Self::External(external) => external.fmt(f),
        }
    }
}
