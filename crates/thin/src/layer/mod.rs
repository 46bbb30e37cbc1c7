//! A volume of a pool: a layer over the pool's device.

mod barrier;
mod commands;
mod extents;
mod grow;
mod parts;

use crate::committer::Opened;
use crate::layout::{EXTENT, Layout};
use crate::map::{BUSY, Map, PLACE};
use barrier::Barrier;
use extents::{Note, Release};
use grow::Growing;
use sluice_command::{
    Aborted, Characteristics, Command, Controllers, Deallocated, Frame, Lane, Layer, Operation, Storage,
    Ticket, common_boundary,
};
use sluice_memory::{SharedRegion, Space};
use sluice_nvme::Status;
use sluice_reactor::{FileSlot, Io, TaskId};
use sluice_shared::Port;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number under which the notifier's events arrive; no ticket has it.
const NOTIFIED: Ticket = Ticket(u32::MAX - 1);

/// Extents of a Deallocate that ends soon.
const DEALLOCATE_EXTENTS: u64 = 1024;

/// Interval between two requests for an extent of a full pool, ns.
const RETRY_NS: u64 = 100_000_000;

/// Time without allocations after which a volume gives its credit back, ns.
const IDLE_NS: u64 = 1_000_000_000;

/// Extents that are zeroed or copied at a time.
const GROWING_MAX: usize = 32;

/// Stages of the frames of commands.
mod stage {
    /// The command is on the device at one place: `data` has its offset and epoch.
    pub(super) const MOVED: u8 = 0;
    /// Parts of the command are on the device: `data` has the offset of the next part, and the epoch.
    pub(super) const DIVIDED: u8 = 1;
    /// Zeros are written to the ends of a Deallocate.
    pub(super) const EDGES: u8 = 2;
    /// An extent is zeroed; an extent is read to be copied, and written.
    pub(super) const ZEROED: u8 = 3;
    pub(super) const READ: u8 = 4;
    pub(super) const COPIED: u8 = 5;
    /// The device is flushed.
    pub(super) const FLUSHED: u8 = 6;
}

/// Outcome of a write that finds the pool full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Capacity Exceeded.
    #[default]
    Fail,
    /// The write waits until the pool has space.
    Park,
}

/// Properties of a volume that do not change, and its size.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) id: u64,
    pub(crate) data_at: u64,
    pub(crate) size: Arc<AtomicU64>,
    pub(crate) on_full: OnFull,
}

impl Parts {
    pub(crate) fn new(layout: &Layout, size: u64, on_full: OnFull) -> Self {
        Self { id: layout.id, data_at: layout.data_at(), size: Arc::new(AtomicU64::new(size)), on_full }
    }
}

/// A volume on its way to a reactor.
#[derive(Debug)]
pub struct ThinPort {
    port: Port,
    opened: Opened,
    parts: Parts,
}

impl ThinPort {
    pub(crate) fn new(port: Port, opened: Opened, parts: Parts) -> Self {
        Self { port, opened, parts }
    }

    /// Creates the layer. Called on the reactor. `token_prefix` is the part of this layer's tokens above the 32 bits of
    /// a ticket.
    ///
    /// # Errors
    /// The reactor has no place for the notifier, or there is no memory for copies.
    pub fn build(self, task: TaskId, io: &Io, token_prefix: u64) -> io::Result<Thin> {
        let notifier = io.register_file(self.port.as_fd().try_clone_to_owned()?)?;
        io.watch(&notifier, task, token_prefix | u64::from(NOTIFIED.0));
        Ok(Thin { _notifier: Some(notifier), ..self.build_alone()? })
    }

    /// Creates the layer without a reactor: it is polled, and never wakes.
    ///
    /// # Errors
    /// There is no memory for copies.
    pub fn build_alone(self) -> io::Result<Thin> {
        let Opened { number, map, .. } = self.opened;
        // Pages of it are taken when extents are copied.
        let memory = SharedRegion::new("thin", GROWING_MAX * EXTENT as usize)?;
        let is_new = map.iter().next().is_none();
        Ok(Thin {
            port: self.port,
            is_new,
            map,
            number,
            parts: self.parts,
            memory,
            growing: Growing::default(),
            waiting: VecDeque::new(),
            releases: VecDeque::new(),
            outbox: VecDeque::new(),
            sent: VecDeque::new(),
            acknowledged: 0,
            drain: Vec::new(),
            draining: Vec::new(),
            in_flight: [0; 2],
            epoch: 0,
            writing: 0,
            barrier: Barrier::default(),
            leaving: Vec::new(),
            retry_ns: None,
            idle_ns: None,
            is_broken: false,
            allocates: false,
            _notifier: None,
        })
    }
}

