//! The controller and what a front-end does with it.

use crate::absence::Absence;
use crate::arbitration::Priorities;
use crate::doorbells::Doorbells;
use crate::erase::Erasure;
use crate::events::{Event, Events};
use crate::features::Features;
use crate::health::Health;
use crate::interrupts::Interrupts;
use crate::keep::Keeper;
use crate::queue::{CompletionQueue, Service, SubmissionQueue};
use crate::registers::Registers;
use crate::self_test::SelfTest;
use crate::subsystem::Subsystem;
use crate::{IO_QUEUES_MAX, Identity, Namespace, erase, self_test};
use sluice_command::{Command, NodeId, Slot, Ticket};
use sluice_memory::{Removed, SharedRegion};
use sluice_router::Router;
use std::io;

/// How the host's doorbells reach us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DoorbellMode {
    /// Every write comes through the front-end; Doorbell Buffer Config is offered so that few do.
    #[default]
    Trapped,
    /// The host stores to the doorbell page itself. Shadow doorbells are not offered: a host that uses
    /// them does not ring, and nothing could wake us.
    Mapped,
    /// There are none: the transport is a message-based one, and the front-end rings for the capsules it
    /// was sent. What only a memory-based transport has is not offered.
    Capsules,
}

/// What a drive is made of.
#[derive(Debug)]
pub struct Config {
    pub identity: Identity,
    pub namespaces: Vec<Namespace>,
}

/// Counters of one controller since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// I/O commands completed.
    pub commands: u64,
    pub errors: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// One NVMe controller with its namespaces.
#[derive(Debug)]
pub struct Controller {
    pub(crate) registers: Registers,
    pub(crate) subsystem: Subsystem,
    /// By queue identifier; zero is the admin queue.
    pub(crate) sqs: Vec<Option<SubmissionQueue>>,
    pub(crate) cqs: Vec<Option<CompletionQueue>>,
    /// Identifiers of the submission queues there are, in the order they are looked at.
    pub(crate) active: Vec<u16>,
    pub(crate) doorbells: Doorbells,
    pub(crate) mode: DoorbellMode,
    /// Private memory of commands that compare.
    pub(crate) staging: SharedRegion,
    pub(crate) events: Events,
    pub(crate) features: Features,
    pub(crate) health: Health,
    pub(crate) self_test: SelfTest,
    /// What is being erased.
    pub(crate) erasure: Option<Erasure>,
    pub(crate) keeper: Keeper,
    /// Finished commands on their way to their completion queues.
    pub(crate) done: Vec<Command>,
    /// Empty, but for its memory, outside of [`settle`](Self::settle).
    pub(crate) finishing: Vec<Command>,
    /// The flushes of a shutdown were started.
    pub(crate) shutdown_flushed: bool,
    /// The completion queue posted to last: its tail goes to the hand-over segment once for a batch.
    pub(crate) posted: u16,
    /// [`deadline_ns`](Self::deadline_ns) as of the last time anything moved.
    pub(crate) next_deadline_ns: u64,
    /// No entries are taken until then.
    pub(crate) held_until_ns: Option<u64>,
    /// Delete I/O Submission Queue commands whose queue still has commands in flight.
    pub(crate) deletions: Vec<Command>,
    pub(crate) interrupts: Interrupts,
    pub(crate) absence: Absence,
    /// Counts queues ever created, to tell them apart.
    pub(crate) epochs: u32,
    /// Which of the active queues is looked at first in the next turn.
    pub(crate) rotation: usize,
    /// The same with weighted round robin.
    pub(crate) priorities: Priorities,
}

impl Controller {
    pub fn new(config: Config) -> io::Result<Self> {
        let pairs = usize::from(IO_QUEUES_MAX) + 1;
        Ok(Self {
            registers: Registers::new(),
            subsystem: Subsystem::new(config.identity, config.namespaces)?,
            sqs: (0..pairs).map(|_| None).collect(),
            cqs: (0..pairs).map(|_| None).collect(),
            active: Vec::with_capacity(pairs),
            doorbells: Doorbells::new()?,
            mode: DoorbellMode::default(),
            staging: crate::pieces::staging()?,
            events: Events::new(),
            features: Features::new(),
            health: Health::new(),
            self_test: SelfTest::new(),
            erasure: None,
            keeper: Keeper::default(),
            done: Vec::with_capacity(crate::COMMANDS_MAX as usize),
            finishing: Vec::with_capacity(crate::COMMANDS_MAX as usize),
            shutdown_flushed: false,
            posted: 0,
            next_deadline_ns: u64::MAX,
            held_until_ns: None,
            deletions: Vec::new(),
            interrupts: Interrupts::default(),
            absence: Absence::default(),
            epochs: 0,
            rotation: 0,
            priorities: Priorities::default(),
        })
    }

