//! Record of the hosts of a drive, with which another process continues their associations.
//!
//! While a record is made, connections start no receive, and messages to hosts are sent completely. From the
//! record on the hosts are *suspended*: nothing is received, executed or sent. Bytes of hosts wait in the kernel.

use super::association::Association;
use super::hosts::{Config, Hosts};
use super::slot::{Shared, SlotState, TcpController};
use crate::accept::Host;
use crate::auth::{AuthState, AuthWorker};
use crate::conn::{CloseReason, Connection, put_address, read_address};
use crate::directory::{Directory, KnownHost};
use crate::origin::origin;
use sluice_command::record::{Need, Reader, RecordError, Writer};
use sluice_controller::{CannotHandOver, ControllerRecord, IO_QUEUES_MAX, Subsystem};
use sluice_frontend::Drive;
use sluice_frontend::record::{HandOverError, Incoming, Outgoing, list};
use sluice_memory::SharedRegion;
use sluice_nvme::fabrics::NQN_MAX;
use sluice_nvme_auth::Names;
use std::cell::OnceCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Weak;

/// Bytes of a controller's record.
const CONTROLLER_MAX: usize = 1 << 20;

mod part {
    pub(super) const COUNTERS: u16 = 1;
    pub(super) const ASSOCIATIONS: u16 = 2;
}

/// Bytes of a record, and the descriptors that they name.
#[derive(Debug, Default)]
pub struct HostsRecord {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// Hosts of another process, not continued yet.
#[derive(Debug)]
pub struct IncomingHosts {
    bytes: Vec<u8>,
    incoming: Incoming,
}

impl IncomingHosts {
    pub fn new(record: HostsRecord) -> Self {
        Self { bytes: record.bytes, incoming: Incoming(record.fds) }
    }
}

/// Keys of a drive's hosts, with which connected hosts may authenticate again.
#[derive(Debug)]
pub struct Keys {
    subnqn: String,
    known: Vec<KnownHost>,
    directory: Weak<Directory>,
    /// Worker of all these connections, started for the first one that is authenticated.
    worker: OnceCell<AuthWorker>,
}

impl Keys {
    pub fn new(subnqn: String, known: Vec<KnownHost>, directory: Weak<Directory>) -> Self {
        Self { subnqn, known, directory, worker: OnceCell::new() }
    }

    /// Returns the state of a host's connection that another process has authenticated.
    fn authenticated(&self, hostnqn: &str, peer: SocketAddr) -> Result<AuthState, HandOverError> {
        let known = self.known.iter().find(|known| known.nqn == hostnqn);
        let terms = known.and_then(|known| known.terms.clone());
        let terms = terms.ok_or(CannotHandOver("a connected host has no key any more"))?;
        let names = Names { hostnqn: hostnqn.to_owned(), subnqn: self.subnqn.clone() };
        if self.worker.get().is_none() {
            let _ = self.worker.set(AuthWorker::start(Weak::clone(&self.directory))?);
        }
        let worker = self.worker.get().ok_or(CannotHandOver("there is no thread for authentication"))?;
        Ok(AuthState::authenticated(names, terms, origin(peer), worker.clone()))
    }
}

/// Methods of the process that hands over.
impl Hosts {
    /// Begins to settle the hosts of a drive that is held: their connections start no receive. Hosts over TLS are
    /// disconnected in order, since a TLS session belongs to its process. They connect again.
    pub fn settle(drive: &mut Drive, now_ns: u64) {
        let (hosts, subsystem) = drive.frontends_mut::<Self>();
        for Self { slots, shared, .. } in hosts {
            for slot in slots {
                slot.controller.drop_stale_notices(subsystem);
                let SlotState::Connected(association) = &mut slot.state else { continue };
                if association.connections.values().any(Connection::is_encrypted) {
                    slot.disconnect(CloseReason::ByServer, subsystem, shared, now_ns);
                } else {
                    association.connections.values_mut().for_each(Connection::quiesce);
                }
            }
        }
    }