/// A volume of a pool.
#[derive(Debug)]
pub struct Thin {
    port: Port,
    map: Map,
    /// Number of the volume in its pool.
    number: u32,
    parts: Parts,
    is_new: bool,
    /// Memory for copies of shared extents.
    memory: SharedRegion,
    /// Extents that are being allocated or copied.
    growing: Growing,
    /// Parked commands that wait for extents.
    waiting: VecDeque<Ticket>,
    /// Deallocations in progress.
    releases: VecDeque<Release>,
    /// Notes for the home; sent notes without an acknowledgement.
    outbox: VecDeque<Note>,
    sent: VecDeque<Note>,
    acknowledged: u64,
    /// Notes that take an extent from the volume. They wait for all commands of the epoch in which the map led there.
    /// The first list collects, and the epoch of the second one has ended.
    drain: Vec<Note>,
    draining: Vec<Note>,
    /// Commands on the device, by epoch.
    in_flight: [u64; 2],
    epoch: usize,
    /// Commands of hosts on the device that change something.
    writing: u64,
    barrier: Barrier,
    /// Extents for the home that the ring had no room for.
    leaving: Vec<u32>,
    /// Time of the next request to a full pool.
    retry_ns: Option<u64>,
    /// Time at which the credit is given back.
    idle_ns: Option<u64>,
    /// The home makes no note durable any more.
    is_broken: bool,
    /// An extent was taken in this turn.
    allocates: bool,
    /// Watched, so that the home wakes the drive.
    _notifier: Option<FileSlot>,
}

impl Layer for Thin {
    fn name(&self) -> &'static str {
        "thin"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let below = below[0];
        // Extents lie at multiples of their size.
        let storage = Storage::named(&self.parts.id.to_le_bytes()).part(u64::from(self.number) + 1);
        Characteristics {
            size: self.parts.size.load(Ordering::Acquire),
            boundary: EXTENT as u32,
            atomic_boundary: common_boundary(EXTENT, below.atomic_boundary.into()),
            atomic_write: below.atomic_write.min(EXTENT as u32),
            deallocated: Deallocated::Zeroes,
            deallocate_limit: DEALLOCATE_EXTENTS * EXTENT,
            fan_out: (parts::PARTS as u32).saturating_mul(below.fan_out.saturating_add(1)),
            // An extent that was given back is erased when it is taken again, and not before.
            keeps_versions: true,
            storage: Storage { is_new: self.is_new, ..storage },
            requests: GROWING_MAX as u32 + 1,
            ..below.over()
        }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        match lane.slot(&command).request.operation {
            Operation::Flush => lane.forward(command),
            _ => self.begin(command, lane),
        }
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        match frame.stage {
            stage::MOVED | stage::DIVIDED | stage::EDGES => self.resume_command(command, frame, lane),
            _ => self.resume_own(command, frame, lane),
        }
        self.pump(lane);
    }

    fn event(&mut self, _ticket: Ticket, _result: i32, _lane: &mut Lane<'_>) {
        // The notifier: the turn that follows receives the answers.
    }

    fn flush(&mut self, lane: &mut Lane<'_>) {
        self.pump(lane);
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self, _controller: u8, _space: &Space, lane: &mut Lane<'_>) -> usize {
        if !self.port.has_news() && !self.has_work() {
            return 0;
        }
        let received = self.port.receive();
        let work = received.messages + self.take_acknowledgements(lane);
        self.heed_calls(lane);
        if received.refused {
            self.refused(lane);
        }
        if self.port.notes_failed() && !self.is_broken {
            self.break_off(lane);
        }
        self.step_releases(lane);
        self.pump(lane);
        work
    }

    fn deadline_ns(&self) -> Option<u64> {
        [self.retry_ns, self.idle_ns].into_iter().flatten().min()
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        if self.retry_ns.is_some_and(|at| at <= lane.now_ns()) {
            self.retry_ns = None;
        }
        if self.idle_ns.is_some_and(|at| at <= lane.now_ns()) {
            self.port.give_back_credit();
            // A grant may be on its way, or the ring full.
            let has_more = self.port.is_requesting() || self.port.credit() > 0;
            self.idle_ns = has_more.then(|| lane.now_ns() + IDLE_NS);
        }
        self.pump(lane);
    }

    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        self.end_parked(|ticket, lane| lane.is_of(of, ticket), why, lane);
        self.give_up_busy(|ticket, lane| lane.is_of(of, ticket), why, lane);
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.end_parked(|ticket, lane| lane.is_aborted(which, ticket), why, lane);
        self.give_up_busy(|ticket, lane| lane.is_aborted(which, ticket), why, lane);
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
            && self.releases.is_empty()
            && self.growing.is_idle()
            && self.sent.is_empty()
            && self.outbox.is_empty()
            && self.in_flight == [0; 2]
    }

    fn arm(&mut self) -> bool {
        self.has_work() || self.port.arm()
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }
}
