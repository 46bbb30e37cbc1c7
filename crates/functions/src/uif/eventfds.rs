//! How a layer rings its function and is rung, without ever waiting for it.

use sluice_reactor::{FileSlot, Io, TaskId};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The eventfds of a connection. The function has them too, and may leave them full, empty or blocking.
pub(super) trait Eventfds: fmt::Debug + Send {
    /// A connection begins.
    fn attach(&mut self, doorbell: OwnedFd, bell: OwnedFd) -> io::Result<()>;
    /// Wakes the function.
    fn signal(&mut self);
    /// The connection is over.
    fn detach(&mut self);
}

/// Beside the tickets of commands, which never number so many slots: what the layer's own events carry.
pub(super) mod ticket {
    /// The keeper has news.
    pub(in super::super) const INSTANCE: u32 = u32::MAX;
    /// The function has replied.
    pub(in super::super) const REPLIES: u32 = u32::MAX - 1;
    /// The function was rung.
    pub(in super::super) const SIGNALLED: u32 = u32::MAX - 2;
}

/// Through the reactor's io_uring, where nothing blocks.
#[derive(Debug)]
pub(super) struct IoEventfds {
    io: Io,
    task: TaskId,
    token_prefix: u64,
    _seat: FileSlot,
    /// Doorbell and bell.
    link: Option<(FileSlot, FileSlot)>,
}

impl IoEventfds {
    /// `token_prefix` is what the tokens of this layer have beside their low 32 bits. The layer hears of
    /// `seat` from now on.
    pub(super) fn new(
        task: TaskId,
        io: &Io,
        token_prefix: u64,
        instance: BorrowedFd<'_>,
    ) -> io::Result<Self> {
        let instance = io.register_file(instance.try_clone_to_owned()?)?;
        io.watch(&instance, task, token_prefix | u64::from(ticket::INSTANCE));
        Ok(Self { io: io.clone(), task, token_prefix, _seat: instance, link: None })
    }
}

impl Eventfds for IoEventfds {
    fn attach(&mut self, doorbell: OwnedFd, bell: OwnedFd) -> io::Result<()> {
        let doorbell = self.io.register_file(doorbell)?;
        let bell = self.io.register_file(bell)?;
        self.io.watch(&bell, self.task, self.token_prefix | u64::from(ticket::REPLIES));
        self.link = Some((doorbell, bell));
        Ok(())
    }

    fn signal(&mut self) {
        if let Some((doorbell, _)) = &self.link {
            self.io.signal(doorbell, self.task, self.token_prefix | u64::from(ticket::SIGNALLED));
        }
    }

    fn detach(&mut self) {
        self.link = None;
    }
}
