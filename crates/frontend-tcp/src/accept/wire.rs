//! Connection of the listener's thread, in both directions. Encrypts and decrypts where TLS is used.

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use sluice_tls::Session;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

const SENDING: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// Bytes that are received and dropped at a time, and how often before another connection has its turn.
const DROPPED: usize = 16 << 10;
const DROPS_MAX: usize = 4;

#[derive(Debug)]
pub(crate) struct Wire {
    /// Non-blocking socket.
    pub(crate) stream: TcpStream,
    /// TLS session, if the connection is encrypted.
    pub(crate) tls: Option<Box<Session>>,
    /// Bytes that wait for space in the socket, encrypted where TLS is used.
    unsent: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, tls: None, unsent: Vec::new() }
    }

    /// Receives bytes, decrypted where TLS is used. Returns 0 at the end of the connection.
    ///
    /// # Errors
    /// `EPROTO` after bytes that are not a valid record. The connection must [`linger`](Self::linger) then.
    pub(crate) fn receive(&mut self, place: &mut [u8]) -> Result<usize, Errno> {
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
                // The alert follows the rest of a partly sent record.
                unsent.extend(session.farewell(Some(failure)));
                *tls = None;
                return Err(Errno::PROTO);
            }
        }
        let count = place.len().min(session.content().len());
        place[..count].copy_from_slice(&session.content()[..count]);
        session.take(count);
        Ok(count)
    }

    /// Returns whether decrypted bytes can be received. The kernel gives no event for them, so polling the
    /// socket would not help.
    pub(crate) fn has_content(&self) -> bool {
        self.tls.as_ref().is_some_and(|session| !session.content().is_empty())
    }

    /// Queues bytes for the next [`flush`](Self::flush).
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let Some(session) = &mut self.tls else { return self.unsent.extend_from_slice(bytes) };
        self.unsent.extend(session.notice().unwrap_or_default());
        for piece in bytes.chunks(Session::CONTENT_MAX) {
            self.unsent.extend(session.seal(piece.len(), |room| room.copy_from_slice(piece)));
        }
    }

    /// Returns the number of bytes that wait for space in the socket.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Sends as much as the socket has space for.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
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

    /// Ends the connection after the unsent bytes, and drops received ones. Returns false if nothing is left
    /// to wait for.
    pub(crate) fn linger(&mut self) -> bool {
        if let Some(mut session) = self.tls.take() {
            self.unsent.extend(session.farewell(None));
        }
        if self.flush().is_err() {
            return false;
        }
        if !self.unsent.is_empty() {
            return true;
        }
        // Repeated shutdowns do no harm.
        let _ = shutdown(&self.stream, Shutdown::Write);
        let mut dropped = [0; DROPPED];
        for _ in 0..DROPS_MAX {
            match recv(&self.stream, &mut dropped[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return false,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return errno == Errno::AGAIN,
            }
        }
        true
    }

    /// Returns the event to poll for: space while bytes are unsent, otherwise input.
    pub(super) fn polled(&self) -> PollFd<'_> {
        PollFd::new(&self.stream, if self.unsent.is_empty() { PollFlags::IN } else { PollFlags::OUT })
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::linger::Lingering;
    use super::*;
    use sluice_tls::Hash;
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    /// Returns a connection whose host has read nothing, and whose last record is half in the socket.
    fn stuck() -> (Wire, TcpStream, Session, usize) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let far = TcpStream::connect(listener.local_addr().expect("an address")).expect("somebody listens");
        let (near, _) = listener.accept().expect("a connection");
        near.set_nonblocking(true).expect("a socket");
        far.set_nonblocking(true).expect("a socket");
        let (session, host) = Session::pair(Hash::Sha256);
        let mut wire = Wire { tls: Some(Box::new(session)), ..Wire::new(near) };
        let mut records = 0;
        while wire.unsent() == 0 {
            wire.put(&[7; 5000]);
            wire.flush().expect("the host is there");
            records += 1;
        }
        (wire, far, host, records)
    }

    /// Conformance: TCP 3.6.1, a host is told by an alert what was wrong with its records.
    #[test]
    fn an_alert_comes_behind_the_record_that_was_sent_in_part() {
        let (mut wire, mut far, mut host, records) = stuck();
        // These bytes are no record, and more than are ever read.
        while far.write(&[0xff; 5000]).is_ok() {}
        assert_eq!(wire.receive(&mut [0; 16]), Err(Errno::PROTO));
        let (mut lingering, now) = (Lingering::new(), Instant::now());
        lingering.add([127, 0, 0, 1].into(), wire, now);
        let mut heard = 0;
        let failure = loop {
            lingering.advance(&[true], now);
            match far.read(host.room()) {
                Ok(0) => panic!("no alert came, but {heard} records"),
                Ok(count) => match host.filled(count) {
                    Err(failure) => break failure,
                    Ok(()) if host.content().is_empty() => {}
                    Ok(()) => {
                        host.take(host.content().len());
                        heard += 1;
                    }
                },
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "after {heard} records"),
            }
            // The host detects only late that its bytes are dropped.
            let _ = far.write(&[0xff; 500]);
        };
        assert_eq!(heard, records);
        assert_eq!(failure.to_string(), "the peer sent TLS alert unexpected_message");
        far.set_nonblocking(false).expect("a socket");
        assert_eq!(far.read(&mut [0; 16]).expect("no reset"), 0);
        drop(far);
        while lingering.until().is_some() {
            lingering.advance(&[true], now);
        }
    }

    /// Checks bytes of a record that were decrypted and not received: the socket causes no event for them.
    #[test]
    fn the_rest_of_a_record_is_there() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut far = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        let (near, _) = listener.accept().expect("a connection");
        let (session, mut host) = Session::pair(Hash::Sha256);
        let mut wire = Wire { tls: Some(Box::new(session)), ..Wire::new(near) };
        assert!(!wire.has_content());
        far.write_all(host.seal(10, |room| room.fill(7))).expect("room");
        let mut bytes = [0; 6];
        let mut received = 0;
        while received < 6 {
            match wire.receive(&mut bytes[received..]) {
                Ok(count) => received += count,
                Err(errno) => assert_eq!(errno, Errno::AGAIN),
            }
        }
        assert!(wire.has_content() && bytes == [7; 6]);
        assert_eq!(wire.receive(&mut [0; 16]), Ok(4));
        assert!(!wire.has_content());
        wire.tls = None;
        assert!(!wire.has_content());
    }
}
