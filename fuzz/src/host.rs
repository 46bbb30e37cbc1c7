//! A host that drives a controller by hand, and checks its reactions.
//!
//! Its own queues lie where no input can point (see [`Guest::map_secret`]) and are rung by the rules. Every
//! completion of theirs is checked, for all entries that the input puts into them. Queues that the input
//! creates over memory of its own, and queues whose doorbells it writes itself, are *strangers*: they may
//! only harm themselves.

use crate::guest::{Guest, PAGE, WINDOWS, Window};
use crate::layers::{self, Keeper, NAMESPACES, Vault};
use crate::rings::{CompletionRing, SubmissionRing};
use sluice_controller::{Attached, DoorbellMode, NAMESPACES_MAX, TRANSFER_MAX};
use sluice_memory::Removed;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::Relaxed;

/// Entries of the admin queues.
const ADMIN_ENTRIES: u32 = 32;

/// CC: enabled, entries of 64 and 16 bytes.
const CC_ENABLE: u32 = 1 | 6 << 16 | 4 << 20;

/// Turns after which a missing event is an error.
const PATIENCE: usize = 2000;

/// Location of the doorbells of I/O queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shadow {
    None,
    /// Buffers of the host.
    Ours([u64; 2]),
    /// Memory of the input's choice.
    Strange,
}

#[derive(Debug)]
pub struct Host {
    pub controller: Attached,
    pub guest: Guest,
    pub keeper: Arc<Keeper>,
    vault: Vault,
    secret: Window,
    /// The first unused page of the window.
    free: u64,
    now_ns: u64,
    /// Queues of the host, by identifier.
    pub sqs: BTreeMap<u16, SubmissionRing>,
    pub cqs: BTreeMap<u16, CompletionRing>,
    /// Queues with a deletion in flight: opcode and identifier.
    leaving: Vec<(u8, u16)>,
    shadow: Shadow,
    /// Flag that there are strangers, or were since the controller was enabled.
    strangers: bool,
    /// Queues with invalid doorbell values. Another queue may have been created unnoticed.
    spoiled: BTreeSet<u16>,
    next_cid: u16,
    asleep: bool,
    /// Windows that were unmapped while commands in flight may have used them.
    departing: Vec<(usize, Removed)>,
    /// Contents of a window at the end of its last user.
    departed: [Option<Vec<u8>>; WINDOWS.len()],
}

impl Host {
    /// Creates a host with an enabled controller.
    pub fn new(input: &[u8], mode: DoorbellMode) -> Self {
        let (mut controller, keeper, vault) = layers::drive();
        controller.controller.set_doorbell_mode(mode);
        let mut guest = Guest::new();
        let secret = guest.map_secret(input);
        let mut host = Self {
            controller,
            guest,
            keeper,
            vault,
            secret,
            free: 0,
            now_ns: 1,
            sqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            leaving: Vec::new(),
            shadow: Shadow::None,
            strangers: false,
            spoiled: BTreeSet::new(),
            next_cid: 0,
            asleep: false,
            departing: Vec::new(),
            departed: Default::default(),
        };
        host.enable();
        host
    }

    // Memory

    /// Returns zeroed pages at an address that only the host has; none if there are no more.
    fn allocate(&mut self, pages: u64) -> Option<u64> {
        let first = self.free;
        self.free = (first + pages <= self.secret.pages).then_some(first + pages)?;
        let address = self.secret.iova + first * PAGE;
        self.guest.poke(address, &vec![0; (pages * PAGE) as usize]);
        Some(address)
    }

    fn is_ours(&self, address: u64) -> bool {
        address.wrapping_sub(self.secret.iova) < self.secret.bytes()
    }

    fn are_ours(&self, addresses: [u64; 2]) -> bool {
        addresses.iter().all(|address| self.is_ours(*address))
    }

    /// Unmaps a window of the guest; it is gone when no command in flight uses it.
    pub fn unmap(&mut self, window: usize) {
        self.wake();
        if let Some(removed) = self.guest.unmap(window) {
            self.controller.forget_memory(&removed);
            self.departing.push((window, removed));
        }
    }

