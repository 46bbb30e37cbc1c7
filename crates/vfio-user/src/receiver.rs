//! The receiving half of a connection: bytes in, whole messages out.

use crate::{Errno, Error, Header, MAX_MESSAGE_FDS, MAX_MESSAGE_SIZE};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recv, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::FromBytes;

/// A message from the peer. Dropping it closes the file descriptors that were not taken.
#[derive(Debug)]
pub struct Message<'a> {
    pub header: Header,
    /// Bytes behind the header.
    pub payload: &'a [u8],
    /// File descriptors, at most [`MAX_MESSAGE_FDS`], each close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// The initial room of a receiver, in bytes; longer messages make it grow, to [`MAX_MESSAGE_SIZE`].
const INITIAL_BUFFER: usize = 4096;

/// The most descriptors that the kernel sends at once (`unix(7)`). There is room for all of them, also beyond
/// the limit of a message: descriptors without room would be closed inside recvmsg(), and closing a
/// descriptor of a hostile file can block for ever.
const SCM_MAX_FD: usize = 253;

/// Divides the stream of a peer into messages.
///
/// One read takes all bytes there are, so that a burst of doorbells costs one system call. File descriptors
/// stay with their message all the same. The kernel ends a read behind the bytes that a set of descriptors
/// was sent with. So the descriptors belong to the message of the *last* byte of the read. For that a sender
/// must end a send with descriptors no later than the message they belong to.
#[derive(Debug)]
pub struct Receiver {
    buffer: Vec<u8>,
    /// Begin of the bytes in the buffer that are not handed out yet.
    start: usize,
    end: usize,
    /// Number of bytes of the stream before `buffer[start]`.
    consumed: u64,
    /// Descriptors with the position in the stream of the byte they belong to, in order.
    fds: Vec<(u64, OwnedFd)>,
    /// Whether messages stay in the socket until they are [released](Self::release).
    stays: bool,
    /// End of the bytes in the buffer that are not in the socket any more, if `stays`.
    owned: usize,
}

impl Default for Receiver {
    fn default() -> Self {
        let buffer = vec![0; INITIAL_BUFFER];
        Self { buffer, start: 0, end: 0, consumed: 0, fds: Vec::new(), stays: false, owned: 0 }
    }
}

impl Receiver {
    /// Continues with received bytes. Each descriptor has the position of the byte that it belongs to.
    pub(crate) fn resume(received: &[u8], fds: Vec<(u64, OwnedFd)>) -> Self {
        let mut receiver = Self { end: received.len(), fds, ..Self::default() };
        receiver.buffer.resize(received.len().max(INITIAL_BUFFER), 0);
        receiver.buffer[..received.len()].copy_from_slice(received);
        receiver
    }

    /// Leaves messages in the socket, from now on, until they are [released](Self::release). So a successor
    /// finds them there if this process dies.
    pub(crate) fn leave_in_socket(&mut self) {
        if !self.stays {
            (self.stays, self.owned) = (true, self.end);
        }
    }

    /// Receives as usual from now on.
    pub(crate) fn take_from_socket(&mut self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        if std::mem::take(&mut self.stays) {
            skip(socket, self.end.saturating_sub(self.owned))?;
        }
        Ok(())
    }

    /// Returns the number of bytes of the stream that were handed out.
    pub fn position(&self) -> u64 {
        self.consumed
    }

    /// Returns the number of bytes that were handed out and are still in the socket.
    pub(crate) fn unreleased(&self) -> usize {
        if self.stays { self.start.saturating_sub(self.owned) } else { 0 }
    }

    /// Returns the first of the bytes that were handed out and are still in the socket: the header of a message.
    pub(crate) fn first_unreleased(&self) -> Option<[u8; Header::SIZE]> {
        self.buffer[self.owned..].first_chunk().filter(|_| self.unreleased() > 0).copied()
    }

    /// Takes the messages that were handed out from the socket.
    pub(crate) fn release(&mut self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        let count = self.unreleased();
        skip(socket, count)?;
        self.owned += count;
        Ok(())
    }

    /// Returns the bytes that were received and not handed out, and are not in the socket any more.
    pub(crate) fn received(&self) -> &[u8] {
        let end = if self.stays { self.owned.max(self.start) } else { self.end };
        &self.buffer[self.start..end]
    }

    /// Returns the descriptors of these bytes, each with the position of the byte that it belongs to.
    pub(crate) fn received_fds(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>)> {
        let end = self.received().len() as u64;
        let received = self.fds.iter().map(|(position, fd)| (position - self.consumed, fd.as_fd()));
        received.filter(move |(position, _)| *position < end)
    }

