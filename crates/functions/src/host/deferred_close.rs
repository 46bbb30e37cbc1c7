//! Close of the descriptors that a function's process sent, on a thread that may block.
//!
//! A function chooses the files of its descriptors, and close(2) of the last one may wait for a peer of the
//! function's choice. Close of a socket with unread descriptors may do so, too. The daemon never waits for
//! this thread.

use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Unclosed descriptors of one function from which it is not started again.
const UNCLOSED_MAX: usize = 16;

/// Queue of descriptors to close, one after the other, of all processes of one function.
#[derive(Debug, Default)]
pub(super) struct DeferredClose {
    /// Sender to the thread, if there is one. Locked for a moment.
    thread: Mutex<Option<Sender<Vec<OwnedFd>>>>,
    unclosed: Arc<AtomicUsize>,
}

impl DeferredClose {
    /// Returns whether the next process could only add to the unclosed descriptors.
    pub(super) fn is_stuck(&self) -> bool {
        self.unclosed.load(Relaxed) >= UNCLOSED_MAX
    }

    /// Closes descriptors in the background.
    pub(super) fn close(&self, fds: Vec<OwnedFd>) {
        if fds.is_empty() {
            return;
        }
        self.unclosed.fetch_add(fds.len(), Relaxed);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = thread.get_or_insert_with(|| start(Arc::clone(&self.unclosed)));
        if let Err(SendError(fds)) = sender.send(fds) {
            // The thread could not be started. These descriptors stay open, and counted; the next close tries
            // again.
            mem::forget(fds);
            *thread = None;
        }
    }
}

fn start(unclosed: Arc<AtomicUsize>) -> Sender<Vec<OwnedFd>> {
    let (sender, receiver) = channel();
    let run = move || close_all(&receiver, &unclosed);
    if let Err(error) = std::thread::Builder::new().name("function-closer".to_owned()).spawn(run) {
        tracing::warn!(%error, "cannot start a thread that closes what functions sent");
    }
    sender
}

fn close_all(sent: &Receiver<Vec<OwnedFd>>, unclosed: &AtomicUsize) {
    for fds in sent {
        let count = fds.len();
        // May never return.
        drop(fds);
        unclosed.fetch_sub(count, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::handshake::{pair, recv_welcome};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
    use std::io::{IoSlice, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, BorrowedFd};
    use std::time::{Duration, Instant};

    /// Longer than any step of these tests takes.
    const LIMIT: Duration = Duration::from_secs(30);

    /// Returns a socket whose close waits for a reader that never reads, and the reader's end.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut ours = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (reader, _) = listener.accept().expect("a connection");
        sockopt::set_socket_linger(&ours, Some(Duration::from_secs(3600))).expect("a socket option");
        ours.set_nonblocking(true).expect("a socket option");
        while ours.write(&[0; 1 << 16]).is_ok() {}
        (ours, reader)
    }

    fn send(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(socket, &[IoSlice::new(b"hello")], &mut ancillary, SendFlags::empty())
            .expect("there is room");
    }

    /// Runs a closure that must not wait for a close.
    fn ends(what: impl FnOnce() + Send + 'static) {
        let (done, is_done) = channel();
        std::thread::spawn(move || {
            what();
            done.send(())
        });
        is_done.recv_timeout(LIMIT).expect("it waits for a close");
    }

    #[test]
    fn descriptors_that_come_with_an_answer_hold_nobody_up() {
        let (ours, theirs) = pair().expect("sockets");
        let (lingering, _reader) = lingering();
        send(theirs.as_fd(), lingering.as_fd());
        drop(lingering);
        let deferred_close = Arc::new(DeferredClose::default());
        let other = Arc::clone(&deferred_close);
        ends(move || {
            let answer = recv_welcome(ours.as_fd(), 1, Instant::now() + LIMIT, &other);
            answer.expect_err("it makes no sense");
        });
        assert_eq!(deferred_close.unclosed.load(Relaxed), 1, "it is not closed");
    }

    #[test]
    fn nor_do_those_that_were_never_read() {
        let (ours, theirs) = pair().expect("sockets");
        let (lingering, _reader) = lingering();
        send(theirs.as_fd(), lingering.as_fd());
        drop((lingering, theirs));
        let deferred_close = Arc::new(DeferredClose::default());
        let other = Arc::clone(&deferred_close);
        ends(move || other.close(vec![ours]));
        assert!(!deferred_close.is_stuck());
    }

    #[test]
    fn too_much_that_is_not_closed_is_noticed_and_the_rest_is_closed() {
        let deferred_close = DeferredClose::default();
        let (first, _reader) = lingering();
        deferred_close.close(vec![first.into()]);
        deferred_close.close((1..UNCLOSED_MAX).map(|_| pair().expect("sockets").0).collect());
        assert!(deferred_close.is_stuck());
        let deferred_close = DeferredClose::default();
        deferred_close.close((0..2 * UNCLOSED_MAX).map(|_| pair().expect("sockets").0).collect());
        let start = Instant::now();
        while deferred_close.is_stuck() {
            assert!(start.elapsed() < LIMIT, "they can be closed");
            std::thread::yield_now();
        }
    }
}