    pub fn map(&mut self, window: usize) {
        self.wake();
        // A client receives its reply, and can map again, when the memory is out of use.
        if self.departing.iter().all(|(departing, _)| *departing != window) {
            self.check_departed(window);
            self.guest.map(window);
        }
    }

    fn finish_unmaps(&mut self) {
        let Self { departing, controller, departed, guest, .. } = self;
        departing.retain(|(window, removed)| {
            let is_used = controller.uses(removed);
            if !is_used {
                departed[*window] = Some(guest.contents(*window));
            }
            is_used
        });
    }

    fn check_departed(&mut self, window: usize) {
        if let Some(contents) = self.departed[window].take() {
            assert!(contents == self.guest.contents(window), "memory was written after it was given back");
        }
    }

    // Registers

    pub fn register(&self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.controller.controller.read_register(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Writes any value to any register. A write that disables or enables the controller ends the host's
    /// queues.
    pub fn write_register(&mut self, offset: u32, bytes: &[u8]) {
        self.wake();
        let enabled = |host: &Self| host.register(register::CC) & 1 != 0;
        let before = enabled(self);
        self.controller.write_register(offset, bytes, &self.guest.space, self.now_ns);
        if !before || !enabled(self) {
            self.forget_queues();
        }
    }

    fn forget_queues(&mut self) {
        self.sqs.clear();
        self.cqs.clear();
        self.leaving.clear();
        self.shadow = Shadow::None;
        self.strangers = true;
        self.spoiled.clear();
    }

    /// Disables the controller, waits, and enables it with new admin queues.
    pub fn enable(&mut self) {
        self.write_register(register::CC, &[0; 4]);
        // A controller that was shut down while it was disabled still reports that.
        let is_up = |host: &Self| host.register(register::CSTS) & (csts::RDY | csts::CFS) != 0;
        self.turn_until("disabled", |host| !is_up(host));
        self.free = 0;
        let (Some(sq), Some(cq)) = (self.allocate(1), self.allocate(1)) else { return };
        let sizes = (ADMIN_ENTRIES - 1) << 16 | (ADMIN_ENTRIES - 1);
        self.write_register(register::AQA, &sizes.to_le_bytes());
        self.write_register(register::ASQ, &sq.to_le_bytes());
        self.write_register(register::ACQ, &cq.to_le_bytes());
        self.write_register(register::CC, &CC_ENABLE.to_le_bytes());
        self.turn_until("ready", |host| host.register(register::CSTS) == csts::RDY);
        self.sqs.insert(0, SubmissionRing::new(0, sq, ADMIN_ENTRIES));
        self.cqs.insert(0, CompletionRing::new(cq, ADMIN_ENTRIES));
        self.strangers = false;
    }

    /// Resets the controller from outside, as by a function level reset.
    pub fn reset(&mut self) {
        self.wake();
        self.controller.reset();
        self.forget_queues();
    }

    // Queues

    /// Creates an I/O queue pair of the host.
    pub fn create_pair(&mut self, id: u16, entries: u32) {
        const CONTIGUOUS: u32 = 1;
        const INTERRUPTS: u32 = 2;
        let bytes = u64::from(entries) * SubmissionEntry::SIZE as u64;
        let (Some(cq), Some(sq)) = (self.allocate(1), self.allocate(bytes.div_ceil(PAGE))) else { return };
        let identity = u32::from(id) | (entries - 1) << 16;
        let create = |opcode, address, cdw11| SubmissionEntry {
            opcode,
            dptr: [address, 0],
            cdw10: identity,
            cdw11,
            ..SubmissionEntry::default()
        };
        let vector = u32::from(id) << 16;
        self.submit(0, create(admin::CREATE_IO_CQ, cq, vector | INTERRUPTS | CONTIGUOUS));
        self.submit(0, create(admin::CREATE_IO_SQ, sq, u32::from(id) << 16 | CONTIGUOUS));
    }

    /// Requests shadow doorbells in memory of the host.
    pub fn use_shadow(&mut self) {
        let (Some(doorbells), Some(event_index)) = (self.allocate(1), self.allocate(1)) else { return };
        let opcode = admin::DOORBELL_BUFFER_CONFIG;
        self.submit(
            0,
            SubmissionEntry { opcode, dptr: [doorbells, event_index], ..SubmissionEntry::default() },
        );
    }

    /// Returns whether a host may use the queue: no deletion of it is in flight.
    fn is_staying(&self, sq: u16) -> bool {
        !self.leaving.contains(&(admin::DELETE_IO_SQ, sq))
    }

    /// Puts an entry into a queue of the host, if there is room, without ringing its doorbell.
    pub fn submit(&mut self, sq: u16, mut entry: SubmissionEntry) {
        if !self.is_staying(sq) {
            return;
        }
        if sq == 0 && entry.opcode == admin::DOORBELL_BUFFER_CONFIG && !self.are_ours(entry.dptr) {
            // From its execution on the doorbells contain any values.
            self.disown_io_queues();
        }
        let Some(ring) = self.sqs.get_mut(&sq).filter(|ring| !ring.is_full()) else { return };
        while ring.outstanding.contains_key(&self.next_cid) {
            self.next_cid = self.next_cid.wrapping_add(1);
        }
        entry.cid = self.next_cid;
        self.next_cid = self.next_cid.wrapping_add(1);
        ring.push(&mut self.guest, entry);
        let deletes = [admin::DELETE_IO_SQ, admin::DELETE_IO_CQ].contains(&entry.opcode);
        if sq == 0 && deletes && entry.cdw10 as u16 != 0 {
            self.leaving.push((entry.opcode, entry.cdw10 as u16));
        }
    }

    /// Announces all new entries of a submission queue to the controller.
    pub fn ring(&mut self, sq: u16) {
        let is_staying = self.is_staying(sq);
        let Some(ring) = self.sqs.get_mut(&sq).filter(|ring| is_staying && ring.tail != ring.rung) else {
            return;
        };
        let (old, new) = (ring.rung, ring.tail);
        ring.rung = new;
        self.doorbell(sq, u32::from(sq) * 8, old, new);
    }

    /// Moves a doorbell of the host; through the shadow buffers as Linux does it.
    fn doorbell(&mut self, queue: u16, offset: u32, old: u32, new: u32) {
        let at = u64::from(offset);
        match self.shadow {
            Shadow::Ours([doorbells, event_index]) if queue != 0 => {
                self.guest.poke(doorbells + at, &new.to_le_bytes());
                let mut event = [0; 2];
                self.guest.peek(event_index + at, &mut event);
                let (event, old, new) = (u16::from_le_bytes(event), old as u16, new as u16);
                if new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old) {
                    self.write_doorbell(offset, new.into());
                }
            }
            _ => self.write_doorbell(offset, new),
        }
    }

    fn write_doorbell(&mut self, offset: u32, value: u32) {
        if self.controller.controller.doorbell_mode() == DoorbellMode::Mapped {
            let page = self.controller.controller.doorbells();
            let doorbell = page.atomic_u32((register::DOORBELLS + offset / 4 * 4) as usize);
            doorbell.store(value, Ordering::Release);
        } else {
            self.wake();
            self.controller.controller.ring(offset, value);
        }
    }

    /// Writes any value to any doorbell. The queue then is a stranger.
    pub fn ring_nonsense(&mut self, offset: u32, value: u32) {
        let queue = (offset / 8) as u16;
        match offset & 4 {
            0 => drop(self.sqs.remove(&queue)),
            _ => self.disown_cq(queue),
        }
        if queue == 0 {
            // Admin commands are executed that the host does not see, some of them again.
            self.disown_io_queues();
        }
        self.spoiled.insert(queue);
        self.strangers = true;
        self.write_doorbell(offset, value);
    }

    fn disown_io_queues(&mut self) {
        self.sqs.retain(|id, _| *id == 0);
        self.cqs.retain(|id, _| *id == 0);
        self.strangers = true;
    }

    fn disown_cq(&mut self, cq: u16) {
        self.cqs.remove(&cq);
        self.sqs.retain(|_, ring| ring.cq != cq);
    }

    // Time

    fn wake(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.controller.disarm();
        }
    }