    /// Returns the next message, or `None` if the socket has none at the moment.
    ///
    /// Nothing is allocated for a message that fits the buffer and has no file descriptors.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<Option<Message<'_>>, Error> {
        loop {
            if let Some(header) = self.announced()?
                && self.end - self.start >= header.size as usize
            {
                return self.take(header).map(Some);
            }
            if !self.fill(socket)? {
                return Ok(None);
            }
        }
    }

    /// Returns the header of the message at `start`, once it is complete, with a valid size.
    fn announced(&self) -> Result<Option<Header>, Error> {
        let Ok((header, _)) = Header::read_from_prefix(&self.buffer[self.start..self.end]) else {
            return Ok(None);
        };
        match header.size as usize {
            Header::SIZE..=MAX_MESSAGE_SIZE => Ok(Some(header)),
            _ => Err(Error::MessageSize(header.size)),
        }
    }

    /// Hands out the message at `start`, which is complete.
    fn take(&mut self, header: Header) -> Result<Message<'_>, Error> {
        let end = self.start + header.size as usize;
        let payload = self.start + Header::SIZE..end;
        self.start = end;
        self.consumed += u64::from(header.size);
        let mine = self.fds.iter().take_while(|(position, _)| *position < self.consumed).count();
        if mine > MAX_MESSAGE_FDS {
            return Err(Error::TooManyFds);
        }
        let fds = self.fds.drain(..mine).map(|(_, fd)| fd).collect();
        Ok(Message { header, payload: &self.buffer[payload], fds })
    }

    /// Reads once. Returns false if there is nothing to read.
    fn fill(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Error> {
        // No whole message is in the buffer, so all of these belong to the incomplete one.
        if self.fds.len() > MAX_MESSAGE_FDS {
            return Err(Error::TooManyFds);
        }
        let needed = self.announced()?.map_or(Header::SIZE, |header| header.size as usize);
        let known = match self.stays {
            true if self.unreleased() > 0 => return Ok(false),
            true => self.look_again(socket, needed)?,
            false => 0,
        };
        self.make_room(needed);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let peek = if self.stays { RecvFlags::PEEK } else { RecvFlags::empty() };
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | peek;
        let mut into = [IoSliceMut::new(&mut self.buffer[self.end..])];
        let read = loop {
            match recvmsg(socket, &mut into, &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                other => break other?,
            }
        };
        match read.bytes {
            0 if self.start == self.end => return Err(Error::Closed),
            0 => return Err(Error::ClosedInsideMessage),
            // No more of the incomplete message has arrived.
            bytes if self.stays && bytes <= known => {
                self.end += bytes;
                return Ok(false);
            }
            bytes => self.end += bytes,
        }
        self.keep_fds(ancillary);
        // Descriptors without room are lost, and the message is invalid without them.
        if read.flags.contains(ReturnFlags::CTRUNC) { Err(Error::TooManyFds) } else { Ok(true) }
    }

    /// Prepares another look at a socket in which an incomplete message of `needed` bytes stays. Returns the bytes
    /// that will be read once more.
    fn look_again(&mut self, socket: BorrowedFd<'_>, needed: usize) -> Result<usize, Error> {
        let known = self.end - self.start;
        let is_short = needed <= INITIAL_BUFFER;
        if is_short && self.fds.is_empty() && self.owned <= self.start {
            self.end = self.start;
            self.owned = self.end;
            return Ok(known);
        }
        // A second read would bring the descriptors once more, and reads of a long message add up.
        skip(socket, self.end - self.owned.max(self.start))?;
        self.owned = self.end;
        Ok(0)
    }

    /// Moves the remaining bytes to the front, and makes the buffer long enough for the message they begin.
    fn make_room(&mut self, needed: usize) {
        self.buffer.copy_within(self.start..self.end, 0);
        self.owned = self.owned.saturating_sub(self.start);
        (self.start, self.end) = (0, self.end - self.start);
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
    }

    /// Records the byte that the descriptors of a read belong to.
    fn keep_fds(&mut self, mut ancillary: RecvAncillaryBuffer<'_>) {
        let last_byte = self.consumed + (self.end - self.start) as u64 - 1;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds.map(|fd| (last_byte, fd)));
            }
        }
    }
}

