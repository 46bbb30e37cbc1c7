//! Waiting, with a limit.

use crate::{Error, PciTransport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// A time limit, and the operation that it is for.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
    what: &'static str,
}

impl Deadline {
    /// Gives up on `what` after `limit`.
    pub fn after(limit: Duration, what: &'static str) -> Self {
        Self { at: Instant::now() + limit, what }
    }

    /// Returns an error once the time is up.
    pub fn check(&self) -> Result<(), Error> {
        if Instant::now() < self.at { Ok(()) } else { Err(Error::Timeout(self.what)) }
    }

    /// Sleeps until the descriptor is ready for one of `flags`, or has failed.
    pub(crate) fn poll(&self, fd: BorrowedFd<'_>, flags: PollFlags) -> Result<(), Error> {
        loop {
            self.check()?;
            let left = self.at.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&left)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Pauses while a value in shared memory has not changed yet. First the thread spins, since the change may
/// take a microsecond. Then it yields the core, which the device may need. Then it sleeps, longer each time:
/// many threads may wait at once for lost devices, and threads that serve others need the core.
#[derive(Debug, Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    const SPINS: u32 = 200;
    const YIELDS: u32 = 400;
    const NAP: Duration = Duration::from_micros(50);
    /// Number of times that a nap is doubled: up to 1.6 ms.
    const LONGER: u32 = 5;

    /// Returns whether the pauses are sleeps already, when another system call does no harm.
    pub(crate) fn sleeps(&self) -> bool {
        self.0 > Self::YIELDS
    }

    pub(crate) fn pause(&mut self) {
        match self.0 {
            0..Self::SPINS => std::hint::spin_loop(),
            Self::SPINS..Self::YIELDS => std::thread::yield_now(),
            naps => std::thread::sleep(Self::NAP * (1 << (naps - Self::YIELDS))),
        }
        self.0 = (self.0 + 1).min(Self::YIELDS + Self::LONGER);
    }
}

/// Returns an error if the device is gone and the transport shows it. Does not wait.
pub(crate) fn check_presence(transport: &dyn PciTransport) -> Result<(), Error> {
    let Some(fd) = transport.presence() else { return Ok(()) };
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        // A poll reports a hang-up and an error without being requested.
        Ok(1..) => Err(sluice_vfio_user::Error::Closed.into()),
        Ok(0) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