    /// Gives the controller a turn, unless it sleeps.
    pub fn turn(&mut self) -> usize {
        let remembered = self.remember();
        if self.asleep {
            return 0;
        }
        let work = self.controller.turn(&self.guest.space, self.now_ns);
        self.finish_unmaps();
        work + remembered
    }

    /// Stores the controller's records and reports the results by mail, which wakes it.
    fn remember(&mut self) -> usize {
        if !self.keeper.asked.lock().expect("not poisoned").is_empty() {
            self.wake();
        }
        layers::remember(&mut self.controller, &self.keeper, self.now_ns)
    }

    /// Puts the controller to sleep if it is ready for that. Otherwise it must have something to do.
    pub fn sleep(&mut self) {
        self.wake();
        for _ in 0..8 {
            if !self.controller.arm() {
                // A store to a mapped page cannot wake it: it is polled again after a while.
                self.asleep = self.controller.controller.doorbell_mode() != DoorbellMode::Mapped;
                return self.wait(0);
            }
            self.controller.disarm();
            if self.turn() > 0 {
                return;
            }
        }
        panic!("the controller stays awake and does nothing");
    }

    pub fn wait(&mut self, ns: u64) {
        self.now_ns = self.now_ns.saturating_add(ns);
        // Its reactor wakes it at its deadline.
        if self.controller.deadline_ns().is_some_and(|deadline| deadline <= self.now_ns) {
            self.wake();
        }
    }

