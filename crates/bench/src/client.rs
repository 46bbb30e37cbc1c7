//! The host's side of a measurement: a controller, and queue pairs that are kept busy.

use super::cell::Shape;
use super::workload::{Geometry, Workload};
use clap::ValueEnum;
use serde::Serialize;
use sluice_host::{
    Controller, DmaBuffer, Error, Mode, PciTransport, QueueLayout, QueuePair, Settings, VfioUser, identify,
};
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use sluice_spec::error::ApiError;
use std::fmt::Display;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Way in which doorbells reach the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Doorbells {
    /// Memory that both sides see
    Mapped,
    /// QEMU's way: shadow doorbells, and messages when the controller requests them
    Trapped,
}

impl Doorbells {
    pub fn word(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::Trapped => "trapped",
        }
    }
}

/// Time limit of any message or admin command.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Entries of an I/O queue, unless the controller has fewer: as many as the floor has.
const ENTRIES: u32 = 1024;

/// NSID of the namespace that is measured.
const NSID: u32 = 1;

/// A connection to a drive.
#[derive(Debug)]
pub struct Client {
    pub controller: Controller,
    pub geometry: Geometry,
    /// Process that serves the drive.
    pub server_pid: Option<u32>,
}

impl Client {
    /// Connects to a drive's socket and makes its controller ready.
    pub fn connect(socket: &Path, doorbells: Doorbells) -> Result<Self, ApiError> {
        let in_words = |error: &dyn Display| ApiError::conflict(format!("{}: {error}", socket.display()));
        let stream =
            UnixStream::connect(socket).map_err(|error| ApiError::io("connect to", socket, &error))?;
        let mode = match doorbells {
            Doorbells::Mapped => Mode::Mapped,
            Doorbells::Trapped => Mode::Trapped,
        };
        let transport = VfioUser::over(stream, mode, TIMEOUT).map_err(|error| in_words(&error))?;
        let server = transport.peer().and_then(|peer| peer.pid());
        let client = Self::start(Arc::new(transport)).map_err(|error| in_words(&error))?;
        let server_pid = server.map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
        Ok(Self { server_pid, ..client })
    }

    /// Makes a controller ready that is reached over another transport.
    pub fn over(transport: Arc<dyn PciTransport>) -> Result<Self, ApiError> {
        Self::start(transport).map_err(|error| trouble(&error))
    }

    fn start(transport: Arc<dyn PciTransport>) -> Result<Self, Error> {
        let settings = Settings { timeout: TIMEOUT, ..Settings::default() };
        let mut controller = Controller::start(transport, settings)?;
        let geometry = geometry(&mut controller)?;
        Ok(Self { controller, geometry, server_pid: None })
    }

    /// Creates the queue pairs of a cell. With different values of `seed`, drives get different commands.
    pub fn open_streams(&mut self, shape: &Shape, seed: u64) -> Result<Vec<Stream>, ApiError> {
        self.controller.set_queue_count(shape.queues.0).map_err(|error| trouble(&error))?;
        (1..=shape.queues.0).map(|id| self.open_stream(id as u16, shape, seed, None)).collect()
    }

    /// Creates one queue pair of a cell, which signals the interrupt `vector` if there is one.
    pub fn open_stream(
        &mut self,
        id: u16,
        shape: &Shape,
        seed: u64,
        vector: Option<u16>,
    ) -> Result<Stream, ApiError> {
        let workload = Workload::new(shape, self.geometry, seed << 8 | u64::from(id)).ok_or_else(|| {
            ApiError::invalid(format!("a command of {} does not fit the namespace", shape.block_size))
        })?;
        let (depth, length) = (shape.queue_depth.0, shape.block_size.0);
        let entries = ENTRIES.min(self.controller.capabilities().max_queue_entries());
        if depth >= entries {
            return Err(ApiError::invalid(format!("the controller's queues are not {depth} deep")));
        }
        let layout = QueueLayout { entries, max_transfer: length as usize };
        let stream = self.controller.create_queue_pair(id, layout, vector).and_then(|queue| {
            let data = self.controller.memory().allocate(depth as usize * length as usize)?;
            Ok(Stream::new(queue, data, depth, length, workload))
        });
        stream.map_err(|error| trouble(&error))
    }

