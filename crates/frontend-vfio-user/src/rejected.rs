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