    /// Suspends the hosts of a drive that is held and settled, and returns their record; none if the drive admits no
    /// hosts on the network.
    ///
    /// # Errors
    /// Something is under way, and nothing is suspended.
    pub fn hand_over(drive: &mut Drive, now_ns: u64) -> Result<Option<HostsRecord>, HandOverError> {
        let Some((hosts, subsystem)) = drive.frontend_mut::<Self>() else { return Ok(None) };
        hosts.record(subsystem, now_ns).map(Some)
    }

    /// Lets the hosts of a drive go on.
    pub fn go_on(drive: &mut Drive) {
        for hosts in drive.frontends_mut::<Self>().0 {
            hosts.is_suspended = false;
            hosts.connections().for_each(Connection::go_on);
        }
    }

    pub(super) fn connections(&mut self) -> impl Iterator<Item = &mut Connection> {
        let associations = self.slots.iter_mut().filter_map(|slot| match &mut slot.state {
            SlotState::Connected(association) => Some(association),
            SlotState::Vacant | SlotState::Leaving(_) => None,
        });
        associations.flat_map(|association| association.connections.values_mut())
    }

    pub(super) fn record(
        &mut self,
        subsystem: &Subsystem,
        now_ns: u64,
    ) -> Result<HostsRecord, HandOverError> {
        if !self.pending.is_empty() || self.slots.iter().any(TcpController::is_leaving) {
            return Err(CannotHandOver("a host connects or leaves").into());
        }
        let connected = |(number, slot): (u8, &TcpController)| slot.association().map(|_| number);
        let numbers: Vec<u8> = (0..).zip(&self.slots).filter_map(connected).collect();
        let mut records = Vec::new();
        for number in numbers {
            let slot = &self.slots[usize::from(number)];
            records.push((number, slot, slot.check_settled(subsystem)?.encode(now_ns)));
        }
        let mut outgoing = Outgoing::default();
        let mut writer = Writer::new(now_ns);
        writer.part(part::COUNTERS, Need::Optional, |part| {
            part.put(self.shared.associations);
            part.put(self.shared.refused);
        });
        writer.part(part::ASSOCIATIONS, Need::Required, |part| {
            part.list(records, |part, (number, slot, controller)| {
                part.put(number);
                slot.put(part, &controller, &mut outgoing);
            });
        });
        let record = HostsRecord { bytes: writer.finish(), fds: outgoing.finish()? };
        self.is_suspended = true;
        self.connections().for_each(Connection::lend);
        Ok(record)
    }
}

impl TcpController {
    /// Returns the record of the controller if all connections have settled.
    fn check_settled(&self, subsystem: &Subsystem) -> Result<ControllerRecord, HandOverError> {
        let SlotState::Connected(association) = &self.state else {
            return Err(CannotHandOver("a host leaves").into());
        };
        if !association.is_announced || association.has_closed() {
            return Err(CannotHandOver("a host authenticates, or a connection is ending").into());
        }
        association.connections.values().try_for_each(Connection::check_settled)?;
        Ok(self.controller.record(subsystem)?)
    }

    fn put(&self, part: &mut Writer, controller: &[u8], outgoing: &mut Outgoing) {
        let SlotState::Connected(association) = &self.state else { return };
        let Association { host, port, kato_ms, connections, .. } = association;
        outgoing.put(part, self.controller.doorbells().fd().as_fd());
        part.bytes(controller);
        part.bytes(host.nqn.as_bytes());
        part.raw(&host.id);
        put_address(part, *port);
        part.put(*kato_ms);
        part.list(connections.values().collect::<Vec<_>>(), |part, connection| {
            connection.put(part, outgoing)
        });
    }
}

/// Methods of the process that takes over.
impl Hosts {
    /// Adds the hosts of another process to a drive, in place of [`admit`](Self::admit). They stay suspended until
    /// they [go on](Self::go_on).
    ///
    /// # Errors
    /// The record does not fit. The hosts stay connected to the other process.
    pub fn take_over(
        drive: &mut Drive,
        config: Config,
        hosts: &IncomingHosts,
        keys: &Keys,
        now_ns: u64,
    ) -> Result<(), HandOverError> {
        let mut failed = None;
        let added = drive.add(|new| {
            let (number, task, io) = (new.number, new.task, new.io.clone());
            let subsystem = new.subsystem;
            let new = sluice_frontend::NewFrontend { number, task, io, subsystem: &mut *subsystem };
            let mut own = Self::new(new, config);
            own.is_suspended = true;
            match own.take(subsystem, hosts, keys, now_ns) {
                Ok(()) => Ok(own),
                Err(error) => {
                    failed = Some(error);
                    Err(io::ErrorKind::InvalidData.into())
                }
            }
        });
        added.map_err(|error| failed.unwrap_or(HandOverError::Io(error)))
    }

