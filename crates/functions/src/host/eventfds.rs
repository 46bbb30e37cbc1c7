//! Eventfds between a layer and its function, used without ever blocking on the function.

use sluice_reactor::{FileSlot, Io, TaskId};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Eventfds of a connection. The function holds them, too, and may leave them full, empty or blocking.
pub(super) trait Eventfds: fmt::Debug + Send {
    /// Takes the eventfds of a connection that begins.
    fn attach(&mut self, doorbell: OwnedFd, bell: OwnedFd) -> io::Result<()>;
    /// Wakes the function.
    fn signal(&mut self);
    /// Drops the eventfds of a connection that has ended.
    fn detach(&mut self);
}

/// Tickets of the layer's own events, above those of commands, whose slots are never so many.
pub(super) mod ticket {
    /// The instance slot has changed.
    pub(in super::super) const INSTANCE: u32 = u32::MAX;
    /// The function has replied.
    pub(in super::super) const REPLIES: u32 = u32::MAX - 1;
    /// The signal to the function is done.
    pub(in super::super) const SIGNALLED: u32 = u32::MAX - 2;
}

/// Eventfds behind the reactor's io_uring, where no operation blocks the thread.
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
    /// Watches `instance`, the eventfd of the instance slot, for the layer. `token_prefix` is the part of
    /// this layer's tokens above the low 32 bits.
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
