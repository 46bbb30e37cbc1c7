//! Messages with descriptors, over a socket that keeps the bounds of packets.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair, sockopt,
};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a message.
pub const BYTES_MAX: usize = 64 << 20;

/// Descriptors of a message.
pub const FDS_MAX: usize = 16_384;

/// Descriptors that the kernel passes at once (`unix(7)`).
const FDS_OF_PACKET: usize = 253;

/// Bytes of a packet without its header, which a socket has room for.
const BYTES_OF_PACKET: usize = 32 << 10;

/// Pause before another try to send descriptors.
const PAUSE: Duration = Duration::from_millis(1);

/// Bytes of a packet's header: the kind of the message, and whether another packet of the message follows.
const HEADER: usize = 3;

/// End of a conversation.
#[derive(Debug)]
pub enum ChannelError {
    /// The other process has closed its end.
    Gone,
    /// The other process did not send, or receive, in time.
    Late,
    /// Bytes that no daemon sends.
    Malformed(&'static str),
    Io(io::Error),
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the other process has ended"),
            Self::Late => f.write_str("the other process did not answer in time"),
            Self::Malformed(what) => write!(f, "the other process sent {what}: it is no daemon of this kind"),
            Self::Io(error) => write!(f, "the socket to the other process failed: {error}"),
        }
    }
}

impl std::error::Error for ChannelError {}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => Self::Gone,
            _ => Self::Io(errno.into()),
        }
    }
}

/// Message from the other process.
#[derive(Debug)]
pub struct Message {
    pub(crate) kind: u16,
    pub bytes: Vec<u8>,
    /// Descriptors, each close-on-exec.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// Returns the kind, which the two processes have agreed on.
    pub fn kind(&self) -> u16 {
        self.kind
    }
}

