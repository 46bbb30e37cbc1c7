//! The controller and what a front-end does with it.

use crate::arbitration::Priorities;
use crate::client_dma::ClientDma;
use crate::doorbells::Doorbells;
use crate::events::{Event, Events};
use crate::failures::Failures;
use crate::features::Features;
use crate::health::ErrorLog;
use crate::interrupts::Interrupts;
use crate::queue::{CompletionQueue, Service, SubmissionQueue};
use crate::registers::Registers;
use crate::remote_queues::RemoteGroups;
use crate::reservation::{HostId, KnownAs, Notifications};
use crate::self_test::SelfTest;
use crate::subsystem::Subsystem;
use crate::unmapped_queues::UnmappedQueues;
use crate::{IO_QUEUES_MAX, Identity, Namespace, abandoned, fused, self_test};
use sluice_command::handover::{Queues, Segment};
use sluice_command::{Command, Slot};
use sluice_memory::{Removed, SharedRegion};
use std::io;

/// Path of the host's doorbell writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DoorbellMode {
    /// Each write traps to the front-end. Doorbell Buffer Config is offered so that few do.
    #[default]
    Trapped,
    /// The host stores to the doorbell page itself. Shadow doorbells are not offered: a host that uses them
    /// does not ring, and nothing could wake the controller.
    Mapped,
    /// The transport is message-based and has no doorbells. The front-end rings for the capsules that it
    /// received. Features of memory-based transports are not offered.
    Capsules,
}

/// Configuration of a drive.
#[derive(Debug)]
pub struct Config {
    pub identity: Identity,
    pub namespaces: Vec<Namespace>,
}

/// Counters of a drive since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// I/O commands completed.
    pub commands: u64,
    pub errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// NVMe controller of a [`Subsystem`]. The controllers of a subsystem use it in turn.
#[derive(Debug)]
pub struct Controller {
    /// Number of this controller in its subsystem, as its commands carry it.
    pub(crate) number: u8,
    pub(crate) cntlid: u16,
    pub(crate) registers: Registers,
    /// Whether the controller was ready since the last reset from outside.
    pub(crate) is_on: bool,
    /// Segment that a successor of this process is handed.
    pub(crate) handover: Segment<Queues>,
    /// Queues by identifier; zero is the admin queue.
    pub(crate) sqs: Vec<Option<SubmissionQueue>>,
    pub(crate) cqs: Vec<Option<CompletionQueue>>,
    /// Identifiers of the existing submission queues, in the order of service.
    pub(crate) active: Vec<u16>,
    pub(crate) doorbells: Doorbells,
    pub(crate) mode: DoorbellMode,
    pub(crate) events: Events,
    pub(crate) features: Features,
    /// Reservation notifications for the host.
    pub(crate) reservation_notifications: Notifications,
    pub(crate) errors: ErrorLog,
    /// Persistent Event Log page, as of the time when the host established a context for it.
    pub(crate) persistent_events: Option<Vec<u8>>,
    pub(crate) self_test: SelfTest,
    /// NSIDs that a shutdown has still to flush; none before the shutdown flushes.
    pub(crate) unflushed: Option<Vec<u32>>,
    /// Completion queue that was posted to last. Its tail goes to the hand-over segment once for a batch.
    pub(crate) posted: u16,
    /// Time of the next due work of this controller. Only [`note_deadline`](Self::note_deadline) computes it;
    /// other code may only make it earlier.
    pub(crate) next_deadline_ns: u64,
    /// Delete I/O Submission Queue commands whose queue still has commands in flight.
    pub(crate) deletions: Vec<Command>,
    /// State of the limit on log messages about failed commands.
    pub(crate) failures: Failures,
    pub(crate) interrupts: Interrupts,
    pub(crate) unmapped: UnmappedQueues,
    /// DMA requests; present once the client was found to have memory that only it reaches.
    pub(crate) client_dma: Option<Box<ClientDma>>,
    /// Number of queues ever created, which distinguishes them.
    pub(crate) epochs: u32,
    /// Index of the active queue that is served first in the next turn.
    pub(crate) rotation: usize,
    /// The same for weighted round robin.
    pub(crate) priorities: Priorities,
    /// Queue groups that are served elsewhere.
    pub(crate) remote_groups: RemoteGroups,
    /// Number of I/O queues of each kind that the host may have.
    io_queues: u16,
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
            client_dma: None,
            epochs: 0,
            rotation: 0,
            priorities: Priorities::default(),
            remote_groups: RemoteGroups::default(),
            io_queues: IO_QUEUES_MAX,
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