    /// MSI-X vectors: one for each queue pair.
    pub fn vectors(&self) -> u16 {
        IO_QUEUES_MAX + 1
    }

    /// A region laid out like the register space, of which a front-end may let the host map the page of
    /// the doorbells.
    pub fn doorbells(&self) -> &SharedRegion {
        self.doorbells.page()
    }

    /// Fixed for a client before it enables the controller.
    ///
    /// In mapped mode every client gets a page of its own; one for whom there is none finds its
    /// controller in fatal status.
    pub fn set_doorbell_mode(&mut self, mode: DoorbellMode) {
        if mode == DoorbellMode::Mapped
            && self.mode != mode
            && let Err(error) = self.doorbells.lend()
        {
            tracing::error!(%error, "no memory for a client's doorbell page");
            self.registers.set_fatal();
        }
        self.mode = mode;
    }

    pub fn doorbell_mode(&self) -> DoorbellMode {
        self.mode
    }

    /// The host wrote a doorbell through the front-end; `offset` is from the first doorbell.
    /// Doorbells of queues that do not exist, and values that cannot be, are reported to the host
    /// (Base 5.2.1, error events 0 and 1) and change nothing.
    pub fn ring(&mut self, offset: u32, value: u32) {
        let id = (offset / 8) as u16;
        let is_cq = offset & 4 != 0;
        if offset & 3 != 0 || offset >= crate::doorbells::PAGE as u32 || !self.registers.is_ready() {
            return;
        }
        let size = match is_cq {
            true => self.cqs.get(usize::from(id)).and_then(Option::as_ref).map(|queue| queue.size),
            false => self.sqs.get(usize::from(id)).and_then(Option::as_ref).map(|queue| queue.size),
        };
        match size {
            None => self.doorbell_error(id, Event::INVALID_DOORBELL_REGISTER),
            Some(size) if value >= size => self.doorbell_error(id, Event::INVALID_DOORBELL_VALUE),
            Some(_) => self.doorbells.ring(offset as usize, value),
        }
    }

    #[cold]
    pub(crate) fn doorbell_error(&mut self, queue: u16, event: Event) {
        self.health.doorbell_error(queue);
        self.events.raise(event);
    }

    /// An asynchronous engine answered. Bits 39:32 of the token name the layer, 47:40 the namespace,
    /// 31:0 are the ticket.
    pub fn event(&mut self, token: u64, result: i32, now_ns: u64) {
        let namespace = (token >> 40) as usize & 0xff;
        let node = NodeId((token >> 32) as u8);
        self.subsystem.event(namespace, node, Ticket(token as u32), result, now_ns);
    }

    /// The token prefix that layer `node` of namespace `nsid` gives its engines.
    pub fn token_prefix(nsid: u32, node: NodeId) -> u64 {
        u64::from(nsid.wrapping_sub(1) & 0xff) << 40 | u64::from(node.0) << 32
    }

