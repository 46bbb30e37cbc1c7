//! Messages and their replies, one at a time.

use crate::{Deadline, Error};
use rustix::event::PollFlags;
use sluice_vfio_user::{Command, Connection, Errno, Header};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A vfio-user client that sends a command and waits for its reply.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    next_id: u16,
    /// Time limit of a reply.
    timeout: Duration,
}

/// Reply to a command that did not fail.
#[derive(Debug)]
pub struct Reply {
    pub payload: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Client {
    pub fn new(socket: UnixStream, timeout: Duration) -> Self {
        Self { connection: Connection::new(socket), next_id: 0, timeout }
    }

    /// Sends a command and waits for its reply. `payload` is the structure of the command, `data` the
    /// bytes after it.
    pub fn call(
        &mut self,
        command: Command,
        payload: &[u8],
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Reply, Error> {
        let deadline = Deadline::after(self.timeout, "the reply of the vfio-user server");
        let id = self.take_id();
        self.connection.send(Header::command(id, command), payload, data, fds)?;
        loop {
            if let Some(reply) = self.receive(id, command, &deadline)? {
                return Ok(reply);
            }
            let write = if self.connection.flush()? { PollFlags::empty() } else { PollFlags::OUT };
            deadline.poll(self.connection.as_fd(), PollFlags::IN | write)?;
        }
    }

    /// Sends a command without a reply. Waits only for room in the socket.
    pub fn post(&mut self, command: Command, payload: &[u8], data: &[u8]) -> Result<(), Error> {
        let id = self.take_id();
        self.connection.send(Header::command(id, command).without_reply(), payload, data, &[])?;
        if self.connection.has_unsent() { self.drain() } else { Ok(()) }
    }

    /// Waits until the server has read all that was sent.
    fn drain(&mut self) -> Result<(), Error> {
        let deadline = Deadline::after(self.timeout, "the vfio-user server reading its messages");
        while !self.connection.flush()? {
            deadline.poll(self.connection.as_fd(), PollFlags::OUT)?;
        }
        Ok(())
    }

    fn take_id(&mut self) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    /// Searches received messages for the reply to a command. Replies to commands that were given up are
    /// dropped. A server that requests DMA access gets an error, since all memory came with descriptors.
    ///
    /// The time is checked with each message, so a server that sends others without end does not keep the
    /// client.
    fn receive(&mut self, id: u16, command: Command, deadline: &Deadline) -> Result<Option<Reply>, Error> {
        while let Some(message) = self.connection.receive()? {
            deadline.check()?;
            let header = message.header;
            if header.is_command() {
                self.connection.reply_error(&header, Errno::OPNOTSUPP)?;
            } else if header.id == id && header.command != command {
                return Err(Error::Protocol("a reply names another command than was sent"));
            } else if header.id == id {
                return match header.failure() {
                    Some(errno) => Err(Error::Refused(command, errno)),
                    None => Ok(Some(Reply { payload: message.payload.to_vec(), fds: message.fds })),
                };
            }
        }
        Ok(None)
    }
}
