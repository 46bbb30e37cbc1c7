//! Record of a socket with its controller and its client, for another process that continues them.
//!
//! The bytes of a record name descriptors by their index in a list that goes with the bytes. While a record is
//! on its way the port is *suspended*: it takes no message, no command and no client, and writes nothing to the
//! client's memory. So it can go on if the other process fails, and the other process finds the state of the record.

use super::Listener;
use super::client::Client;
use super::config_space::HEADER_SIZE;
use super::kept::Left;
use super::port::{Config, Port};
use super::session::Session;
use sluice_command::handover::{Commands, Queues, Segment};
use sluice_command::record::{Need, Reader, RecordError, Writer};
use sluice_controller::{
    CannotHandOver, Controller, ControllerRecord, DoorbellMode, QUEUE_ENTRIES_MAX, Remains, Subsystem,
};
use sluice_frontend::record::list;
pub(super) use sluice_frontend::record::{HandOverError, Incoming, Outgoing, option};
use sluice_memory::{Backing, MAX_REGIONS, Permissions, RegionMemory, SharedRegion, Space};
use sluice_nvme::CompletionEntry;
use sluice_reactor::{Io, TaskId};
use sluice_vfio_user::{Connection, MAX_MESSAGE_SIZE, MAX_UNSENT, MAX_UNSENT_FDS, Unfinished};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use zerocopy::{IntoBytes, transmute};

/// Descriptors that a client may have sent with the bytes of an unfinished message.
const RECEIVED_FDS_MAX: usize = 512;

/// Bytes of a controller's record.
const CONTROLLER_MAX: usize = 1 << 20;

/// Bytes of a path of a socket.
const PATH_MAX: usize = 4096;

mod part {
    pub(super) const LISTENER: u16 = 1;
    pub(super) const CONTROLLER: u16 = 2;
    pub(super) const PORT: u16 = 3;
    pub(super) const SPACE: u16 = 4;
    pub(super) const CLIENT: u16 = 5;
    pub(super) const KEPT: u16 = 6;
}