/// End of the socket between two processes.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Creates both ends.
    ///
    /// # Errors
    /// There are no descriptors for them.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(one), Self(other)))
    }

    /// Takes an end that the process was started with.
    ///
    /// # Errors
    /// It is no end of a channel.
    pub fn inherited(fd: OwnedFd) -> io::Result<Self> {
        let is_channel = sockopt::socket_type(&fd)? == SocketType::SEQPACKET
            && sockopt::socket_domain(&fd)? == AddressFamily::UNIX;
        match is_channel {
            true => Ok(Self(fd)),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no socket of a daemon")),
        }
    }

    /// Returns the descriptor, for a process that is started with it.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Sends a message, in several packets if one has no room for it.
    ///
    /// # Errors
    /// The other process is gone, or does not receive in time. The channel is of no use after that.
    pub fn send(
        &self,
        kind: u16,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        until: Instant,
    ) -> Result<(), ChannelError> {
        if bytes.len() > BYTES_MAX || fds.len() > FDS_MAX {
            return Err(ChannelError::Malformed("more than a message can have"));
        }
        let (mut bytes, mut fds) = (bytes, fds);
        loop {
            let (now, later) = bytes.split_at(bytes.len().min(BYTES_OF_PACKET));
            let (fds_now, fds_later) = fds.split_at(fds.len().min(FDS_OF_PACKET));
            let is_last = later.is_empty() && fds_later.is_empty();
            self.send_packet(kind, is_last, now, fds_now, until)?;
            if is_last {
                return Ok(());
            }
            (bytes, fds) = (later, fds_later);
        }
    }

    fn send_packet(
        &self,
        kind: u16,
        is_last: bool,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        until: Instant,
    ) -> Result<(), ChannelError> {
        let [low, high] = kind.to_le_bytes();
        let header = [low, high, (!is_last).into()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_OF_PACKET))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(ChannelError::Malformed("more than a packet can have"));
        }
        let parts = [IoSlice::new(&header), IoSlice::new(bytes)];
        loop {
            match sendmsg(&self.0, &parts, &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, until)?,
                // The kernel limits the descriptors under way, until the other process takes some.
                Err(Errno::TOOMANYREFS) if Instant::now() < until => thread::sleep(PAUSE),
                Err(Errno::TOOMANYREFS) => return Err(ChannelError::Late),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Receives the next message.
    ///
    /// # Errors
    /// The other process is gone, sends nothing in time, or no message.
    pub fn receive(&self, until: Instant) -> Result<Message, ChannelError> {
        let mut message: Option<Message> = None;
        let mut buffer = vec![0; HEADER + BYTES_OF_PACKET];
        loop {
            let (length, mut fds) = self.receive_packet(&mut buffer, until)?;
            let [low, high, further @ (0 | 1), ref bytes @ ..] = buffer[..length] else {
                return Err(ChannelError::Malformed("a packet without a header"));
            };
            let kind = u16::from_le_bytes([low, high]);
            let all = message.get_or_insert(Message { kind, bytes: Vec::new(), fds: Vec::new() });
            all.bytes.extend_from_slice(bytes);
            all.fds.append(&mut fds);
            if all.kind != kind || all.bytes.len() > BYTES_MAX || all.fds.len() > FDS_MAX {
                return Err(ChannelError::Malformed("a message that is too long, or another one within it"));
            }
            if further == 0
                && let Some(message) = message.take()
            {
                return Ok(message);
            }
        }
    }

    fn receive_packet(
        &self,
        buffer: &mut [u8],
        until: Instant,
    ) -> Result<(usize, Vec<OwnedFd>), ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_OF_PACKET))];
        let received = loop {
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            match recvmsg(&self.0, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags) {
                Ok(received) => {
                    let rights = ancillary.drain().filter_map(|message| match message {
                        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                        _ => None,
                    });
                    break (received, rights.flatten().collect::<Vec<_>>());
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, until)?,
                Err(errno) => return Err(errno.into()),
            }
        };
        let (packet, fds) = received;
        if packet.flags.contains(ReturnFlags::CTRUNC) || packet.flags.contains(ReturnFlags::TRUNC) {
            return Err(ChannelError::Malformed(
                "a packet that is too long, or this process has no room for it",
            ));
        }
        if packet.bytes == 0 {
            return Err(ChannelError::Gone);
        }
        Ok((packet.bytes, fds))
    }

    /// Waits until the socket is readable or writable.
    fn wait(&self, events: PollFlags, until: Instant) -> Result<(), ChannelError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChannelError::Late);
        }
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.0, events)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn long_messages_arrive_whole() {
        let (one, other) = Channel::pair().expect("a pair");
        let bytes: Vec<u8> = (0..300_000u32).map(|at| (at / 7) as u8).collect();
        let sent = bytes.clone();
        let sender = thread::spawn(move || {
            let fds = vec![one.as_fd(); 600];
            one.send(7, &sent, &fds, soon()).expect("sent");
            one.send(8, &[], &[], soon()).expect("sent");
        });
        let message = other.receive(soon()).expect("received");
        assert_eq!((message.kind, message.fds.len()), (7, 600));
        assert!(message.bytes == bytes);
        assert_eq!(other.receive(soon()).expect("received").kind, 8);
        sender.join().expect("it has sent");
    }

    #[test]
    fn an_end_is_noticed_and_silence_too() {
        let (one, other) = Channel::pair().expect("a pair");
        assert!(matches!(other.receive(Instant::now()), Err(ChannelError::Late)));
        drop(one);
        assert!(matches!(other.receive(soon()), Err(ChannelError::Gone)));
        assert!(matches!(other.send(1, &[], &[], soon()), Err(ChannelError::Gone)));
    }

    #[test]
    fn a_process_that_does_not_read_is_noticed() {
        let (one, _other) = Channel::pair().expect("a pair");
        let sent = one.send(1, &vec![0; 8 << 20], &[], Instant::now() + Duration::from_millis(50));
        assert!(matches!(sent, Err(ChannelError::Late)));
    }

    #[test]
    fn wrong_packets_are_refused() {
        for packet in [&b"x"[..], b"xy", b"xy\x02", b"hello, world"] {
            let (one, other) = Channel::pair().expect("a pair");
            rustix::net::send(&one.0, packet, SendFlags::empty()).expect("sent");
            assert!(matches!(other.receive(soon()), Err(ChannelError::Malformed(_))), "{packet:?}");
        }
        let (one, other) = Channel::pair().expect("a pair");
        one.send_packet(1, false, &[], &[], soon()).expect("sent");
        one.send_packet(2, true, &[], &[], soon()).expect("sent");
        assert!(matches!(other.receive(soon()), Err(ChannelError::Malformed(_))));
    }

    #[test]
    fn only_such_a_socket_is_a_channel() {
        let (stream, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
        Channel::inherited(stream.into()).expect_err("a socket of another kind");
        let file = std::fs::File::open("/dev/null").expect("it is always there");
        Channel::inherited(file.into()).expect_err("no socket");
        let (one, _) = Channel::pair().expect("a pair");
        Channel::inherited(one.into_fd()).expect("an end of a channel");
    }
}
