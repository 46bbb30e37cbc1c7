//! Deferred close of the descriptors that clients sent, on a thread that may block in it.
//!
//! A client chooses the files behind its descriptors, and close(2) of the last descriptor may wait for a peer
//! that the client chooses: the server of a file system that never answers, the reader of a TCP socket that
//! lingers for hours. Each endpoint has a thread of its own for that, so that the descriptors of one client
//! do no harm to other endpoints. The first descriptor starts the thread, which ends with the endpoint unless
//! it is stuck.
//!
//! Whether a close will end is unknown in advance, so the reactor never waits for one. Unclosed descriptors
//! are counted. An endpoint that has had too many of them for too long admits no client until there are
//! fewer.

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use sluice_vfio_user::{Connection, Error};
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};

/// Unclosed descriptors of one endpoint at which no client is admitted any more. Clients are rejected then.
/// Rejected clients can leave descriptors, too: at twice as many no client is even accepted.
const UNCLOSED_MAX: usize = 128;

/// Time that the thread gets to catch up before it counts as stuck, in nanoseconds.
const STUCK_NS: u64 = 1_000_000_000;

/// Messages that the reactor searches for descriptors when a connection ends, before the thread takes over.
const UNREAD_MAX: usize = 4096;

/// Backlog of an endpoint's unclosed descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backlog {
    Small,
    /// Much to close, but perhaps not for long.
    Busy,
    /// Too much to close: clients are rejected.
    Full,
    /// Twice too much to close: clients are not even accepted.
    Overfull,
}

/// Job of the thread: descriptors, and a connection in which further ones may be unread.
#[derive(Debug)]
struct Leftover {
    fds: Vec<OwnedFd>,
    connection: Option<Connection>,
}

/// Deferred close of the descriptors that clients of one endpoint sent.
#[derive(Debug, Default)]
pub(super) struct DeferredClose {
    /// Sender to the thread; `None` until a descriptor is to be closed.
    thread: Option<Sender<Leftover>>,
    /// Descriptors that the thread has not closed yet.
    unclosed: Arc<AtomicUsize>,
    /// Time since which the unclosed descriptors are too many.
    busy_since_ns: Option<u64>,
}

impl DeferredClose {
    /// Returns the number of descriptors that are still open.
    pub(super) fn unclosed(&self) -> usize {
        self.unclosed.load(Relaxed)
    }

    pub(super) fn backlog(&mut self, now_ns: u64) -> Backlog {
        let unclosed = self.unclosed();
        if unclosed < UNCLOSED_MAX {
            self.busy_since_ns = None;
            return Backlog::Small;
        }
        let since_ns = *self.busy_since_ns.get_or_insert(now_ns);
        match now_ns.saturating_sub(since_ns) < STUCK_NS {
            true => Backlog::Busy,
            false if unclosed < 2 * UNCLOSED_MAX => Backlog::Full,
            false => Backlog::Overfull,
        }
    }

    /// Closes a descriptor on the thread.
    pub(super) fn close(&mut self, fd: OwnedFd) {
        self.hand_over(Leftover { fds: vec![fd], connection: None });
    }

    /// Ends a connection. The peer sees the end at once, and the socket's descriptor is closed at once, with
    /// one exception. Unread descriptors that the peer sent would be closed with the last reference to the
    /// socket. The thread has to take them out of the socket before.
    pub(super) fn end(&mut self, mut connection: Connection) {
        // From here on nothing more arrives.
        let _ = shutdown(&connection, Shutdown::Both);
        if let Some(fds) = unread(&mut connection) {
            self.hand_over(Leftover { fds, connection: Some(connection) });
        }
    }

    fn hand_over(&mut self, leftover: Leftover) {
        self.unclosed.fetch_add(leftover.count(), Relaxed);
        let thread = self.thread.get_or_insert_with(|| start(Arc::clone(&self.unclosed)));
        if let Err(SendError(leftover)) = thread.send(leftover) {
            // No thread could be started. The descriptors stay open and counted, and the next close tries
            // again.
            mem::forget(leftover);
            self.thread = None;
        }
    }
}

/// Reads the messages that a peer sent before the connection was shut down. Returns the first descriptors
/// found, and further ones may follow. Returns `None` if everything was read and no descriptor is left.
fn unread(connection: &mut Connection) -> Option<Vec<OwnedFd>> {
    // A connection that was reset reports that once, at any position in the stream, so the first end does not
    // count. At the second end every byte was read, and with it every descriptor.
    let mut ends = 0;
    for _ in 0..UNREAD_MAX {
        match connection.receive() {
            Ok(Some(message)) if message.fds.is_empty() => {}
            Ok(Some(message)) => return Some(message.fds),
            Err(Error::Closed) if ends == 0 => ends = 1,
            Err(Error::Closed) => return None,
            Ok(None) | Err(_) => break,
        }
    }
    Some(Vec::new())
}