    /// Answers a command that was held, as the target; returns false if there is none.
    pub fn answer(&mut self) -> bool {
        let token = self.keeper.next();
        token.into_iter().for_each(|token| self.event(token));
        token.is_some()
    }

    pub fn event(&mut self, token: u64) {
        self.wake();
        self.controller.subsystem.event(token, 0, self.now_ns);
    }

    /// Resizes a namespace by mail, as an operator. A reactor reads mail after a turn of the tasks that had
    /// events.
    pub fn resize(&mut self, nsid: u32, size: u64) {
        self.wake();
        self.turn();
        self.controller.subsystem.resize(nsid, size);
    }

    fn turn_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        self.keeper.pattern.store(0, Relaxed);
        for _ in 0..PATIENCE {
            if done(self) {
                return;
            }
            while self.answer() {}
            self.turn();
        }
        panic!("the controller never becomes {what}");
    }

    // Completions

    /// Takes completions out of every queue of the host and frees their slots. The admin queue comes last:
    /// when a queue's deletion is seen, all its completions were.
    pub fn reap(&mut self) -> usize {
        let queues: Vec<u16> = self.cqs.keys().copied().rev().collect();
        queues.into_iter().map(|cq| self.reap_one(cq)).sum()
    }

    fn reap_one(&mut self, cq: u16) -> usize {
        let mut count = 0;
        let old = self.cqs.get(&cq).map_or(0, |ring| ring.head);
        // The queue may be deleted on the way.
        while let Some(ring) = self.cqs.get_mut(&cq) {
            let Some(completion) = ring.pop(&self.guest) else { break };
            self.complete(cq, &completion);
            count += 1;
        }
        if let Some(new) = self.cqs.get(&cq).map(|ring| ring.head).filter(|new| *new != old) {
            self.doorbell(cq, u32::from(cq) * 8 + 4, old, new);
        }
        count
    }

    fn complete(&mut self, cq: u16, completion: &CompletionEntry) {
        let Some(ring) = self.sqs.get_mut(&completion.sq_id) else {
            assert!(self.strangers, "a completion of a queue that is not there: {completion:x?}");
            return;
        };
        assert_eq!(ring.cq, cq, "{completion:x?}");
        let entry = ring.take(completion);
        let status = completion.status();
        // An operation whose record cannot be stored is not executed.
        let may_fail = self.keeper.forgot.load(Relaxed);
        let is_known = status.name().is_some() && (may_fail || status != Status::INTERNAL_ERROR);
        assert!(is_known, "{status:?} for {entry:x?}");
        match completion.sq_id {
            0 => self.complete_admin(&entry, status),
            _ => check_success(&entry, status),
        }
    }

    fn complete_admin(&mut self, entry: &SubmissionEntry, status: Status) {
        let id = entry.cdw10 as u16;
        if let Some(at) = self.leaving.iter().position(|leaving| *leaving == (entry.opcode, id)) {
            self.leaving.swap_remove(at);
        }
        if !status.is_success() {
            return;
        }
        match entry.opcode {
            admin::CREATE_IO_CQ => self.created_cq(id, entry),
            admin::CREATE_IO_SQ => self.created_sq(id, entry),
            admin::DELETE_IO_CQ => drop(self.cqs.remove(&id)),
            admin::DELETE_IO_SQ => drop(self.sqs.remove(&id)),
            admin::DOORBELL_BUFFER_CONFIG => self.moved_doorbells(entry.dptr),
            admin::GET_LOG_PAGE..=admin::KEEP_ALIVE => {}
            opcode => panic!("success for admin command {opcode:#x}"),
        }
    }

    fn created_cq(&mut self, id: u16, entry: &SubmissionEntry) {
        let is_ours = self.is_ours(entry.dptr[0]) && !self.spoiled.contains(&id);
        if is_ours && self.shadow != Shadow::Strange {
            self.cqs.insert(id, CompletionRing::new(entry.dptr[0], (entry.cdw10 >> 16) + 1));
        } else {
            self.strangers = true;
        }
    }

    fn created_sq(&mut self, id: u16, entry: &SubmissionEntry) {
        let cq = (entry.cdw11 >> 16) as u16;
        let is_ours = self.is_ours(entry.dptr[0]) && !self.spoiled.contains(&id);
        if is_ours && self.cqs.contains_key(&cq) {
            self.sqs.insert(id, SubmissionRing::new(cq, entry.dptr[0], (entry.cdw10 >> 16) + 1));
        } else {
            self.strangers = true;
        }
    }

    /// Switches the doorbells of I/O queues to these buffers. The host's own contain the values that were
    /// rung before.
    fn moved_doorbells(&mut self, buffers: [u64; 2]) {
        assert_ne!(
            self.controller.controller.doorbell_mode(),
            DoorbellMode::Mapped,
            "shadow doorbells were not offered"
        );
        if !self.are_ours(buffers) {
            self.shadow = Shadow::Strange;
            return self.disown_io_queues();
        }
        self.shadow = Shadow::Ours(buffers);
        let tails = self.sqs.iter().map(|(id, ring)| (u64::from(*id) * 8, ring.rung));
        let heads = self.cqs.iter().map(|(id, ring)| (u64::from(*id) * 8 + 4, ring.head));
        let values: Vec<(u64, u32)> = tails.chain(heads).collect();
        for (offset, value) in values {
            self.guest.poke(buffers[0] + offset, &value.to_le_bytes());
        }
    }

    // The end

    /// Ends a run after any input: every command of the host comes back, a reset ends everything, and no
    /// memory was written that the controller must not write. Then it serves as if nothing had happened.
    pub fn finish(mut self) {
        self.come_to_rest();
        self.check_none_lost();
        self.reset();
        self.turn_until("quiescent", |host| host.controller.is_quiescent());
        assert_eq!(self.controller.in_flight(), 0);
        assert_eq!((self.register(register::CC), self.register(register::CSTS)), (0, 0));
        self.finish_unmaps();
        assert!(self.departing.is_empty(), "nothing is in flight, and memory is in use");
        (0..WINDOWS.len()).for_each(|window| self.check_departed(window));
        self.guest.check_canaries();
        self.vault.check_margins();
        self.serve();
    }

    /// Advances to the time of the next periodic check, if there is one.
    fn pass_time(&mut self) -> bool {
        let due = layers::looks_again_ns(&mut self.controller, self.now_ns);
        due.into_iter().for_each(|deadline| self.wait(deadline - self.now_ns));
        due.is_some()
    }

    fn come_to_rest(&mut self) {
        self.keeper.pattern.store(0, Relaxed);
        for _ in 0..PATIENCE {
            let queues: Vec<u16> = self.sqs.keys().copied().collect();
            queues.into_iter().for_each(|sq| self.ring(sq));
            let mut moved = 0;
            while self.answer() {
                moved += 1;
            }
            moved += self.turn() + self.reap();
            if moved == 0 && !self.pass_time() {
                return;
            }
        }
        // Commands of strangers may write their own doorbells, and so continue for ever.
        assert!(self.strangers, "the controller never comes to rest");
    }

    /// Checks that no command is lost. Exempt are commands that wait for an event, and the first half of a
    /// fused operation at the end of a queue, whose second half has not arrived. A controller with a fatal
    /// status is exempt.
    fn check_none_lost(&self) {
        if self.register(register::CSTS) & (csts::RDY | csts::CFS) != csts::RDY {
            return;
        }
        for (id, ring) in &self.sqs {
            let waits = |entry: &SubmissionEntry| *id == 0 && entry.opcode == admin::ASYNC_EVENT_REQUEST;
            let missing = || ring.outstanding.values().filter(|entry| !waits(entry));
            let lost = missing().find(|entry| *id == 0 || entry.fuse() != 1);
            assert!(lost.is_none(), "never came back: {lost:x?} of SQ {id}");
            assert!(missing().count() <= 1, "two first halves wait in SQ {id}");
        }
    }

    /// Checks that a controller after a reset is as good as new.
    fn serve(&mut self) {
        // A new controller has all namespaces of the operator, also those detached from this one.
        let Attached { controller, subsystem } = &mut self.controller;
        controller.set_host(subsystem, "another", [0; 16]);
        self.enable();
        self.create_pair(1, 16);
        self.come_to_rest();
        let Some(buffer) = self.allocate(1) else { return };
        let block: Vec<u8> = (0..512).map(|n| n as u8 ^ 0x33).collect();
        self.guest.poke(buffer, &block);
        let entry =
            |opcode| SubmissionEntry { opcode, nsid: 1, dptr: [buffer, 0], ..SubmissionEntry::default() };
        for opcode in [io::WRITE, io::READ] {
            assert!(self.sqs.contains_key(&1), "a queue pair cannot be created");
            self.submit(1, entry(opcode));
            self.come_to_rest();
            self.check_none_lost();
            let mut found = [0; 512];
            self.guest.peek(buffer, &mut found);
            assert!(found[..] == block, "a block is not what was written");
        }
    }
}

