//! A simulated host with a controller of its own: registers, rings, doorbells, interrupts, time.
//!
//! The controller has its turns here, and goes to sleep when it can. Only the sources of a real wake-up wake
//! it: a doorbell or register that reaches it, an answer of the storage, its own deadline. A lost wake-up
//! shows as commands that never come back.

use crate::ring::{CompletionRing, SubmissionRing};
use crate::{Guest, Random, SimClock, SimEngine};
use sluice_controller::{Attached, DoorbellMode, Subsystem};
use sluice_nvme::{CompletionEntry, PAGE_SIZE, Status, SubmissionEntry, register, register::csts};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// A command that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    pub sq: u16,
    pub cid: u16,
    pub status: Status,
    pub dw0: u32,
}

/// Form in which a [`SimHost`] announces tails and heads to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbells {
    /// Register writes.
    Trapped,
    /// Register writes, with the shadow buffers of Doorbell Buffer Config at these two guest addresses.
    Shadow { doorbells: u64, event_index: u64 },
    /// Stores to a mapped page, without an event.
    Mapped,
}

/// A host and its controller.
#[derive(Debug)]
pub struct SimHost {
    pub controller: Attached,
    pub guest: Guest,
    pub clock: SimClock,
    pub sqs: BTreeMap<u16, SubmissionRing>,
    pub cqs: BTreeMap<u16, CompletionRing>,
    /// Completions that are not processed yet.
    pub inbox: Vec<Completion>,
    /// Storage below each namespace, by NSID.
    engines: Vec<(u32, SimEngine)>,
    pub doorbells: Doorbells,
    pub(crate) random: Random,
    asleep: bool,
    sleeps: u64,
}

/// Entries of the admin queues.
const ADMIN_ENTRIES: u32 = 32;

/// CC: enabled, 64-byte submission and 16-byte completion entries, 4 KiB pages.
const CC_ENABLE: u32 = 1 | 6 << 16 | 4 << 20;

impl SimHost {
    pub fn new(controller: Attached, engines: Vec<(u32, SimEngine)>, random: Random) -> Self {
        let doorbells = match controller.controller.doorbell_mode() {
            DoorbellMode::Mapped => Doorbells::Mapped,
            DoorbellMode::Trapped | DoorbellMode::Capsules => Doorbells::Trapped,
        };
        Self {
            controller,
            guest: Guest::new(),
            clock: SimClock::default(),
            sqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            inbox: Vec::new(),
            engines,
            doorbells,
            random,
            asleep: false,
            sleeps: 0,
        }
    }

    /// Returns how often the controller went to sleep.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }

    // Registers

