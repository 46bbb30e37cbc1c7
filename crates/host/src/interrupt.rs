//! An interrupt vector as an eventfd.

use crate::{Deadline, Error};
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::io::ReadWriteFlags;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Offset for a read of an eventfd (preadv2(2)).
const NO_OFFSET: u64 = u64::MAX;

/// An eventfd that the device signals instead of interrupting a processor.
#[derive(Debug)]
pub struct Interrupt {
    eventfd: OwnedFd,
}

impl Interrupt {
    pub fn new() -> Result<Self, Error> {
        Ok(Self { eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Returns the number of signals since the last call. Does not wait.
    pub fn take(&self) -> Result<u64, Error> {
        let mut count = [0; 8];
        // A plain read could block: the device has the same open file, and may have made it blocking.
        let into = &mut [IoSliceMut::new(&mut count)];
        match rustix::io::preadv2(&self.eventfd, into, NO_OFFSET, ReadWriteFlags::NOWAIT) {
            Ok(_) => Ok(u64::from_le_bytes(count)),
            Err(rustix::io::Errno::AGAIN) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sleeps until it is signalled; returns the number of signals.
    pub fn wait(&self, deadline: &Deadline) -> Result<u64, Error> {
        loop {
            match self.take()? {
                0 => deadline.poll(self.eventfd.as_fd(), PollFlags::IN)?,
                count => return Ok(count),
            }
        }
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
