//! The controller and what a front-end does with it.

use crate::model::{Subsystem, self_test};
use crate::state::arbitration::Priorities;
use crate::state::client_dma::ClientDma;
use crate::state::doorbells::{DoorbellMode, Doorbells};
use crate::state::events::Events;
use crate::state::failures::Failures;
use crate::state::features::Features;
use crate::state::health::ErrorLog;
use crate::state::interrupts::Interrupts;
use crate::state::kept::Kept;
use crate::state::limits::IO_QUEUES_MAX;
use crate::state::patience::Patience;
use crate::state::queue::{CompletionQueue, SubmissionQueue};
use crate::state::registers::Registers;
use crate::state::remote_queues::groups::RemoteGroups;
use crate::state::reservation::Notifications;
use crate::state::self_test::SelfTest;
use crate::state::unmapped_queues::UnmappedQueues;
use sluice_command::handover::{Queues, Segment};
use sluice_command::{Command, Slot};
use sluice_memory::{Removed, SharedRegion};
use std::io;

/// NVMe controller of a [`Subsystem`]. The controllers of a subsystem use it in turn.
#[derive(Debug)]
pub struct Controller {
    /// Number of this controller in its subsystem, as its commands carry it.
    pub(super) number: u8,
    pub(super) cntlid: u16,
    pub(super) registers: Registers,
    /// Whether the controller was ready since the last reset from outside.
    is_on: bool,
    /// Segment that a successor of this process is handed.
    pub(super) handover: Segment<Queues>,
    /// Queues by identifier; zero is the admin queue.
    pub(crate) sqs: Vec<Option<SubmissionQueue>>,
    pub(crate) cqs: Vec<Option<CompletionQueue>>,
    /// Identifiers of the existing submission queues, in the order of service.
    pub(super) active: Vec<u16>,
    pub(crate) doorbells: Doorbells,
    pub(super) mode: DoorbellMode,
    pub(super) events: Events,
    pub(crate) features: Features,
    /// Reservation notifications for the host.
    pub(super) reservation_notifications: Notifications,
    pub(super) errors: ErrorLog,
    /// Persistent Event Log page, as of the time when the host established a context for it.
    pub(super) persistent_events: Option<Vec<u8>>,
    pub(super) self_test: SelfTest,
    /// NSIDs that a shutdown has still to flush; none before the shutdown flushes.
    pub(super) unflushed: Option<Vec<u32>>,
    /// Completion queue that was posted to last. Its tail goes to the hand-over segment once for a batch.
    pub(super) posted: u16,
    /// Time of the next due work of this controller. Only [`note_deadline`](Self::note_deadline) computes it;
    /// [`make_due`](Self::make_due) may make it earlier.
    next_deadline_ns: u64,
    /// Delete I/O Submission Queue commands whose queue still has commands in flight.
    pub(super) deletions: Vec<Command>,
    /// State of the limit on log messages about failed commands.
    pub(super) failures: Failures,
    pub(super) interrupts: Interrupts,
    pub(super) unmapped: UnmappedQueues,
    /// Watch over commands that wait for long.
    pub(super) patience: Patience,
    /// DMA requests; present once the client was found to have memory that only it reaches.
    pub(crate) client_dma: Option<Box<ClientDma>>,
    /// Number of queues ever created, which distinguishes them.
    pub(super) epochs: u32,
    /// Index of the active queue that is served first in the next turn.
    rotation: usize,
    /// The same for weighted round robin.
    pub(super) priorities: Priorities,
    /// Queue groups that are served elsewhere.
    pub(crate) remote_groups: RemoteGroups,
    /// Number of I/O queues of each kind that the host may have.
    io_queues: u16,
    /// State of a controller whose record is kept, in case that this process dies.
    pub(super) kept: Option<Box<Kept>>,
}