    pub fn doorbell_mode(&self) -> DoorbellMode {
        self.mode
    }

    /// Handles a doorbell write that came through the front-end; `offset` is from the first doorbell. Writes
    /// to doorbells of missing queues, and invalid values, are reported to the host (Base 5.2.1, error events
    /// 0 and 1) and change nothing.
    pub fn ring(&mut self, offset: u32, value: u32) {
        let id = (offset / 8) as u16;
        let is_cq = offset & 4 != 0;
        if offset & 3 != 0 || offset >= crate::doorbells::PAGE as u32 || !self.registers.is_ready() {
            return;
        }
        let here = match is_cq {
            true => self.cqs.get(usize::from(id)).and_then(Option::as_ref).map(|queue| queue.size),
            false => self.sqs.get(usize::from(id)).and_then(Option::as_ref).map(|queue| queue.size),
        };
        let size = here.or_else(|| self.remote_groups.ring(id, is_cq));
        match size {
            None => self.doorbell_error(id, Event::INVALID_DOORBELL_REGISTER),
            Some(size) if value >= size => self.doorbell_error(id, Event::INVALID_DOORBELL_VALUE),
            Some(_) if is_cq || !self.ring_shadow_queue(id, value) => {
                self.doorbells.ring(offset as usize, value)
            }
            // The doorbell is passed on when the entries are here.
            Some(_) => {}
        }
    }

    #[cold]
    pub(crate) fn doorbell_error(&mut self, queue: u16, event: Event) {
        if self.remote_groups.defer_doorbell_error(queue, event) {
            return;
        }
        self.errors.doorbell(queue);
        self.events.raise(event);
    }

    /// Sets name and 128-bit identifier of the association's host. Returns false if the identifier belongs to
    /// another host; then this host has none.
    pub fn set_host(&mut self, subsystem: &mut Subsystem, nqn: &str, identifier: [u8; 16]) -> bool {
        // Notifications for the last host are not for this one.
        self.reservation_notifications = Notifications::new();
        subsystem.set_host_name(self.number, KnownAs::Nqn(nqn.into()));
        let host = HostId::extended(identifier, self.number);
        subsystem.set_host(self.number, host);
        subsystem.host(self.number) == host
    }

    /// Returns CNTLID of Identify Controller.
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// Sets whether hosts see this controller in the subsystem's list of controllers. A controller that is
    /// made for an association exists only during the association (Base 3.1.1).
    pub fn set_present(&self, subsystem: &mut Subsystem, present: bool) {
        subsystem.mailboxes.set_present(self.number, present);
        match present {
            true => subsystem.attach_all(self.number),
            false => subsystem.detach_all(self.number),
        }
    }

