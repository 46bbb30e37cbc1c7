//! The connections of one host that belong together: its admin queue and its I/O queues.

use super::connect::Host;
use super::connection::Connection;
use sluice_controller::{Controller, Subsystem};
use sluice_memory::{Removed, SharedRegion, Space};
use sluice_tls::Suite;
use std::collections::BTreeMap;
use std::net::SocketAddr;

#[derive(Debug)]
pub(super) struct Association {
    pub(super) host: Host,
    /// The address that its admin queue came to.
    pub(super) port: SocketAddr,
    /// Its host has proved who it is, or has nothing to prove. Until then the subsystem does not know of it.
    pub(super) is_let_in: bool,
    /// Keep Alive Timeout, milliseconds; zero is off.
    pub(super) kato_ms: u32,
    /// By the number of their queue.
    pub(super) connections: BTreeMap<u16, Connection>,
    /// When to [`look`](Self::look) for connections that have fallen silent.
    pub(super) look_ns: Option<u64>,
    /// Memory of connections that are over, while something may still reach it.
    departed: Vec<Departed>,
}

#[derive(Debug)]
struct Departed {
    removed: Removed,
    _region: SharedRegion,
}

impl Association {
    pub(super) fn new(host: Host, port: SocketAddr, kato_ms: u32) -> Self {
        let (connections, look_ns, departed) = Default::default();
        Self { host, port, is_let_in: false, kato_ms, connections, look_ns, departed }
    }

    /// Its connections on which nothing is left to prove.
    pub(super) fn proved_connections(&self) -> usize {
        self.connections.values().filter(|connection| !connection.is_unauthenticated()).count()
    }

    /// What its connections are encrypted with.
    pub(super) fn suite(&self) -> Option<Suite> {
        self.connections.get(&0).and_then(Connection::suite)
    }

    pub(super) fn is_open(&self) -> bool {
        self.connections.get(&0).is_some_and(Connection::is_open)
    }

    /// The host proved who it is, as the drive asks of it.
    pub(super) fn is_authenticated(&self) -> bool {
        self.connections
            .get(&0)
            .and_then(|admin| admin.auth.as_ref())
            .is_some_and(|auth| !auth.is_unauthenticated())
    }

    /// Removes the I/O queues whose connections are over. Returns how many.
    pub(super) fn bury(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        space: &mut Space,
    ) -> usize {
        let is_over =
            |(qid, connection): (&u16, &Connection)| (*qid != 0 && connection.is_over()).then_some(*qid);
        let over: Vec<u16> = self.connections.iter().filter_map(is_over).collect();
        let before = self.connections.len() + self.departed.len();
        for qid in over {
            // Not before all of its commands have come back.
            if controller.delete_queue_pair(qid)
                && let Some(connection) = self.connections.remove(&qid)
                && let Some(removed) = connection.memory.unmap(space)
            {
                controller.forget_memory(subsystem, &removed);
                self.departed.push(Departed { removed, _region: connection.memory.into_region() });
            }
        }
        let gone = self.departed.extract_if(.., |departed| !controller.uses(subsystem, &departed.removed));
        gone.for_each(crate::release::slow);
        before - (self.connections.len() + self.departed.len())
    }

    /// Somebody waits for the end of something.
    pub(super) fn has_remains(&self) -> bool {
        !self.departed.is_empty() || self.connections.values().any(Connection::is_over)
    }

    /// Shuts all sockets down.
    pub(super) fn close(&mut self) {
        self.connections.values_mut().for_each(Connection::close);
    }

    /// The kernel has let go of all memory.
    pub(super) fn is_over(&self) -> bool {
        self.connections.values().all(Connection::is_over)
    }

    /// The controller has let go of all memory, too: it goes, on a thread that has the time.
    pub(super) fn release(self, space: &mut Space) {
        let regions: Vec<SharedRegion> =
            self.connections.into_values().map(|connection| connection.memory.into_region()).collect();
        crate::release::slow((space.unmap_all(), regions, self.departed));
    }
}
