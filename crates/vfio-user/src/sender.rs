//! The sending half of a connection: whole messages in, bytes out, without ever waiting.

use crate::{Errno, Error, Header, MAX_MESSAGE_FDS, MAX_MESSAGE_SIZE, MAX_UNSENT, MAX_UNSENT_FDS};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::IntoBytes;

/// Sends messages, and keeps bytes that the socket has no room for.
///
/// Kept bytes and descriptors are bounded by [`MAX_UNSENT`] and [`MAX_UNSENT_FDS`]; beyond them the
/// connection is closed.
#[derive(Debug, Default)]
pub struct Sender {
    /// Bytes that wait for room in the socket.
    unsent: VecDeque<u8>,
    /// Number of bytes that were ever in `unsent` before its first.
    sent: u64,
    /// Kept messages with descriptors, in order.
    attached: VecDeque<Attached>,
    /// Whether messages wait until the sender is [let go](Self::let_go).
    is_held: bool,
}

/// A kept message with descriptors that are not sent yet. The descriptors are sent with the first byte of the
/// message, in a send of their own: a receiver assigns them to a message by the end of a read.
#[derive(Debug)]
struct Attached {
    /// Position of the first byte, counted like `Sender::sent`.
    position: u64,
    /// Size of the message in bytes.
    size: usize,
    fds: Vec<OwnedFd>,
}

/// Message that is not sent yet and has descriptors: its position in the unsent bytes, its size, and these.
pub(crate) type Unsent<F> = (u64, u32, Vec<F>);

impl Sender {
    /// Continues with unsent bytes. Returns none if a message does not lie in them.
    pub(crate) fn resume(unsent: Vec<u8>, attached: Vec<Unsent<OwnedFd>>) -> Option<Self> {
        let mut end = 0;
        let mut messages = VecDeque::new();
        for (position, size, fds) in attached {
            if position < end || size == 0 {
                return None;
            }
            end = position.checked_add(size.into())?;
            messages.push_back(Attached { position, size: size as usize, fds });
        }
        let fits = end <= unsent.len() as u64 && unsent.len() <= MAX_UNSENT;
        fits.then(|| Self { unsent: unsent.into(), sent: 0, attached: messages, is_held: false })
    }

    /// Returns the unsent bytes.
    pub(crate) fn unsent(&self) -> Vec<u8> {
        self.unsent.iter().copied().collect()
    }

    /// Returns the unsent messages with descriptors.
    pub(crate) fn attached(&self) -> impl Iterator<Item = Unsent<BorrowedFd<'_>>> {
        self.attached.iter().map(|it| {
            let fds = it.fds.iter().map(AsFd::as_fd).collect();
            (it.position - self.sent, it.size as u32, fds)
        })
    }

    /// Sends a message: the header (whose size is filled in here), a fixed payload, and the data that follows
    /// it. Either may be empty. Bytes that cannot be sent at once are kept for [`Sender::flush`].
    pub fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        header: Header,
        payload: &[u8],
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Error> {
        let size = Header::SIZE + payload.len() + data.len();
        if size > MAX_MESSAGE_SIZE || fds.len() > MAX_MESSAGE_FDS {
            return Err(Error::UnsendableMessage);
        }
        let header = Header { size: size as u32, ..header };
        let message = [header.as_bytes(), payload, data];
        let sent = if self.flush(socket)? { transmit(socket, message, fds)? } else { 0 };
        if sent == size { Ok(()) } else { self.keep(message, sent, fds) }
    }

    /// Keeps messages from now on, whether the socket has room or not.
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    /// Sends messages again, with the next [`flush`](Self::flush).
    pub fn let_go(&mut self) {
        self.is_held = false;
    }

    /// Sends kept messages, as far as the socket has room. Returns true when nothing is left.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Error> {
        if self.is_held {
            return Ok(false);
        }
        while !self.unsent.is_empty() {
            let sent = self.transmit_kept(socket)?;
            if sent == 0 {
                return Ok(false);
            }
            self.unsent.drain(..sent);
            self.sent += sent as u64;
        }
        Ok(true)
    }

    /// Returns whether a message waits for room in the socket.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends once: a kept message with its descriptors, or the bytes up to the next such message.
    fn transmit_kept(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Error> {
        match self.attached.front() {
            Some(message) if message.position == self.sent => {
                let fds: Vec<_> = message.fds.iter().map(AsFd::as_fd).collect();
                let sent = transmit(socket, self.kept(message.size), &fds)?;
                if sent > 0 {
                    self.attached.pop_front();
                }
                Ok(sent)
            }
            Some(message) => transmit(socket, self.kept((message.position - self.sent) as usize), &[]),
            None => transmit(socket, self.kept(self.unsent.len()), &[]),
        }
    }

    /// Returns the first `length` kept bytes.
    fn kept(&self, length: usize) -> [&[u8]; 3] {
        let (first, second) = self.unsent.as_slices();
        let split = length.min(first.len());
        [&first[..split], &second[..length - split], &[]]
    }

    /// Keeps the unsent part of a message. Descriptors are sent with its first byte.
    fn keep(&mut self, message: [&[u8]; 3], sent: usize, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let size: usize = message.iter().map(|part| part.len()).sum();
        if self.unsent.len() + (size - sent) > MAX_UNSENT {
            return Err(Error::PeerDoesNotRead);
        }
        if sent == 0 && !fds.is_empty() {
            let kept: usize = self.attached.iter().map(|message| message.fds.len()).sum();
            if kept + fds.len() > MAX_UNSENT_FDS {
                return Err(Error::PeerDoesNotRead);
            }
            let fds = fds.iter().map(|fd| fcntl_dupfd_cloexec(fd, 0)).collect::<Result<_, _>>()?;
            self.attached.push_back(Attached { position: self.sent + self.unsent.len() as u64, size, fds });
        }
        let mut skip = sent;
        for part in message {
            let left = &part[skip.min(part.len())..];
            skip -= part.len() - left.len();
            self.unsent.extend(left);
        }
        Ok(())
    }
}

/// Sends once; returns the number of bytes that the socket took, zero if it has no room.
fn transmit(socket: BorrowedFd<'_>, parts: [&[u8]; 3], fds: &[BorrowedFd<'_>]) -> Result<usize, Error> {
    let parts = parts.map(IoSlice::new);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Error::UnsendableMessage);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(socket, &parts, &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(0),
            other => return Ok(other?),
        }
    }
}
