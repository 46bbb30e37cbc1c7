//! Whose device was given up, and may still reach the memory that it was lent.

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, test_kill_process};
use sluice_host::{PciTransport, Peer};
use std::sync::Arc;

/// The process that a device was.
#[derive(Debug)]
pub(super) struct Former {
    peer: Arc<Peer>,
    /// None if it cannot be seen from here.
    pid: Option<Pid>,
}

impl Former {
    /// None where the device is no process.
    pub(super) fn of(transport: &dyn PciTransport) -> Option<Self> {
        Some(Self { peer: transport.peer()?, pid: pid_of(transport) })
    }

    /// True if it is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.peer.has_ended()
    }

    /// True if what is connected to now is known to be another, while this one is still there: it has let nobody in,
    /// and so has not said that what it had has ended.
    pub(super) fn was_left_for(&self, transport: &dyn PciTransport) -> bool {
        let is_there = |pid| test_kill_process(pid) != Err(Errno::SRCH);
        pid_of(transport) != self.pid && !self.has_ended() && self.pid.is_some_and(is_there)
    }
}

fn pid_of(transport: &dyn PciTransport) -> Option<Pid> {
    Some(socket_peercred(transport.presence()?).ok()?.pid)
}