fn start(unclosed: Arc<AtomicUsize>) -> Sender<Leftover> {
    let (sender, receiver) = channel();
    let run = move || close_all(&receiver, &unclosed);
    if let Err(error) = std::thread::Builder::new().name("sluice-closer".to_owned()).spawn(run) {
        tracing::warn!(%error, "cannot start a thread that closes what clients sent");
    }
    sender
}

fn close_all(leftovers: &Receiver<Leftover>, unclosed: &AtomicUsize) {
    for leftover in leftovers {
        let count = leftover.count();
        leftover.close();
        unclosed.fetch_sub(count, Relaxed);
    }
}

impl Leftover {
    fn count(&self) -> usize {
        self.fds.len() + usize::from(self.connection.is_some())
    }

    /// Closes the descriptors. May never return.
    fn close(self) {
        drop(self.fds);
        if let Some(connection) = self.connection {
            // The reactor's ring may hold the socket a moment longer than this thread does, and must not find
            // descriptors in it. The kernel closes descriptors whose bytes are read without a control buffer.
            let mut discarded = [0; 1 << 14];
            while matches!(recv(connection.as_fd(), &mut discarded[..], RecvFlags::DONTWAIT), Ok((1.., _))) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::read;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use sluice_vfio_user::{Command, Header};
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::unix::net::UnixStream;
    use zerocopy::IntoBytes;

    /// Makes a client that sends `bytes` with the only writer of a pipe. Returns its socket, the server's,
    /// and the reader.
    fn client(bytes: &[u8]) -> (UnixStream, Connection, OwnedFd) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let fds = [writer.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&theirs, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).expect("sent");
        (theirs, Connection::new(ours), reader)
    }

    fn wait_for_the_end(fd: &OwnedFd) {
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)), Ok(1));
        assert_eq!(read(fd, &mut [0; 1][..]), Ok(0));
    }

    #[test]
    fn what_was_read_is_closed_at_once() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let header = Header { size: 16, ..Header::command(1, Command::DEVICE_RESET) };
        std::io::Write::write_all(&mut theirs, header.as_bytes()).expect("sent");
        let mut deferred_close = DeferredClose::default();
        deferred_close.end(Connection::new(ours));
        assert_eq!(deferred_close.unclosed(), 0);
        assert!(deferred_close.thread.is_none(), "no thread was needed");
        assert_eq!(std::io::Read::read(&mut theirs, &mut [0; 1]).expect("an end"), 0);
    }

    #[test]
    fn descriptors_in_a_whole_message_are_closed() {
        let header = Header { size: 16, ..Header::command(1, Command::DEVICE_RESET) };
        let (_theirs, ours, reader) = client(header.as_bytes());
        DeferredClose::default().end(ours);
        wait_for_the_end(&reader);
    }

    #[test]
    fn descriptors_in_half_a_message_are_closed() {
        let (_theirs, ours, reader) = client(&[1]);
        DeferredClose::default().end(ours);
        wait_for_the_end(&reader);
    }

    #[test]
    fn descriptors_behind_nonsense_are_taken_out_of_the_socket() {
        let (theirs, ours, reader) = client(&[0xff; 64]);
        // Holds the socket as the ring's poll does.
        let held = ours.as_fd().try_clone_to_owned().expect("a descriptor");
        DeferredClose::default().end(ours);
        wait_for_the_end(&reader);
        drop((held, theirs));
    }

    #[test]
    fn too_much_is_too_much() {
        let mut deferred_close = DeferredClose::default();
        for (unclosed, now_ns, backlog) in [
            (UNCLOSED_MAX - 1, 0, Backlog::Small),
            (UNCLOSED_MAX, 7, Backlog::Busy),
            (usize::MAX, 6 + STUCK_NS, Backlog::Busy),
            (UNCLOSED_MAX, 7 + STUCK_NS, Backlog::Full),
            (2 * UNCLOSED_MAX, 7 + STUCK_NS, Backlog::Overfull),
            (0, 8 + STUCK_NS, Backlog::Small),
            (2 * UNCLOSED_MAX, 9 + STUCK_NS, Backlog::Busy),
        ] {
            deferred_close.unclosed.store(unclosed, Relaxed);
            assert_eq!(deferred_close.backlog(now_ns), backlog, "{unclosed} at {now_ns}");
        }
    }
}
