//! One association: the admin queue and the I/O queues of a host.

use crate::accept::Host;
use crate::conn::{Connection, SILENCE_NS};
use sluice_controller::{Controller, Subsystem};
use sluice_memory::{Removed, SharedRegion, Space};
use sluice_tls::Suite;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Pause between two connections of an association, in nanoseconds, since each takes the kernel some time.
const PAUSE_NS: u64 = 10_000_000;

#[derive(Debug)]
pub(super) struct Association {
    pub(super) host: Host,
    /// Local address that the admin queue connected to.
    pub(super) port: SocketAddr,
    /// Set once the host has authenticated, or at once if it need not. Until then the host is not reported to
    /// the subsystem.
    pub(super) is_announced: bool,
    /// Keep Alive Timeout, milliseconds; zero is off.
    pub(super) kato_ms: u32,
    /// Connections by queue identifier.
    pub(super) connections: BTreeMap<u16, Connection>,
    /// Time of the next [`look`](Self::look) for idle connections.
    pub(super) look_ns: Option<u64>,
    /// Memory of closed connections that the controller may still reach.
    unmapped: Vec<UnmappedMemory>,
}

#[derive(Debug)]
struct UnmappedMemory {
    removed: Removed,
    _region: SharedRegion,
}

impl Association {
    pub(super) fn new(host: Host, port: SocketAddr, kato_ms: u32) -> Self {
        let (connections, look_ns, unmapped) = Default::default();
        Self { host, port, is_announced: false, kato_ms, connections, look_ns, unmapped }
    }

    /// Returns the number of connections on which nothing is left to authenticate.
    pub(super) fn authenticated_connections(&self) -> usize {
        self.connections.values().filter(|connection| !connection.is_unauthenticated()).count()
    }

    /// Returns the cipher suite of the admin connection, if it is encrypted.
    pub(super) fn suite(&self) -> Option<Suite> {
        self.connections.get(&0).and_then(Connection::suite)
    }

    pub(super) fn is_open(&self) -> bool {
        self.connections.get(&0).is_some_and(Connection::is_open)
    }

    /// Returns whether the drive required the host to authenticate, and the host did.
    pub(super) fn is_authenticated(&self) -> bool {
        self.connections
            .get(&0)
            .and_then(|admin| admin.auth.as_ref())
            .is_some_and(|auth| !auth.is_unauthenticated())
    }

    /// Removes the I/O queues whose connections are over. Returns how many are removed completely.
    pub(super) fn remove_closed(
        &mut self,
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        space: &mut Space,
    ) -> usize {
        let is_over =
            |(qid, connection): (&u16, &Connection)| (*qid != 0 && connection.is_over()).then_some(*qid);
        let over: Vec<u16> = self.connections.iter().filter_map(is_over).collect();
        let before = self.connections.len() + self.unmapped.len();
        for qid in over {
            // Fails until all commands of the queue have come back.
            if controller.delete_queue_pair(qid)
                && let Some(connection) = self.connections.remove(&qid)
                && let Some(removed) = connection.memory.unmap(space)
            {
                controller.forget_memory(subsystem, &removed);
                self.unmapped.push(UnmappedMemory { removed, _region: connection.memory.into_region() });
            }
        }
        let gone = self.unmapped.extract_if(.., |unmapped| !controller.uses(subsystem, &unmapped.removed));
        gone.for_each(sluice_frontend::drop_later);
        before - (self.connections.len() + self.unmapped.len())
    }

    /// Returns whether a closed connection, or its memory, is still to be removed.
    pub(super) fn has_closed(&self) -> bool {
        !self.unmapped.is_empty() || self.connections.values().any(Connection::is_over)
    }

    /// Shuts all sockets down.
    pub(super) fn close(&mut self) {
        self.connections.values_mut().for_each(Connection::close);
    }

    /// Returns whether the kernel has let go of the memory of all connections.
    pub(super) fn is_over(&self) -> bool {
        self.connections.values().all(Connection::is_over)
    }

    /// Unmaps and frees all memory, on a thread that may block. The controller must have let go of the
    /// memory.
    pub(super) fn release(self, space: &mut Space) {
        let regions: Vec<SharedRegion> =
            self.connections.into_values().map(|connection| connection.memory.into_region()).collect();
        sluice_frontend::drop_later((space.unmap_all(), regions, self.unmapped));
    }
}

/// Return of the memory of idle connections.
impl Association {
    /// Schedules a look at the connections after a receive.
    #[inline]
    pub(super) fn schedule_look(&mut self, now_ns: u64) {
        if self.look_ns.is_none() {
            self.look_ns = Some(now_ns.saturating_add(SILENCE_NS));
        }
    }

    /// Begins to reclaim the memory of the next idle connection.
    #[cold]
    pub(super) fn look(&mut self, now_ns: u64) {
        let mut has_begun = false;
        let mut next = None::<u64>;
        for connection in self.connections.values_mut() {
            let Some(mut due_ns) = connection.due_ns() else { continue };
            if due_ns <= now_ns {
                if !connection.is_at_rest() {
                    // A command takes long, or the host does not read.
                    due_ns = now_ns.saturating_add(SILENCE_NS);
                } else if has_begun {
                    due_ns = now_ns.saturating_add(PAUSE_NS);
                } else {
                    connection.begin_to_reclaim();
                    has_begun = true;
                    continue;
                }
            }
            next = [next, Some(due_ns)].into_iter().flatten().min();
        }
        self.look_ns = next;
    }
}
