//! Rejected clients, which connect while a drive has a client. Each client gets an error in reply to its
//! first message, so that it can report the reason.

use super::deferred_close::DeferredClose;
use sluice_vfio_user::{Connection, Errno};
use std::os::unix::net::UnixStream;

/// Time for a client to send its first message, in nanoseconds.
const LIMIT_NS: u64 = 500_000_000;

/// Interval between two checks for the first message, in nanoseconds.
pub(super) const LOOK_NS: u64 = 10_000_000;

/// Clients whose first message is awaited at a time; others are disconnected without a reply.
const WAITING_MAX: usize = 8;

/// Connections that end after one reply.
#[derive(Debug, Default)]
pub(super) struct Rejected(Vec<(Connection, u64)>);

impl Rejected {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a client, which is to get a reply.
    pub(super) fn add(&mut self, socket: UnixStream, now_ns: u64, deferred_close: &mut DeferredClose) {
        let connection = Connection::new(socket);
        match self.0.len() < WAITING_MAX {
            true => self.0.push((connection, now_ns.saturating_add(LIMIT_NS))),
            false => deferred_close.end(connection),
        }
    }

    /// Replies to clients that have sent a message, and disconnects clients whose time is up.
    pub(super) fn advance(&mut self, now_ns: u64, deferred_close: &mut DeferredClose) {
        for (mut connection, until_ns) in std::mem::take(&mut self.0) {
            let first = connection.receive().map(|first| first.map(|first| (first.header, first.fds)));
            match first {
                Ok(None) if now_ns < until_ns => self.0.push((connection, until_ns)),
                Ok(Some((header, fds))) => {
                    fds.into_iter().for_each(|fd| deferred_close.close(fd));
                    if header.is_command() {
                        // A client that is gone needs no reply.
                        let _ = connection.reply_error(&header, Errno::BUSY);
                    }
                    deferred_close.end(connection);
                }
                _ => deferred_close.end(connection),
            }
        }
    }

    /// Ends all connections.
    pub(super) fn end(&mut self, deferred_close: &mut DeferredClose) {
        self.0.drain(..).for_each(|(connection, _)| deferred_close.end(connection));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_vfio_user::{Command, Header};
    use std::io::{Read, Write};
    use zerocopy::{FromBytes, IntoBytes};

    fn client(rejected: &mut Rejected, now_ns: u64, close: &mut DeferredClose) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        rejected.add(ours, now_ns, close);
        theirs
    }

    /// Returns the bytes that the client has received if its connection is over.
    fn heard(client: &mut UnixStream) -> Option<Vec<u8>> {
        client.set_nonblocking(true).expect("a socket");
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).ok().map(|_| bytes)
    }

    #[test]
    fn the_first_command_is_answered_with_an_error() {
        let (mut rejected, mut close) = (Rejected::default(), DeferredClose::default());
        let mut clients: Vec<UnixStream> = (0..4).map(|_| client(&mut rejected, 5, &mut close)).collect();
        rejected.advance(5, &mut close);
        assert!(!rejected.is_empty());
        let command = Header { size: 16, ..Header::command(7, Command::VERSION) };
        clients[0].write_all(command.as_bytes()).expect("room");
        let reply = Header { size: 16, ..command.reply() };
        clients[1].write_all(reply.as_bytes()).expect("room");
        rejected.advance(6, &mut close);
        let bytes = heard(&mut clients[0]).expect("the end");
        let header = Header::read_from_bytes(&bytes).expect("a header");
        assert_eq!((header.id, header.failure()), (7, Some(Errno::BUSY)));
        assert_eq!(heard(&mut clients[1]), Some(Vec::new()), "no reply to a reply");
        assert_eq!([2, 3].map(|number| heard(&mut clients[number])), [None, None]);
        rejected.advance(4 + LIMIT_NS, &mut close);
        assert!(!rejected.is_empty());
        rejected.advance(5 + LIMIT_NS, &mut close);
        assert!(rejected.is_empty());
        assert_eq!(heard(&mut clients[2]), Some(Vec::new()));
    }

    #[test]
    fn few_clients_are_awaited_and_none_at_the_end() {
        let (mut rejected, mut close) = (Rejected::default(), DeferredClose::default());
        let mut clients: Vec<UnixStream> =
            (0..=WAITING_MAX).map(|_| client(&mut rejected, 0, &mut close)).collect();
        let over: Vec<bool> = clients.iter_mut().map(|client| heard(client).is_some()).collect();
        assert!(over[..WAITING_MAX].iter().all(|is_over| !is_over) && over[WAITING_MAX]);
        rejected.end(&mut close);
        assert!(rejected.is_empty() && clients.iter_mut().all(|client| heard(client).is_some()));
    }
}