    /// Leaves the subsystem. Nothing may be in flight: see [`is_quiescent`](Self::is_quiescent).
    pub fn leave(self, subsystem: &mut Subsystem) {
        subsystem.remove_controller(self.number);
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

    /// Calls `signal` for each vector with completions that are not signalled yet.
    #[inline]
    pub fn take_vectors(&mut self, signal: impl FnMut(u16)) {
        self.interrupts.take(signal);
    }

    /// Returns the level of INTx: high while a completion is unseen whose queue has interrupts enabled and
    /// unmasked.
    pub fn intx_asserted(&mut self) -> bool {
        if !self.registers.is_ready() || self.registers.interrupts_masked() {
            return false;
        }
        let mut asserted = false;
        for id in 0..self.cqs.len() {
            let by_shadow_queue = self.interrupts_by_shadow_queue(id as u16);
            let Self { cqs, doorbells, .. } = self;
            let Some(queue) = &mut cqs[id] else { continue };
            if (queue.vector.is_some() || by_shadow_queue) && queue.has_unseen(doorbells) {
                // The pin goes low when the host has seen the completion, so the host must ring the head
                // doorbell.
                doorbells.request_head_ring(queue.id, queue.head);
                asserted = true;
            }
        }
        asserted
    }

    pub fn read_register(&self, offset: u32, data: &mut [u8]) {
        self.registers.read(offset, data);
    }

    /// Requests doorbell writes from the host before the task sleeps, and looks once more. Returns whether
    /// there is work after all.
    pub fn arm(&mut self, subsystem: &Subsystem) -> bool {
        let has_mail = subsystem.mailboxes.has_mail(self.number);
        if subsystem.has_completions() || has_mail || self.can_advance_state(subsystem) {
            return true;
        }
        if subsystem.fused.is_busy() && self.can_advance(subsystem) {
            return true;
        }
        // In fatal status no queue is served, whatever the host writes there.
        if !self.registers.is_ready() || self.registers.is_fatal() {
            return false;
        }
        if self.has_client_dma_work() || self.can_deliver_event() {
            return true;
        }
        self.request_rings();
        // The last entry may prove that the first half of a fused operation waits in vain.
        subsystem.fused.is_busy() && self.can_advance(subsystem)
            || !subsystem.is_held() && self.has_fetchable(subsystem)
    }

    /// Returns whether a turn could continue held commands.
    fn can_advance(&self, subsystem: &Subsystem) -> bool {
        fused::can_advance(self, subsystem) || abandoned::can_advance(self, subsystem)
    }

    /// Requests a doorbell write for the next entry of each queue, and for a free slot of a completion queue
    /// that may be full.
    fn request_rings(&self) {
        let sqs = || self.active.iter().filter_map(|&id| self.sqs[usize::from(id)].as_ref());
        let cqs = sqs().filter_map(|queue| self.cqs[usize::from(queue.cq)].as_ref());
        self.doorbells
            .request_rings(sqs().map(|queue| (queue.id, queue.head)), cqs.map(|cq| (cq.id, cq.head)));
    }

    /// Returns whether there are an event, a request for it, and a completion slot. Until the host releases a
    /// slot the task may sleep.
    fn can_deliver_event(&mut self) -> bool {
        let Self { cqs, doorbells, events, .. } = self;
        events.is_deliverable() && cqs[0].as_mut().is_some_and(|cq| cq.room(1, doorbells) > 0)
    }

    /// Returns whether some queue has an entry that could be fetched now.
    fn has_fetchable(&mut self, subsystem: &Subsystem) -> bool {
        let Self { active, sqs, cqs, doorbells, remote_groups, .. } = self;
        subsystem.room(self.number) > 0
            && active.iter().any(|&id| {
                // Entries that wait for all queues need no polling: the return of the queues wakes the task.
                if id == 0 && remote_groups.waits() {
                    return false;
                }
                let Some(queue) = &sqs[usize::from(id)] else { return false };
                let tail = doorbells.sq_tail(id);
                tail != queue.head
                    && queue.service == Service::On
                    && !queue.deleting
                    && cqs[usize::from(queue.cq)]
                        .as_mut()
                        .is_some_and(|cq| cq.service == Service::On && cq.room(1, doorbells) > 0)
            })
    }

    /// Withdraws the request for doorbell writes when the task is awake again.
    pub fn disarm(&mut self) {
        if !self.doorbells.has_shadow() {
            return;
        }
        for &id in &self.active {
            if let Some(queue) = &mut self.sqs[usize::from(id)] {
                queue.event_index_head = queue.head;
                self.doorbells.put_event_index_behind(id, queue.head);
            }
        }
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
        all.iter().fold(u64::MAX, |earliest, at| earliest.min(at.unwrap_or(u64::MAX)))
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
}