/// Bytes of a record, and the descriptors that they name.
#[derive(Debug, Default)]
pub struct SocketRecord {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// Suspends a port, and returns its record. The drive must be held and settled.
///
/// # Errors
/// The port is not suspended: something cannot be handed over, now or at all.
pub(super) fn hand_over(
    port: &mut Port,
    controller: &Controller,
    subsystem: &Subsystem,
    now_ns: u64,
) -> Result<SocketRecord, HandOverError> {
    let (writer, outgoing) = write(port, controller, subsystem, now_ns)?;
    let record = SocketRecord { bytes: writer.finish(), fds: outgoing.finish()? };
    port.suspend();
    Ok(record)
}

/// Returns the record of a port at work, with the descriptors of the segments that have its commands in flight.
///
/// # Errors
/// Something is under way that only this process can finish.
pub(super) fn keep(
    port: &Port,
    controller: &Controller,
    subsystem: &Subsystem,
    now_ns: u64,
) -> Result<SocketRecord, HandOverError> {
    let (mut writer, mut outgoing) = write(port, controller, subsystem, now_ns)?;
    writer.part(part::KEPT, Need::Required, |part| {
        outgoing.put(part, controller.handover_fd());
        outgoing.put(part, subsystem.handover_fd());
        part.list(controller.results(), |part, result| part.raw(result.as_bytes()));
        let session = port.session().and_then(|session| Some((session.progress()?, session.connection())));
        part.option(session, |part, (progress, connection)| progress.put(part, &mut outgoing, connection));
    });
    Ok(SocketRecord { bytes: writer.finish(), fds: outgoing.finish()? })
}

fn write(
    port: &Port,
    controller: &Controller,
    subsystem: &Subsystem,
    now_ns: u64,
) -> Result<(Writer, Outgoing), HandOverError> {
    let record = controller.record(subsystem)?.encode(now_ns);
    let (listener, session) = port.to_hand_over()?;
    let mut outgoing = Outgoing::default();
    let mut writer = Writer::new(now_ns);
    writer.part(part::LISTENER, Need::Required, |part| listener.put(part, &mut outgoing));
    writer.part(part::CONTROLLER, Need::Required, |part| {
        outgoing.put(part, controller.doorbells().fd());
        part.bytes(&record);
    });
    writer.part(part::PORT, Need::Required, |part| port.put(part));
    let mut is_complete = true;
    writer.part(part::SPACE, Need::Required, |part| {
        is_complete = put_space(part, port.space(), &mut outgoing);
    });
    if !is_complete {
        return Err(CannotHandOver("the host's memory consists of too many files").into());
    }
    if let Some(session) = session {
        writer.part(part::CLIENT, Need::Required, |part| session.put(part, &mut outgoing));
    }
    Ok((writer, outgoing))
}

/// Writes the regions of a space. Returns false if the descriptor of one was not kept.
fn put_space(part: &mut Writer, space: &Space, outgoing: &mut Outgoing) -> bool {
    let mut is_complete = true;
    part.list(space.regions(), |part, region| {
        part.put(region.iova);
        part.put(region.length);
        part.put(region.permissions.read);
        part.put(region.permissions.write);
        match region.memory {
            RegionMemory::None => part.put(0u8),
            RegionMemory::Remote => part.put(1u8),
            RegionMemory::File { fd, offset } => {
                part.put(2u8);
                part.put(offset);
                fd.into_iter().for_each(|fd| outgoing.put(part, fd));
                is_complete &= fd.is_some();
            }
        }
    });
    is_complete
}

fn take_space(part: &mut Reader<'_>, incoming: &Incoming, space: &mut Space) -> Result<(), HandOverError> {
    let regions = list(part, MAX_REGIONS, |part| {
        let (iova, length) = (part.get()?, part.get()?);
        let permissions = Permissions { read: part.get()?, write: part.get()? };
        let backing = match part.get::<u8>()? {
            0 => Backing::None,
            1 => Backing::Remote,
            2 => {
                let offset = part.get()?;
                Backing::File { fd: incoming.take(part)?, offset }
            }
            _ => return Err(RecordError::Invalid("kind of memory").into()),
        };
        let mapped = space.map(iova, length, permissions, backing);
        mapped.map_err(|_| CannotHandOver("the other process cannot map the host's memory").into())
    });
    regions.map(drop)
}

/// Socket of another process, read and not continued yet.
#[derive(Debug)]
pub struct IncomingSocket {
    listener: Listener,
    controller: Vec<u8>,
    doorbells: OwnedFd,
    port: Vec<u8>,
    space: Vec<u8>,
    client: Option<Vec<u8>>,
    /// Further state of a process that has died.
    kept: Option<Vec<u8>>,
    incoming: Incoming,
}

impl IncomingSocket {
    /// Reads a record. The paths of its socket stay as they are, whether the socket is continued or not.
    ///
    /// # Errors
    /// The bytes are no record of this version.
    pub fn read(record: SocketRecord) -> Result<Self, HandOverError> {
        let incoming = Incoming(record.fds);
        let mut found: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
        Reader::new(&record.bytes, 0).parts(|tag, mut fields| {
            let is_known = (part::LISTENER..=part::KEPT).contains(&tag);
            if is_known {
                found.insert(tag, fields.rest().to_vec());
            }
            Ok(is_known)
        })?;
        let mut take = |tag| found.remove(&tag).ok_or(RecordError::Missing(tag));
        let listener = take(part::LISTENER)?;
        let controller = take(part::CONTROLLER)?;
        let mut fields = Reader::new(&controller, 0);
        let doorbells = incoming.take(&mut fields)?;
        let controller = fields.bytes(CONTROLLER_MAX)?.to_vec();
        let (port, space) = (take(part::PORT)?, take(part::SPACE)?);
        let (client, kept) = (take(part::CLIENT).ok(), take(part::KEPT).ok());
        let listener = take_listener(&mut Reader::new(&listener, 0), &incoming)?;
        Ok(Self { listener, controller, doorbells, port, space, client, kept, incoming })
    }

    /// Returns the socket, on which no client is accepted yet.
    pub fn listener(&self) -> &Listener {
        &self.listener
    }