    pub fn read_register(&self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.controller.controller.read_register(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub fn write_register(&mut self, offset: u32, bytes: &[u8]) {
        self.wake();
        self.controller.write_register(offset, bytes, self.guest.space(), self.clock.now_ns());
    }

    /// Creates admin queues and enables the controller, which must become ready within a limit of turns.
    pub fn enable(&mut self) {
        let (sq, cq) = (self.queue_memory(ADMIN_ENTRIES, 64), self.queue_memory(ADMIN_ENTRIES, 16));
        let sizes = (ADMIN_ENTRIES - 1) << 16 | (ADMIN_ENTRIES - 1);
        self.write_register(register::AQA, &sizes.to_le_bytes());
        self.write_register(register::ASQ, &sq.to_le_bytes());
        self.write_register(register::ACQ, &cq.to_le_bytes());
        self.sqs.insert(0, SubmissionRing::new(0, 0, sq, ADMIN_ENTRIES));
        self.cqs.insert(0, CompletionRing::new(0, cq, ADMIN_ENTRIES, Some(0)));
        self.write_register(register::CC, &CC_ENABLE.to_le_bytes());
        self.turn_until("ready", |host| host.csts() & csts::RDY != 0);
    }

    /// Clears CC.EN and waits until the controller is not ready any more: every command is gone.
    pub fn disable(&mut self) {
        self.write_register(register::CC, &0u32.to_le_bytes());
        self.turn_until("disabled", |host| host.csts() & csts::RDY == 0 && host.controller.is_quiescent());
        self.forget_queues();
    }

    /// Sets CC.SHN and waits until the controller reports that its shutdown is complete.
    pub fn shut_down(&mut self, abrupt: bool) {
        let notification = if abrupt { 2 } else { 1 };
        self.write_register(register::CC, &(CC_ENABLE | notification << 14).to_le_bytes());
        self.turn_until("shut down", |host| host.csts() & csts::SHST_MASK == csts::SHST_COMPLETE);
    }

    /// Resets the controller from outside, as by a function level reset.
    pub fn reset_function(&mut self) {
        self.wake();
        self.controller.reset();
        self.turn_until("reset", |host| host.controller.is_quiescent());
        assert_eq!((self.csts(), self.read_register(register::CC)), (0, 0));
        self.forget_queues();
    }

    /// Kills the process of the controller: commands between two layers are lost. Data in the storage stays,
    /// and the storage gets no further requests.
    pub fn vanish(&mut self) {
        self.controller.reset();
        self.controller.turn(self.guest.space(), self.clock.now_ns());
    }

    fn forget_queues(&mut self) {
        assert_eq!(self.controller.in_flight(), 0);
        for (_, queue) in std::mem::take(&mut self.sqs) {
            self.free_queue_memory(queue.address, queue.size, 64);
        }
        for (_, queue) in std::mem::take(&mut self.cqs) {
            self.free_queue_memory(queue.address, queue.size, 16);
        }
        if let Doorbells::Shadow { doorbells, event_index } = self.doorbells {
            self.guest.release([doorbells, event_index]);
            self.doorbells = Doorbells::Trapped;
        }
        self.inbox.clear();
    }

    pub fn csts(&self) -> u32 {
        self.read_register(register::CSTS)
    }

    // Queues

    /// Returns zeroed memory for a queue of `entries` entries.
    pub fn queue_memory(&mut self, entries: u32, entry_size: u32) -> u64 {
        let pages = u64::from(entries * entry_size).div_ceil(PAGE_SIZE as u64);
        let address = self.guest.pages(pages, &mut self.random);
        self.guest.write(address, &vec![0; pages as usize * PAGE_SIZE]);
        address
    }

    pub fn free_queue_memory(&mut self, address: u64, entries: u32, entry_size: u32) {
        let pages = u64::from(entries * entry_size).div_ceil(PAGE_SIZE as u64);
        self.guest.release((0..pages).map(|page| address + page * PAGE_SIZE as u64));
    }

    /// Puts an entry into a submission queue under a free CID; returns none if the queue is full.
    pub fn push(&mut self, sq: u16, mut entry: SubmissionEntry) -> Option<u16> {
        let ring = self.sqs.get_mut(&sq).filter(|ring| !ring.is_full())?;
        let mut cid = self.random.next_u64() as u16;
        while ring.outstanding.contains(&cid) {
            cid = cid.wrapping_add(1);
        }
        entry.cid = cid;
        ring.push(&self.guest, &entry);
        Some(cid)
    }

    /// Announces all new entries of a submission queue to the controller.
    pub fn ring(&mut self, sq: u16) {
        let Some(ring) = self.sqs.get_mut(&sq) else { return };
        let (old, new) = (ring.rung, ring.tail);
        ring.rung = new;
        if old != new {
            self.doorbell(sq, u32::from(sq) * 8, old, new);
        }
    }

    fn ring_head(&mut self, cq: u16) {
        let Some(ring) = self.cqs.get_mut(&cq) else { return };
        let (old, new) = (ring.rung, ring.head);
        ring.rung = new;
        if old != new {
            self.doorbell(cq, u32::from(cq) * 8 + 4, old, new);
        }
    }

    /// Moves a doorbell. With shadow buffers as in Linux: the shadow first, then a look at the event index,
    /// and the register only if that lies between the old value and the new.
    fn doorbell(&mut self, queue: u16, offset: u32, old: u32, new: u32) {
        match self.doorbells {
            Doorbells::Mapped => {
                let at = register::DOORBELLS + offset;
                self.controller.controller.doorbells().atomic_u32(at as usize).store(new, Ordering::Release);
            }
            Doorbells::Shadow { doorbells, event_index } if queue != 0 => {
                let at = u64::from(offset);
                self.guest.write(doorbells + at, &new.to_le_bytes());
                let event = self.guest.read_u32(event_index + at) as u16;
                let (old, new) = (old as u16, new as u16);
                if new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old) {
                    self.write_doorbell(offset, new.into());
                }
            }
            _ => self.write_doorbell(offset, new),
        }
    }

    /// Switches to shadow buffers, which the controller has enabled. Doorbells that were rung meanwhile are
    /// in registers that it need not read any more: all are written once again, in the buffers.
    pub fn use_shadow(&mut self, doorbells: u64, event_index: u64) {
        self.doorbells = Doorbells::Shadow { doorbells, event_index };
        let tails = self.sqs.values().map(|queue| (u32::from(queue.id) * 8, queue.rung));
        let heads = self.cqs.values().map(|queue| (u32::from(queue.id) * 8 + 4, queue.rung));
        for (offset, value) in tails.chain(heads).filter(|(offset, _)| *offset >= 8).collect::<Vec<_>>() {
            self.guest.write(doorbells + u64::from(offset), &value.to_le_bytes());
            self.write_doorbell(offset, value);
        }
    }

    /// Writes any value to a doorbell register that reaches the controller.
    pub fn write_doorbell(&mut self, offset: u32, value: u32) {
        self.wake();
        self.controller.controller.ring(offset, value);
    }

    // Time

    fn wake(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.controller.disarm();
        }
    }

