//! DeferredClose what a function's process sent, on a thread that may be stuck with it.
//!
//! A function chooses what its descriptors are of, and close(2) of the last one may wait for whom the function
//! chooses. So may that of a socket in which others of them were never read. Nobody waits for this thread.

use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Descriptors of one function that may wait to be closed before it is not started again.
const UNCLOSED_MAX: usize = 16;

/// Closes what the processes of one function sent, one after the other.
#[derive(Debug, Default)]
pub(super) struct DeferredClose {
    /// The thread's, if there is one. Locked for a moment.
    thread: Mutex<Option<Sender<Vec<OwnedFd>>>>,
    unclosed: Arc<AtomicUsize>,
}

impl DeferredClose {
    /// True if the next process could only add to what is not closed.
    pub(super) fn is_stuck(&self) -> bool {
        self.unclosed.load(Relaxed) >= UNCLOSED_MAX
    }

    /// Closes descriptors, in their own time.
    pub(super) fn close(&self, fds: Vec<OwnedFd>) {
        if fds.is_empty() {
            return;
        }
        self.unclosed.fetch_add(fds.len(), Relaxed);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = thread.get_or_insert_with(|| start(Arc::clone(&self.unclosed)));
        if let Err(SendError(fds)) = sender.send(fds) {
            // There was no thread to be had. These stay open, and counted; the next ones try again.
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
    use crate::uif::handshake::{pair, recv_welcome};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
    use std::io::{IoSlice, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, BorrowedFd};
    use std::time::{Duration, Instant};

    /// Longer than anything takes here.
    const LIMIT: Duration = Duration::from_secs(30);

    /// A socket whose close waits for a reader that there is not, and that end of it.
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

    /// Runs something that may only take long where nobody waits for it.
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