impl Controller {
    /// Adds a controller with an identifier that no other controller of the subsystem has. It must
    /// [leave](Self::leave) before it is dropped, unless the subsystem is dropped as well.
    ///
    /// # Errors
    /// There are [`CONTROLLERS_MAX`](crate::CONTROLLERS_MAX) controllers, or no memory or descriptors.
    pub fn new(subsystem: &mut Subsystem, cntlid: u16) -> io::Result<Self> {
        let pairs = usize::from(IO_QUEUES_MAX) + 1;
        let (doorbells, mut handover) = (Doorbells::new()?, Segment::<Queues>::new()?);
        let number = subsystem.add_controller(cntlid)?;
        handover.get_mut().controller = number.into();
        Ok(Self {
            number,
            cntlid,
            is_on: false,
            handover,
            registers: Registers::new(),
            sqs: (0..pairs).map(|_| None).collect(),
            cqs: (0..pairs).map(|_| None).collect(),
            active: Vec::with_capacity(pairs),
            doorbells,
            mode: DoorbellMode::default(),
            events: Events::new(),
            features: Features::new(),
            reservation_notifications: Notifications::new(),
            errors: ErrorLog::new(),
            persistent_events: None,
            self_test: SelfTest::new(),
            unflushed: None,
            posted: 0,
            next_deadline_ns: u64::MAX,
            deletions: Vec::new(),
            failures: Failures::default(),
            interrupts: Interrupts::default(),
            unmapped: UnmappedQueues::default(),
            patience: Patience::default(),
            client_dma: None,
            epochs: 0,
            rotation: 0,
            priorities: Priorities::default(),
            remote_groups: RemoteGroups::default(),
            io_queues: IO_QUEUES_MAX,
            kept: None,
        })
    }

    /// Returns the number of I/O queues of each kind that the host may have. The host's request does not
    /// change it: the number allocated may be larger than the number requested (Base 5.27.1.5).
    pub fn io_queues(&self) -> u16 {
        self.io_queues
    }

    /// Limits the I/O queues of each kind, from 1 to [`IO_QUEUES_MAX`]. Call it before a host comes.
    pub fn limit_io_queues(&mut self, count: u16) {
        self.io_queues = count.clamp(1, IO_QUEUES_MAX);
    }

    /// Returns the number of MSI-X vectors: one for each queue pair.
    pub fn vectors(&self) -> u16 {
        IO_QUEUES_MAX + 1
    }

    /// Returns a region laid out like the register space. A front-end may let the host map its page of
    /// doorbells.
    pub fn doorbells(&self) -> &SharedRegion {
        self.doorbells.page()
    }

    /// Sets the mode for a client, before the client enables the controller.
    ///
    /// In mapped mode each client gets a page of its own, and the next client in another mode gets a page
    /// that is mapped nowhere. If there is no memory for one, the controller enters fatal status.
    pub fn set_doorbell_mode(&mut self, mode: DoorbellMode) {
        let renewed = match mode {
            mode if mode == self.mode => Ok(()),
            DoorbellMode::Mapped => self.doorbells.make_mappable(),
            _ => self.doorbells.make_private(),
        };
        if let Err(error) = renewed {
            tracing::error!(%error, "no memory for a client's doorbell page");
            self.registers.set_fatal();
        }
        self.mode = mode;
        self.registers.offer_subsystem_reset(mode != DoorbellMode::Capsules);
    }

    /// Returns whether every queue of the host is served by this controller.
    pub fn has_all_queues(&self) -> bool {
        self.remote_groups.groups.is_empty()
    }

    pub fn doorbell_mode(&self) -> DoorbellMode {
        self.mode
    }

    /// Returns CNTLID of Identify Controller.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// Returns the host's commands in flight. Each remote queue group counts as one, since it may have some.
    pub fn in_flight(&self, subsystem: &Subsystem) -> u32 {
        subsystem.slab.in_flight_of(self.number) + self.remote_groups.count()
    }

    /// Returns whether a command in flight has data in the removed memory, or a device below a layer may
    /// reach it.
    pub fn uses(&self, subsystem: &Subsystem, removed: &Removed) -> bool {
        subsystem.slab.live().flat_map(Slot::segments).any(|segment| removed.contains(segment))
            || subsystem.lends(removed)
            || !self.has_all_queues()
    }

