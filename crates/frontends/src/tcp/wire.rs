//! A connection that the listener's thread has: bytes both ways, which it encrypts where the connection is.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use sluice_tls::Session;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

const SENDING: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

#[derive(Debug)]
pub(super) struct Wire {
    /// It does not block.
    pub(super) stream: TcpStream,
    /// How it is encrypted, if it is.
    pub(super) tls: Option<Box<Session>>,
    /// What waits for room in the socket, as it goes over the network.
    unsent: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, tls: None, unsent: Vec::new() }
    }

    /// Bytes from the network, or out of the records that it brings. None at the end of the connection.
    pub(super) fn receive(&mut self, place: &mut [u8]) -> Result<usize, Errno> {
        let Self { stream, tls, unsent } = self;
        let from_socket =
            |place: &mut [u8]| recv(&*stream, place, RecvFlags::DONTWAIT).map(|(_, count)| count);
        let Some(session) = tls else { return from_socket(place) };
        while session.content().is_empty() {
            let count = from_socket(session.room())?;
            if count == 0 {
                return Ok(0);
            }
            if let Err(failure) = session.filled(count) {
                // In the middle of a record it would only be one more that is wrong.
                if unsent.is_empty() {
                    let _ = send(&*stream, session.farewell(Some(failure)), SENDING);
                }
                return Err(Errno::PROTO);
            }
        }
        let count = place.len().min(session.content().len());
        place[..count].copy_from_slice(&session.content()[..count]);
        session.take(count);
        Ok(count)
    }

    /// There is something to receive of which the kernel knows nothing: no use to wait for the socket.
    pub(super) fn has_content(&self) -> bool {
        self.tls.as_ref().is_some_and(|session| !session.content().is_empty())
    }

    /// Sends this with the next [`flush`](Self::flush).
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let Some(session) = &mut self.tls else { return self.unsent.extend_from_slice(bytes) };
        self.unsent.extend(session.notice().unwrap_or_default());
        for piece in bytes.chunks(Session::CONTENT_MAX) {
            self.unsent.extend(session.seal(piece.len(), |room| room.copy_from_slice(piece)));
        }
    }

    /// Bytes that wait for room.
    pub(super) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Sends what has room.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        while !self.unsent.is_empty() {
            match send(&self.stream, &self.unsent, SENDING) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Ends the connection so that the host can read what was said last. What it sent is taken, since the kernel resets a
    /// connection on which something was not read, and what was said is lost with it.
    pub(super) fn part(&self) {
        let _ = recv(&self.stream, &mut [0; 1024][..], RecvFlags::DONTWAIT);
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Write);
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
