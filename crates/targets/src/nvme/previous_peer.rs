//! Whose device was given up, and may still reach the memory that it was lent.

use rustix::io::Errno;
use rustix::process::test_kill_process;
use sluice_host::{PciTransport, Peer};
use std::sync::Arc;

/// The process that a device was.
#[derive(Debug)]
pub(super) struct PreviousPeer(Arc<Peer>);

impl PreviousPeer {
    /// None where the device is no process.
    pub(super) fn of(transport: &dyn PciTransport) -> Option<Self> {
        transport.peer().map(Self)
    }

    /// True if it is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// True if what is connected to now is known to be another, while this one is still there: it has let nobody in,
    /// and so has not said that what it had has ended.
    pub(super) fn is_replaced_by(&self, transport: &dyn PciTransport) -> bool {
        let is_there = |pid| test_kill_process(pid) != Err(Errno::SRCH);
        let (now, then) = (transport.peer().and_then(|peer| peer.pid()), self.0.pid());
        now != then && !self.has_ended() && then.is_some_and(is_there)
    }
}