/// Checks that a successful I/O command was legal (NVM Command Set 3).
fn check_success(entry: &SubmissionEntry, status: Status) {
    if !status.is_success() {
        return;
    }
    // The size of namespaces that hosts have created is unknown here.
    if (1..=NAMESPACES_MAX as u32).contains(&entry.nsid)
        && NAMESPACES.iter().all(|(nsid, ..)| *nsid != entry.nsid)
    {
        return;
    }
    let namespace = NAMESPACES.iter().find(|(nsid, _, _)| *nsid == entry.nsid);
    let Some((_, block_size, blocks)) = namespace else { panic!("success without a namespace: {entry:x?}") };
    // The halves of a fused operation are a Compare and a Write.
    let is_whole = matches!((entry.fuse(), entry.opcode), (0, _) | (1, io::COMPARE) | (2, io::WRITE));
    assert!(is_whole && entry.flags >> 6 != 3, "{entry:x?}");
    let end = entry.slba().checked_add(entry.blocks().into());
    let is_inside = end.is_some_and(|end| end <= *blocks);
    let is_short = u64::from(entry.blocks()) * u64::from(*block_size) <= TRANSFER_MAX.into();
    let is_legal = match entry.opcode {
        io::READ | io::WRITE | io::COMPARE => is_inside && is_short,
        io::WRITE_ZEROES | io::WRITE_UNCORRECTABLE | io::VERIFY => is_inside,
        io::COPY | io::FLUSH | io::DATASET_MANAGEMENT => true,
        io::RESERVATION_REGISTER
        | io::RESERVATION_REPORT
        | io::RESERVATION_ACQUIRE
        | io::RESERVATION_RELEASE => true,
        _ => false,
    };
    assert!(is_legal, "success for {entry:x?}");
}