/// Returns the first bytes in a socket, which stay there; zeros if there are fewer.
pub(crate) fn peek(socket: BorrowedFd<'_>) -> Result<[u8; Header::SIZE], Error> {
    let mut first = [0; Header::SIZE];
    match recv(socket, &mut first[..], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
        Ok(_) | Err(Errno::AGAIN) => Ok(first),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes bytes from a socket that were read before.
pub(crate) fn skip(socket: BorrowedFd<'_>, count: usize) -> Result<(), Error> {
    // One call takes all, so that a process that dies has taken all or nothing.
    let (mut short, mut long) = ([0; INITIAL_BUFFER], Vec::new());
    let into = match count {
        0..=INITIAL_BUFFER => &mut short[..count],
        _ => {
            long.resize(count, 0);
            &mut long[..]
        }
    };
    let mut left = count;
    while left > 0 {
        match recv(socket, &mut into[..left], RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            Ok((_, 0)) => return Err(Error::Closed),
            Ok((_, taken)) => left -= taken,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, region::RegionAccess};
    use std::io::Write;
    use std::os::{fd::AsFd, unix::net::UnixStream};
    use zerocopy::IntoBytes;

    fn doorbell(id: u16) -> Vec<u8> {
        let access = RegionAccess { offset: 0x1008, region: 0, count: 4 };
        let header = Header { size: 36, ..Header::command(id, Command::REGION_WRITE).without_reply() };
        [header.as_bytes(), access.as_bytes(), &[7, 0, 0, 0]].concat()
    }

    /// Takes all messages that have arrived, and returns their identifiers.
    fn ids(receiver: &mut Receiver, socket: &UnixStream) -> Vec<u16> {
        let mut ids = Vec::new();
        while let Some(message) = receiver.receive(socket.as_fd()).expect("a healthy connection") {
            ids.push(message.header.id);
        }
        ids
    }

    #[test]
    fn messages_stay_in_the_socket_until_they_are_released() {
        let (ours, mut peer) = UnixStream::pair().expect("a socket pair");
        let mut receiver = Receiver::default();
        receiver.leave_in_socket();
        // More than the buffer has room for, and a part of another message.
        let sent: Vec<u8> = (0..150).flat_map(doorbell).collect();
        peer.write_all(&[&sent[..], &doorbell(150)[..20]].concat()).expect("it fits the socket");
        let mut all = ids(&mut receiver, &ours);
        assert!(!all.is_empty() && all.len() < 150, "{} fit the buffer", all.len());
        assert_eq!(receiver.unreleased(), all.len() * 36);
        // Another process would find all of them.
        let mut other = Receiver::default();
        other.leave_in_socket();
        assert_eq!(ids(&mut other, &ours), all);
        let first = receiver.first_unreleased().expect("there are some");
        assert_eq!(peek(ours.as_fd()).expect("a healthy connection"), first);
        while receiver.unreleased() > 0 {
            receiver.release(ours.as_fd()).expect("a healthy connection");
            all.extend(ids(&mut receiver, &ours));
        }
        assert_eq!(all, (0..150).collect::<Vec<_>>());
        assert!(receiver.received().is_empty(), "the incomplete message is in the socket");
        peer.write_all(&doorbell(150)[20..]).expect("room");
        assert_eq!(ids(&mut receiver, &ours), [150]);
        assert_eq!(receiver.position(), 151 * 36);
    }

    #[test]
    fn a_long_message_that_stays_is_read_once() {
        let (ours, mut peer) = UnixStream::pair().expect("a socket pair");
        let mut receiver = Receiver::default();
        receiver.leave_in_socket();
        let header = Header { size: 20_000, ..Header::command(9, Command::REGION_WRITE) };
        let message = [header.as_bytes(), &vec![5; 20_000 - Header::SIZE]].concat();
        for part in message.chunks(3000) {
            assert!(ids(&mut receiver, &ours).is_empty());
            peer.write_all(part).expect("it fits the socket");
        }
        let taken = receiver.receive(ours.as_fd()).expect("a healthy connection").expect("it is whole");
        assert!(taken.payload.iter().all(|byte| *byte == 5) && taken.payload.len() == 20_000 - Header::SIZE);
    }

    #[test]
    fn descriptors_of_a_message_that_stays_come_once() {
        let (ours, peer) = UnixStream::pair().expect("a socket pair");
        let mut receiver = Receiver::default();
        receiver.leave_in_socket();
        let mut sender = crate::Sender::default();
        let header = Header::command(3, Command::DMA_MAP);
        for _ in 0..2 {
            sender.send(peer.as_fd(), header, &[0; 32], &[], &[peer.as_fd()]).expect("sent");
        }
        for _ in 0..2 {
            let message = receiver.receive(ours.as_fd()).expect("a healthy connection").expect("it is whole");
            assert_eq!(message.fds.len(), 1);
            drop(message);
            assert!(
                receiver.receive(ours.as_fd()).expect("a healthy connection").is_none(),
                "to be released"
            );
            receiver.release(ours.as_fd()).expect("a healthy connection");
        }
        assert!(receiver.receive(ours.as_fd()).expect("a healthy connection").is_none());
    }

    #[test]
    fn a_burst_of_doorbells_takes_no_memory() {
        let (ours, mut peer) = UnixStream::pair().expect("a socket pair");
        let mut receiver = Receiver::default();
        let (room, buffer) = (receiver.buffer.capacity(), receiver.buffer.as_ptr());
        let access = RegionAccess { offset: 0x1008, region: 0, count: 4 };
        let header = Header { size: 36, ..Header::command(1, Command::REGION_WRITE).without_reply() };
        let doorbell = [header.as_bytes(), access.as_bytes(), &[7, 0, 0, 0]].concat();
        for _ in 0..100 {
            peer.write_all(&doorbell.repeat(300)).expect("it fits the socket");
            let mut seen = 0;
            while let Some(message) = receiver.receive(ours.as_fd()).expect("a healthy connection") {
                assert_eq!(message.fds.capacity(), 0);
                seen += 1;
            }
            assert_eq!(seen, 300);
        }
        assert_eq!((receiver.buffer.capacity(), receiver.buffer.as_ptr()), (room, buffer));
        assert_eq!(receiver.fds.capacity(), 0);
    }
}