    /// Deletes the queue pairs of a cell.
    pub fn close_streams(&mut self, streams: Vec<Stream>) -> Result<(), ApiError> {
        let mut delete = |stream: Stream| self.controller.delete_queue_pair(stream.queue);
        streams.into_iter().try_for_each(&mut delete).map_err(|error| trouble(&error))
    }
}

fn geometry(controller: &mut Controller) -> Result<Geometry, Error> {
    let namespace = controller.identify_namespace(NSID)?;
    let block_size = identify::block_size(&namespace);
    let block_size = block_size.ok_or(Error::Unsupported("a namespace with impossible blocks"))?;
    Ok(Geometry { nsid: NSID, block_size, blocks: namespace.nsze })
}

/// Returns the problem for a drive that did not work as it should.
pub fn trouble(error: &impl Display) -> ApiError {
    ApiError::internal(format!("the drive does not work: {error}"))
}

/// Begin of a command that is not in flight.
pub const NEVER: u64 = u64::MAX;

/// A queue pair, its commands and their data.
///
/// A stream uses the rings of the queue pair and keeps identifiers of its own. A command needs an identifier
/// anyway to find its data and the time at which it began. At great depth the host is as often the slower
/// side.
#[derive(Debug)]
pub struct Stream {
    pub queue: QueuePair,
    workload: Workload,
    /// Slots by the identifier of their command.
    slots: Vec<Slot>,
    /// Free identifiers, the last used on top: its slot and data are still in the cache.
    free: Vec<u16>,
    /// Completions of commands that were not in flight.
    strays: u64,
    /// Data of the commands, dropped after the queue.
    _data: DmaBuffer,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Time at which its command began; [`NEVER`] if none is in flight.
    begun: u64,
    dptr: [u64; 2],
}

impl Stream {
    fn new(queue: QueuePair, data: DmaBuffer, depth: u32, length: u32, workload: Workload) -> Self {
        let slot = |index: u32| {
            let range = data.range(index as usize * length as usize, length);
            let dptr =
                queue.lists().prp(index as u16, range).expect("the queue was laid out for this length");
            Slot { begun: NEVER, dptr }
        };
        let slots = (0..depth).map(slot).collect();
        let free = (0..depth as u16).rev().collect();
        Self { queue, workload, slots, free, strays: 0, _data: data }
    }

    /// Puts a command in the queue that began at `now`. Returns false if the queue has its depth in flight.
    #[inline]
    pub fn submit(&mut self, now: u64) -> bool {
        let Some(cid) = self.free.pop() else { return false };
        let slot = &mut self.slots[usize::from(cid)];
        slot.begun = now;
        let entry = SubmissionEntry { cid, dptr: slot.dptr, ..self.workload.next_entry() };
        self.queue.submission().push(&entry);
        true
    }

    /// Takes all completions; `each` gets them with the time at which their command began.
    #[inline]
    pub fn reap(&mut self, mut each: impl FnMut(CompletionEntry, u64)) {
        // A correct device has no more completions, and a faulty device must not keep the host in this loop.
        for _ in 0..self.slots.len() {
            let Some(completion) = self.queue.completion().pop() else { return };
            match self.slots.get_mut(usize::from(completion.cid)) {
                Some(slot) if slot.begun != NEVER => {
                    self.free.push(completion.cid);
                    each(completion, std::mem::replace(&mut slot.begun, NEVER));
                }
                _ => self.strays += 1,
            }
        }
    }

    /// Returns the number of commands that can still be submitted.
    #[inline]
    pub fn room(&self) -> u32 {
        self.free.len() as u32
    }

    /// Returns whether no command is in flight.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Returns the number of completions of commands that were not in flight.
    pub fn strays(&self) -> u64 {
        self.strays
    }
}