    pub fn read_register(&self, offset: u32, data: &mut [u8]) {
        self.registers.read(offset, data);
    }

    /// Returns the number of this controller in its subsystem.
    #[inline]
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// Notes that the host has enabled the controller. Returns whether it was ready before, since the last
    /// reset from outside.
    pub(crate) fn switch_on(&mut self) -> bool {
        std::mem::replace(&mut self.is_on, true)
    }

    /// Returns whether the controller was ready since the last reset from outside.
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Notes a reset from outside. Returns whether the controller was ready before it.
    pub(super) fn switch_off(&mut self) -> bool {
        std::mem::take(&mut self.is_on)
    }

    /// Returns the index of the active queue that is served first in this turn, and makes the queue after it
    /// the first one of the next turn.
    #[inline]
    pub(crate) fn rotate(&mut self) -> usize {
        self.rotation = if self.rotation + 1 < self.active.len() { self.rotation + 1 } else { 0 };
        self.rotation
    }

    /// Makes the next turn begin behind this active queue.
    pub(crate) fn rotate_behind(&mut self, index: usize) {
        self.rotation = index;
    }

    /// Returns whether work of this controller is due.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_deadline_ns
    }

    /// Makes work due at this time, or earlier if other work is.
    pub(crate) fn make_due(&mut self, at_ns: u64) {
        self.next_deadline_ns = self.next_deadline_ns.min(at_ns);
    }

    /// Returns the earliest time at which work of this controller is due, `u64::MAX` for never.
    fn earliest_ns(&self, subsystem: &Subsystem) -> u64 {
        let all = [
            self.features.deadline_ns(),
            self.self_test.deadline_ns().filter(|_| self_test::may_read(self, subsystem)),
            self.interrupts.deadline_ns(),
            self.unmapped.deadline_ns(),
            self.client_dma.as_ref().and_then(|client_dma| client_dma.deadline_ns()),
        ];
        // The compiler unrolls this loop, which is part of every turn that had work.
        let timers = all.iter().fold(u64::MAX, |earliest, at| earliest.min(at.unwrap_or(u64::MAX)));
        timers.min(self.patience.next_ns())
    }

    /// Computes the next deadline, since timers may have changed. Later turns compare the clock with it.
    #[inline]
    pub(crate) fn note_deadline(&mut self, subsystem: &Subsystem) {
        self.next_deadline_ns = self.earliest_ns(subsystem);
    }

    /// Returns the earliest time at which this controller, without its subsystem, needs a turn without a
    /// doorbell. Turns compare the clock with the same time, so timers must be armed only from it.
    pub fn deadline_ns(&mut self, subsystem: &Subsystem) -> Option<u64> {
        self.note_deadline(subsystem);
        (self.next_deadline_ns != u64::MAX).then_some(self.next_deadline_ns)
    }

    pub(crate) fn is_fabrics(&self) -> bool {
        self.mode == DoorbellMode::Capsules
    }

    /// Starts the Keep Alive Timer with a timeout in milliseconds that came with a Connect command.
    pub fn start_keep_alive(&mut self, timeout_ms: u32, now_ns: u64) {
        self.features.set_keep_alive(timeout_ms, now_ns);
        // The next turn computes the deadline from all timers.
        self.make_due(0);
    }
}

/// Forgets commands that wait here for an event or for the end of a queue. The hand-over segment stays as it
/// is, since a successor may be reading it.
impl Drop for Controller {
    fn drop(&mut self) {
        self.events.take_outstanding().for_each(std::mem::forget);
        self.deletions.drain(..).for_each(std::mem::forget);
        self.kept.iter_mut().flat_map(|kept| kept.repeats.drain(..)).for_each(std::mem::forget);
        self.client_dma.iter_mut().for_each(|client_dma| client_dma.abandon());
    }
}