    /// The operator resized the target of a namespace: the host is told by an async event and sees the
    /// new size without a rescan. False if there is no such namespace.
    pub fn resize(&mut self, nsid: u32, size: u64) -> bool {
        let Some(namespace) = self.subsystem.get_mut(nsid) else { return false };
        if namespace.resize(size) {
            self.events.namespace_changed(nsid);
        }
        true
    }

    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.subsystem.iter()
    }

    pub fn statistics(&self) -> Statistics {
        self.health.statistics()
    }

    /// Commands of the host in flight.
    pub fn in_flight(&self) -> u32 {
        self.subsystem.slab.in_flight()
    }

    /// True if a command in flight has data in the removed memory, or a layer's device may reach it.
    pub fn uses(&self, removed: &Removed) -> bool {
        self.subsystem.slab.live().flat_map(Slot::segments).any(|segment| removed.contains(segment))
            || self.subsystem.lends(removed)
    }

    /// True if a layer may show the host's memory to a device of its own.
    pub fn shares_memory(&self) -> bool {
        self.subsystem.polls
    }

    /// The router of a namespace: its classifier can be attached, replaced and detached at any time.
    pub fn router_mut(&mut self, nsid: u32) -> Option<&mut Router> {
        self.subsystem.get_mut(nsid).map(|namespace| &mut namespace.router)
    }

    /// Calls `signal` for every vector whose completions the host is to hear of, and has not.
    #[inline]
    pub fn take_vectors(&mut self, signal: impl FnMut(u16)) {
        self.interrupts.take(signal);
    }

    /// The level of INTx: some completion the host was to be interrupted for is unseen and unmasked.
    pub fn intx_asserted(&mut self) -> bool {
        let Self { cqs, doorbells, registers, .. } = self;
        if !registers.is_ready() || registers.interrupts_masked() {
            return false;
        }
        let mut asserted = false;
        for queue in cqs.iter_mut().flatten().filter(|queue| queue.vector.is_some()) {
            if queue.has_unseen(doorbells) {
                // The pin goes low when the host has seen the completion, so it has to say so.
                doorbells.ask_for_head(queue.id, queue.head);
                asserted = true;
            }
        }
        asserted
    }

    pub fn read_register(&self, offset: u32, data: &mut [u8]) {
        self.registers.read(offset, data);
    }

    /// About to sleep: asks the host to ring from here on, then looks once more. True if there is work
    /// after all.
    pub fn arm(&mut self) -> bool {
        self.arm_queues() || self.subsystem.arm()
    }

    fn arm_queues(&mut self) -> bool {
        if self.subsystem.has_touched() || !self.done.is_empty() || self.life_can_advance() {
            return true;
        }
        // In fatal status no queue is looked at, whatever the host leaves there.
        if !self.registers.is_ready() || self.registers.is_fatal() {
            return false;
        }
        if self.can_deliver_event() {
            return true;
        }
        self.ask_to_be_rung();
        self.held_until_ns.is_none() && self.has_fetchable()
    }

    /// The next entry of a queue is news, and so is a slot of a completion queue that may be full.
    fn ask_to_be_rung(&self) {
        let sqs = || self.active.iter().filter_map(|&id| self.sqs[usize::from(id)].as_ref());
        let cqs = sqs().filter_map(|queue| self.cqs[usize::from(queue.cq)].as_ref());
        self.doorbells.ask(sqs().map(|queue| (queue.id, queue.head)), cqs.map(|cq| (cq.id, cq.head)));
    }

    /// An event, a request for it, and a completion slot. Until the host rings that it has released
    /// one there is nothing to stay awake for.
    fn can_deliver_event(&mut self) -> bool {
        let Self { cqs, doorbells, events, .. } = self;
        events.is_deliverable() && cqs[0].as_mut().is_some_and(|cq| cq.room(1, doorbells) > 0)
    }

    /// Some queue has an entry that could be taken now.
    fn has_fetchable(&mut self) -> bool {
        let Self { active, sqs, cqs, doorbells, subsystem, .. } = self;
        subsystem.slab.room() > 0
            && active.iter().any(|&id| {
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

    /// Awake again: the host need not ring while we look.
    pub fn disarm(&mut self) {
        self.subsystem.disarm();
        if !self.doorbells.has_shadow() {
            return;
        }
        for &id in &self.active {
            if let Some(queue) = &mut self.sqs[usize::from(id)] {
                queue.announced = queue.head;
                self.doorbells.put_event_index_behind(id, queue.head);
            }
        }
    }

    /// The earliest time this controller wants a turn without being rung.
    pub fn deadline_ns(&self) -> Option<u64> {
        let all = [
            self.subsystem.deadline_ns(),
            self.features.deadline_ns(),
            self.self_test.deadline_ns().filter(|_| self_test::may_read(self)),
            self.erasure.as_ref().and_then(Erasure::deadline_ns).filter(|_| erase::may_go_on(self)),
            self.interrupts.deadline_ns(),
            self.held_until_ns,
            self.absence.deadline_ns(),
        ];
        // A loop that is unrolled: this is part of every turn that had work.
        let earliest = all.iter().fold(u64::MAX, |earliest, at| earliest.min(at.unwrap_or(u64::MAX)));
        (earliest != u64::MAX).then_some(earliest)
    }
}
