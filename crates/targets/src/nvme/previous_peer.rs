//! The process of a device that was given up, which may still reach mapped memory.

use rustix::io::Errno;
use rustix::process::test_kill_process;
use sluice_host::{PciTransport, Peer};
use std::sync::Arc;

/// The process that was the device.
#[derive(Debug)]
pub(super) struct PreviousPeer(Arc<Peer>);

impl PreviousPeer {
    /// Returns the process of a device; none if the device is no process.
    pub(super) fn of(transport: &dyn PciTransport) -> Option<Self> {
        transport.peer().map(Self)
    }

    /// Returns whether the process has certainly ended.
    pub(super) fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Returns whether the new connection certainly leads to another process, while this process still
    /// exists. This process has accepted no new client, and so gives no proof that its commands have ended.
    pub(super) fn is_replaced_by(&self, transport: &dyn PciTransport) -> bool {
        let is_there = |pid| test_kill_process(pid) != Err(Errno::SRCH);
        let (now, then) = (transport.peer().and_then(|peer| peer.pid()), self.0.pid());
        now != then && !self.has_ended() && then.is_some_and(is_there)
    }
}