    /// Takes the controller and the port, which stays suspended. When it goes on, the first turn looks at everything.
    ///
    /// # Errors
    /// The record does not fit. The paths of the socket stay.
    pub(super) fn take_over(
        self,
        at: (u8, TaskId, Io),
        controller: &mut Controller,
        subsystem: &mut Subsystem,
        config: Config,
        now_ns: u64,
    ) -> Result<Port, HandOverError> {
        let (number, task, io) = at;
        let Self { listener, controller: record, doorbells, port, space, client, kept, incoming } = self;
        let record = ControllerRecord::decode(&record, now_ns)?;
        let length = controller.doorbells().len();
        let doorbells = SharedRegion::from_fd(doorbells, 0, length)?;
        let mut next = Port::new(number, task, io, listener, subsystem.shares_memory(), config);
        // If a later step fails, the other process goes on with its sockets.
        next.suspend();
        next.take(&mut Reader::new(&port, now_ns))?;
        take_space(&mut Reader::new(&space, now_ns), &incoming, next.space_mut())?;
        let left = match kept {
            None => {
                controller.take_over(subsystem, record, doorbells, next.space(), now_ns)?;
                None
            }
            Some(kept) => {
                let (remains, left) = take_kept(&mut Reader::new(&kept, now_ns), &incoming)?;
                controller.recover(subsystem, record, doorbells, remains, next.space(), now_ns)?;
                left
            }
        };
        if let Some(client) = client {
            next.take_client(controller, &mut Reader::new(&client, now_ns), &incoming, left.as_ref())?;
        }
        Ok(next)
    }
}

/// Reads what a process that has died has left.
fn take_kept(part: &mut Reader<'_>, incoming: &Incoming) -> Result<(Remains, Option<Left>), HandOverError> {
    let queues = Segment::<Queues>::read(incoming.take(part)?)?;
    let commands = Segment::<Commands>::read(incoming.take(part)?)?;
    let results = part.list(QUEUE_ENTRIES_MAX as usize, |part| {
        Ok(transmute!(part.array::<{ CompletionEntry::SIZE }>()?))
    })?;
    let left = option(part, |part| Left::take(part, incoming))?;
    Ok((Remains { queues, commands, results }, left))
}

impl Listener {
    fn put(&self, part: &mut Writer, outgoing: &mut Outgoing) {
        outgoing.put(part, self.socket_fd());
        outgoing.put(part, self.directory_fd());
        part.bytes(self.path().as_os_str().as_encoded_bytes());
        part.put(self.has_created_directory());
    }
}

fn take_listener(part: &mut Reader<'_>, incoming: &Incoming) -> Result<Listener, HandOverError> {
    let (socket, directory) = (incoming.take(part)?, incoming.take(part)?);
    let path = std::str::from_utf8(part.bytes(PATH_MAX)?).map_err(|_| RecordError::Invalid("path"))?;
    Ok(Listener::resume(socket, directory, PathBuf::from(path), part.get()?)?)
}

impl Session {
    fn put(&self, part: &mut Writer, outgoing: &mut Outgoing) {
        outgoing.put(part, self.connection().socket().as_fd());
        let Unfinished { received, received_fds, unsent, attached } = self.connection().unfinished();
        part.bytes(&received);
        part.list(received_fds, |part, (position, fd)| {
            part.put(position);
            outgoing.put(part, fd);
        });
        part.bytes(&unsent);
        part.list(attached, |part, (position, size, fds)| {
            part.put(position);
            part.put(size);
            part.list(fds, |part, fd| outgoing.put(part, fd));
        });
        part.put(self.surplus_fds() as u32);
        self.client.put(part, outgoing);
    }
}

pub(super) fn take_session(
    part: &mut Reader<'_>,
    incoming: &Incoming,
    mut client: Client,
    left: Option<&Left>,
) -> Result<Session, HandOverError> {
    let socket = incoming.take(part)?;
    let received = part.bytes(2 * MAX_MESSAGE_SIZE)?.to_vec();
    let received_fds = list(part, RECEIVED_FDS_MAX, |part| Ok((part.get()?, incoming.take(part)?)))?;
    let unsent = part.bytes(MAX_UNSENT)?.to_vec();
    let attached = list(part, MAX_UNSENT_FDS, |part| {
        let (position, size) = (part.get()?, part.get()?);
        Ok((position, size, list(part, MAX_UNSENT_FDS, |part| incoming.take(part))?))
    })?;
    let surplus_fds = part.get::<u32>()? as usize;
    client.take(part, incoming)?;
    let unfinished = Unfinished { received, received_fds, unsent, attached };
    let connection = match left {
        Some(left) => left.resume(socket.into(), unfinished)?,
        None => {
            Connection::resume(socket.into(), unfinished).ok_or(RecordError::Invalid("unfinished message"))?
        }
    };
    Ok(Session::resume(connection, client, surplus_fds))
}

/// Writes the number of a doorbell mode.
pub(super) fn put_mode(part: &mut Writer, mode: DoorbellMode) {
    part.put(u8::from(mode == DoorbellMode::Mapped));
}

pub(super) fn take_mode(part: &mut Reader<'_>) -> Result<DoorbellMode, RecordError> {
    Ok(if part.get()? { DoorbellMode::Mapped } else { DoorbellMode::Trapped })
}

/// Reads the configuration space of a function.
pub(super) fn take_config_space(part: &mut Reader<'_>) -> Result<[u8; HEADER_SIZE], RecordError> {
    part.array()
}