    /// Resizes a namespace as the operator, which wakes the controller.
    pub fn resize(&mut self, nsid: u32, size: u64) {
        self.wake();
        assert!(self.controller.subsystem.resize(nsid, size), "NSID {nsid} is there");
    }

    /// Gives the controller a turn, unless it sleeps. New completions cause interrupts.
    pub fn turn(&mut self) {
        if self.asleep {
            return;
        }
        let work = self.controller.turn(self.guest.space(), self.clock.now_ns());
        self.check_interrupts();
        assert_eq!(self.csts() & csts::CFS, 0, "the controller gave up");
        if work == 0 && self.random.one_in(4) && !self.controller.arm() {
            // A store to a mapped page cannot wake it: it polls again after a while.
            self.asleep = self.doorbells != Doorbells::Mapped;
            self.sleeps += 1;
        }
    }

    fn check_interrupts(&mut self) {
        let mut signalled = BTreeSet::new();
        self.controller.controller.take_vectors(|vector| _ = signalled.insert(vector));
        let mut due = BTreeSet::new();
        for queue in self.cqs.values_mut() {
            if queue.fresh(&self.guest) > 0 {
                due.extend(queue.vector);
            }
        }
        assert_eq!(signalled, due, "interrupts for queues with new entries, and for no others");
    }

    /// Answers one of the storage's commands, if it has any.
    pub fn answer(&mut self) {
        let busy: Vec<usize> =
            (0..self.engines.len()).filter(|&index| self.engines[index].1.pending() > 0).collect();
        if busy.is_empty() {
            return;
        }
        let (nsid, engine) = &self.engines[*self.random.pick(&busy)];
        if let Some((node, ticket)) = engine.answer() {
            let token = Subsystem::token_prefix(*nsid, node) | u64::from(ticket.0);
            self.event(token);
        }
    }

    /// Answers a command of the storage once more.
    pub fn answer_again(&mut self) {
        let index = self.random.below(self.engines.len() as u64) as usize;
        let Some((nsid, engine)) = self.engines.get(index) else { return };
        if let Some((node, ticket)) = engine.stale() {
            let token = Subsystem::token_prefix(*nsid, node) | u64::from(ticket.0);
            self.event(token);
        }
    }

    fn event(&mut self, token: u64) {
        self.wake();
        self.controller.subsystem.event(token, 0, self.clock.now_ns());
    }

    /// Advances the time, to the controller's next deadline if there is one.
    pub fn wait(&mut self) {
        self.clock.advance(self.random.below(1000));
        if let Some(deadline_ns) = self.controller.deadline_ns() {
            self.clock.advance_to(deadline_ns);
            self.wake();
        }
    }

    fn turn_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if done(self) {
                return;
            }
            self.answer();
            self.wait();
            self.turn();
        }
        panic!("the controller never becomes {what}");
    }

    // Completions

    /// Takes up to `most` entries out of a completion queue into the inbox, and frees them for the controller
    /// now or with a later call.
    pub fn reap(&mut self, cq: u16, most: u64) {
        for _ in 0..most {
            let Some(ring) = self.cqs.get_mut(&cq) else { return };
            let Some(entry) = ring.pop(&self.guest) else { break };
            self.take(cq, entry);
        }
        if self.random.one_in(2) {
            self.ring_head(cq);
        }
    }

    fn take(&mut self, cq: u16, entry: CompletionEntry) {
        let sq = self.sqs.get_mut(&entry.sq_id);
        let sq = sq.unwrap_or_else(|| panic!("a completion for SQ {}, which is not there", entry.sq_id));
        assert_eq!(sq.cq, cq, "SQ {} completes to another queue", sq.id);
        assert!(sq.outstanding.remove(&entry.cid), "CID {} of SQ {} is not in use", entry.cid, sq.id);
        sq.report_head(u32::from(entry.sq_head));
        self.inbox.push(Completion {
            sq: entry.sq_id,
            cid: entry.cid,
            status: entry.status(),
            dw0: entry.dw0,
        });
    }

    /// Takes all entries out of every completion queue, and frees all of them.
    pub fn reap_all(&mut self) {
        let queues: Vec<u16> = self.cqs.keys().copied().collect();
        for cq in queues {
            self.reap(cq, u64::MAX);
            self.ring_head(cq);
        }
    }

    /// Sends an admin command and waits for it. Other completions stay in the inbox.
    pub fn admin(&mut self, entry: SubmissionEntry) -> Completion {
        let mut pushed = self.push(0, entry);
        for _ in 0..1_000_000 {
            if pushed.is_none() {
                pushed = self.push(0, entry);
            }
            self.ring(0);
            self.answer();
            self.wait();
            self.turn();
            self.reap_all();
            let mine = |completion: &Completion| completion.sq == 0 && Some(completion.cid) == pushed;
            if let Some(index) = self.inbox.iter().position(mine) {
                return self.inbox.remove(index);
            }
        }
        panic!("an admin command never comes back: {entry:x?}");
    }
}
