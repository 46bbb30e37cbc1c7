//! An interrupt vector as an eventfd.

use crate::{Deadline, Error};
use rustix::event::{EventfdFlags, PollFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the device signals instead of interrupting a processor.
#[derive(Debug)]
pub struct Interrupt {
    eventfd: OwnedFd,
}

impl Interrupt {
    pub fn new() -> Result<Self, Error> {
        Ok(Self { eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// How often it was signalled since it was last asked. Does not wait.
    pub fn take(&self) -> Result<u64, Error> {
        let mut count = [0; 8];
        match rustix::io::read(&self.eventfd, &mut count) {
            Ok(_) => Ok(u64::from_le_bytes(count)),
            Err(rustix::io::Errno::AGAIN) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sleeps until it is signalled; how often it was.
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
