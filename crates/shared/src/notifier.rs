//! Wake-up of one side of a port by the other, if the side sleeps.

use rustix::event::{EventfdFlags, eventfd};
use sluice_reactor::park::ParkFlag;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;

/// Sleep flag of a side with the eventfd that wakes the side.
#[derive(Debug)]
pub(crate) struct Notifier {
    park: ParkFlag<AtomicU32>,
    eventfd: OwnedFd,
}

impl Notifier {
    pub(crate) fn new() -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { park: ParkFlag::default(), eventfd })
    }

    /// Wakes the side if it sleeps. Called after the message is published.
    #[inline]
    pub(crate) fn notify(&self) {
        if self.park.must_wake() {
            // The write fails after 2^64 pending notifications; the other side is awake then.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Announces sleep, unless `has_work` finds work afterwards. Returns whether there is work.
    pub(crate) fn arm(&self, has_work: impl FnOnce() -> bool) -> bool {
        self.park.announce_sleep();
        let busy = has_work();
        if busy {
            self.park.withdraw();
        }
        busy
    }

    pub(crate) fn disarm(&self) {
        self.park.withdraw();
    }

    /// Clears all pending notifications; returns whether there were some.
    #[cfg(test)]
    pub(crate) fn clear(&self) -> bool {
        rustix::io::read(&self.eventfd, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