    pub(super) fn take(
        &mut self,
        subsystem: &mut Subsystem,
        hosts: &IncomingHosts,
        keys: &Keys,
        now_ns: u64,
    ) -> Result<(), HandOverError> {
        let mut associations = Vec::new();
        Reader::new(&hosts.bytes, now_ns).parts(|tag, mut part| {
            match tag {
                part::COUNTERS => {
                    (self.shared.associations, self.shared.refused) = (part.get()?, part.get()?);
                }
                part::ASSOCIATIONS => associations = part.rest().to_vec(),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let mut part = Reader::new(&associations, now_ns);
        let most = self.config.hosts_max;
        list(&mut part, most.into(), |part| {
            let number = part.below(most, "number of a host")?;
            while self.slots.len() <= usize::from(number) {
                let next = self.slots.len();
                self.make_controller(next as u8, subsystem, now_ns);
                if self.slots.len() == next {
                    return Err(CannotHandOver("the other process has no room for a controller").into());
                }
            }
            let Self { slots, shared, .. } = self;
            slots[usize::from(number)].take(part, &hosts.incoming, keys, subsystem, shared, now_ns)
        })
        .map(drop)
    }
}

impl TcpController {
    /// Takes the association of another process, which stays suspended.
    fn take(
        &mut self,
        part: &mut Reader<'_>,
        incoming: &Incoming,
        keys: &Keys,
        subsystem: &mut Subsystem,
        shared: &Shared,
        now_ns: u64,
    ) -> Result<(), HandOverError> {
        if !self.is_vacant() {
            return Err(RecordError::Invalid("number of a host").into());
        }
        let doorbells = incoming.take(part)?;
        let controller = part.bytes(CONTROLLER_MAX)?.to_vec();
        let nqn =
            std::str::from_utf8(part.bytes(NQN_MAX)?).map_err(|_| RecordError::Invalid("name of a host"))?;
        let host = Host { nqn: nqn.to_owned(), id: part.array()? };
        let port = read_address(part)?;
        let mut association = Association::new(host, port, part.get()?);
        association.is_announced = true;
        let at = || (shared.io.clone(), shared.task, self.owner(shared));
        let connections = list(part, usize::from(IO_QUEUES_MAX) + 1, |part| {
            let authenticated = |peer| keys.authenticated(&association.host.nqn, peer);
            Connection::read(part, incoming, at(), authenticated, now_ns)
        })?;
        for connection in connections {
            let mapped = connection.memory.map(&mut self.space);
            mapped.map_err(|_| CannotHandOver("the other process cannot map a connection's memory"))?;
            association.connections.insert(connection.qid, connection);
        }
        let doorbells = SharedRegion::from_fd(doorbells, 0, self.controller.doorbells().len())?;
        let record = ControllerRecord::decode(&controller, now_ns)?;
        let Self { controller, space, .. } = self;
        controller.set_host(subsystem, &association.host.nqn, association.host.id);
        controller.set_port(subsystem, &association.port.to_string());
        controller.set_present(subsystem, true);
        controller.take_over(subsystem, record, doorbells, space, now_ns)?;
        self.state = SlotState::Connected(association);
        Ok(())
    }
}
