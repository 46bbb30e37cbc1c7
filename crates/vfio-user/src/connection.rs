//! A socket with its two halves.

use crate::{Errno, Error, Header, Message, Receiver, Sender, receiver};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// A vfio-user connection, for either end. No call ever waits for the peer, whether or not the socket is in
/// non-blocking mode.
///
/// An [`Error`] is final: drop the connection.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    receiver: Receiver,
    sender: Sender,
}

/// Bytes of a connection on their way, with their descriptors.
#[derive(Debug)]
pub struct Unfinished<F> {
    /// Bytes that were received, and are no whole message or not handed out.
    pub received: Vec<u8>,
    /// Descriptors of these bytes, each with the position of the byte that it belongs to.
    pub received_fds: Vec<(u64, F)>,
    /// Bytes that had no room in the socket.
    pub unsent: Vec<u8>,
    /// Unsent messages with descriptors: the position in the unsent bytes, the size, and the descriptors.
    pub attached: Vec<(u64, u32, Vec<F>)>,
}

impl Connection {
    /// Continues a connection of another process. Returns none if the bytes cannot be those of a connection.
    pub fn resume(socket: UnixStream, unfinished: Unfinished<OwnedFd>) -> Option<Self> {
        let Unfinished { received, received_fds, unsent, attached } = unfinished;
        let inside = received_fds.iter().all(|(position, _)| *position < received.len() as u64);
        if !inside || !received_fds.is_sorted_by_key(|(position, _)| *position) {
            return None;
        }
        let (receiver, sender) =
            (Receiver::resume(&received, received_fds), Sender::resume(unsent, attached)?);
        Some(Self { socket, receiver, sender })
    }

    /// Returns the bytes on their way, for a process that continues the connection.
    pub fn unfinished(&self) -> Unfinished<BorrowedFd<'_>> {
        Unfinished {
            received: self.receiver.received().to_vec(),
            received_fds: self.receiver.received_fds().collect(),
            unsent: self.sender.unsent(),
            attached: self.sender.attached().collect(),
        }
    }

    /// Takes bytes from the socket that another process has read and handled.
    ///
    /// # Errors
    /// They are not there.
    pub fn skip(socket: &UnixStream, count: usize) -> Result<(), Error> {
        receiver::skip(socket.as_fd(), count)
    }

    /// Returns the first bytes in a socket, which stay there.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn peek(socket: &UnixStream) -> Result<[u8; Header::SIZE], Error> {
        receiver::peek(socket.as_fd())
    }

    /// Returns the header of the first message that was handed out and is still in the socket.
    pub fn first_unreleased(&self) -> Option<[u8; Header::SIZE]> {
        self.receiver.first_unreleased()
    }

    /// Leaves received messages in the socket, from now on, until they are [released](Self::release). So a
    /// successor finds them there if this process dies.
    pub fn leave_in_socket(&mut self) {
        self.receiver.leave_in_socket();
    }

    /// Returns the number of bytes of the stream that were handed out, and of those the ones still in the socket.
    pub fn position(&self) -> (u64, usize) {
        (self.receiver.position(), self.receiver.unreleased())
    }

    /// Takes the messages that were handed out from the socket.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn release(&mut self) -> Result<(), Error> {
        self.receiver.release(self.socket.as_fd())
    }

    /// Receives as usual from now on.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn take_from_socket(&mut self) -> Result<(), Error> {
        self.receiver.take_from_socket(self.socket.as_fd())
    }

    /// Keeps messages to be sent, until they are [let go](Self::let_go).
    pub fn hold(&mut self) {
        self.sender.hold();
    }

    /// Sends the messages that were held, as far as the socket has room.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn let_go(&mut self) -> Result<(), Error> {
        self.sender.let_go();
        self.flush().map(drop)
    }

    pub fn new(socket: UnixStream) -> Self {
        Self { socket, receiver: Receiver::default(), sender: Sender::default() }
    }

    /// Returns the next message, or `None` if there is none at the moment. Call this method until it returns
    /// `None`. One read may receive several messages, and the socket does not become readable again for them.
    pub fn receive(&mut self) -> Result<Option<Message<'_>>, Error> {
        self.receiver.receive(self.socket.as_fd())
    }

    /// Sends a message: `payload` is the structure of the command and `data` the bytes after it; either may
    /// be empty. The header's size is filled in.
    pub fn send(
        &mut self,
        header: Header,
        payload: &[u8],
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        self.sender.send(self.socket.as_fd(), header, payload, data, fds)
    }

    /// Replies to a command, unless its no-reply flag is set.
    pub fn reply(&mut self, to: &Header, payload: &[u8], data: &[u8]) -> Result<(), Error> {
        self.reply_with_fds(to, payload, data, &[])
    }

    /// Replies to a command with file descriptors, unless its no-reply flag is set.
    pub fn reply_with_fds(
        &mut self,
        to: &Header,
        payload: &[u8],
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        if to.no_reply() { Ok(()) } else { self.send(to.reply(), payload, data, fds) }
    }

    /// Replies that a command failed, unless its no-reply flag is set.
    pub fn reply_error(&mut self, to: &Header, errno: Errno) -> Result<(), Error> {
        if to.no_reply() { Ok(()) } else { self.send(to.error_reply(errno), &[], &[], &[]) }
    }

    /// Sends messages that had no room before. Returns true when nothing is left; while it returns false,
    /// call it again when the socket is writable.
    pub fn flush(&mut self) -> Result<bool, Error> {
        self.sender.flush(self.socket.as_fd())
    }

    /// Returns whether a message waits for room in the socket.
    pub fn has_unsent(&self) -> bool {
        self.sender.has_unsent()
    }

    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Returns the two halves with their socket, for answering a message while it is borrowed.
    pub fn halves(&mut self) -> (BorrowedFd<'_>, &mut Receiver, &mut Sender) {
        (self.socket.as_fd(), &mut self.receiver, &mut self.sender)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
