//! What the controllers of one drive share: its identity, its namespaces and the slab of its commands.

use crate::abandoned::Abandoned;
use crate::ana::Ana;
use crate::erase::Erasure;
use crate::fused::{self, Fused};
use crate::health::Health;
use crate::losses::Losses;
use crate::mailbox::{Mailboxes, Notice};
use crate::management::Management;
use crate::persist::Persister;
use crate::persistent_event::PersistentEvents;
use crate::reservation::{HostId, KnownAs, Orders};
use crate::sanitize::Sanitize;
use crate::sync::Sync;
use crate::uncorrectable::{self, UncorrectableUpdates};
use crate::{COMMANDS_MAX, CONTROLLERS_MAX, Config, NAMESPACES_MAX, Namespace, Statistics, access, erase};
use sluice_command::{
    Aborted, Busy, Command, Controllers, Deallocated, Limits, NodeId, Origin, Slab, Slot, Stack, Ticket,
};
use sluice_memory::{Removed, SharedRegion, Space};
use sluice_nvme::{Status, SubmissionEntry};
use sluice_router::Router;
use std::io;

/// Namespaces whose layers' time has come that are looked at in one turn: each may give back tens of MiB then.
const EXPIRED_AT_ONCE: usize = 4;

/// What a drive says of itself (Base 5.17.2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// NVM subsystem NVMe Qualified Name, at most 223 bytes.
    pub subnqn: String,
    /// Serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Model number, at most 40 ASCII characters.
    pub model: String,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
}

/// The largest NSID there can be.
pub(crate) const NN: u32 = NAMESPACES_MAX as u32;

/// One NVM subsystem, beside its controllers.
#[derive(Debug)]
pub struct Subsystem {
    pub(crate) identity: Identity,
    /// A value that is kept for as long as no acknowledged write is lost.
    pub(crate) power_id: Option<[u8; 16]>,
    /// By NSID less one.
    namespaces: Vec<Option<Namespace>>,
    pub(crate) slab: Slab,
    deallocates: bool,
    /// A layer finds its work by looking.
    pub(crate) polls: bool,
    /// Namespaces that have commands to settle.
    touched: Vec<u8>,
    /// Finished commands on their way to their completion queues.
    pub(crate) done: Vec<Command>,
    /// Empty, but for its memory, while none of them is being completed.
    pub(crate) finishing: Vec<Command>,
    pub(crate) mailboxes: Mailboxes,
    /// Controllers that there may be.
    pub(crate) expected: u32,
    /// Bit per controller that is enabled, and how many commands each of them may have in flight.
    pub(crate) enabled: u32,
    pub(crate) share: u32,
    /// Slots that are kept for controllers that are not enabled.
    pub(crate) reserved_slots: u32,
    /// Private memory of commands that compare.
    pub(crate) staging: SharedRegion,
    pub(crate) health: Health,
    /// What [`Health::bytes`] said when a turn began to move bytes.
    pub(crate) moved_before: u64,
    pub(crate) persistent_events: PersistentEvents,
    /// What is being erased.
    pub(crate) erasure: Option<Erasure>,
    pub(crate) sync: Option<Sync>,
    pub(crate) losses: Losses,
    pub(crate) persister: Persister,
    pub(crate) sanitize: Sanitize,
    /// By the numbers of the controllers, whose each is.
    pub(crate) hosts: [HostId; CONTROLLERS_MAX],
    pub(crate) names: [KnownAs; CONTROLLERS_MAX],
    /// All sockets are paths of one guest.
    pub(crate) one_guest: bool,
    pub(crate) orders: Orders,
    pub(crate) fused: Fused,
    pub(crate) abandoned: Abandoned,
    pub(crate) uncorrectable: UncorrectableUpdates,
    pub(crate) ana: Ana,
    pub(crate) management: Management,
    /// Where [`expire`](Self::expire) goes on with the namespaces.
    expired: usize,
    /// No entries are taken until then.
    pub(crate) held_until_ns: Option<u64>,
    /// When something here is due. Computed by [`note_deadline`](Self::note_deadline) alone; others may only make it
    /// earlier.
    pub(crate) next_deadline_ns: u64,
}

impl Subsystem {
    /// # Errors
    /// The operating system has no memory or descriptors for it.
    pub fn new(config: Config) -> io::Result<Self> {
        let Config { identity, namespaces: list } = config;
        let (fan_out, reserve) = needs(list.iter());
        let deallocates = list.iter().any(|n| n.characteristics().deallocated != Deallocated::Unsupported);
        let polls = list.iter().any(|n| n.router.stack().polls());
        let mut namespaces: Vec<Option<Namespace>> = Vec::new();
        for namespace in list {
            let index = namespace.nsid() as usize - 1;
            if namespaces.len() <= index {
                namespaces.resize_with(index + 1, || None);
            }
            namespaces[index] = Some(namespace);
        }
        let slab = Slab::new(Limits::with_reserve(COMMANDS_MAX, fan_out, reserve))?;
        let touched = Vec::with_capacity(NAMESPACES_MAX);
        let share = slab.limit();
        Ok(Self {
            identity,
            power_id: None,
            namespaces,
            slab,
            deallocates,
            polls,
            touched,
            done: Vec::with_capacity(COMMANDS_MAX as usize),
            finishing: Vec::with_capacity(COMMANDS_MAX as usize),
            mailboxes: Mailboxes::default(),
            expected: 1,
            reserved_slots: 0,
            enabled: 0,
            share,
            staging: crate::chunk::staging()?,
            health: Health::new(),
            moved_before: 0,
            persistent_events: PersistentEvents::default(),
            erasure: None,
            sync: None,
            losses: Losses::default(),
            persister: Persister::default(),
            sanitize: Sanitize::default(),
            hosts: std::array::from_fn(|number| HostId::Unnamed(number as u8)),
            names: Default::default(),
            one_guest: false,
            orders: Orders::default(),
            fused: Fused::default(),
            abandoned: Abandoned::default(),
            uncorrectable: UncorrectableUpdates::default(),
            ana: Ana::default(),
            management: Management::default(),
            expired: 0,
            held_until_ns: None,
            next_deadline_ns: u64::MAX,
        })
    }

    /// Gives hosts a value in Identify Controller that is kept for as long as no acknowledged write is lost.
    pub fn set_power_id(&mut self, power_id: [u8; 16]) {
        self.power_id = Some(power_id);
    }

    #[inline]
    pub(crate) fn get(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.get(nsid.wrapping_sub(1) as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, nsid: u32) -> Option<&mut Namespace> {
        self.namespaces.get_mut(nsid.wrapping_sub(1) as usize)?.as_mut()
    }

    /// Makes room for the commands that the layers of a namespace make which is to come. False if there cannot be so
    /// many.
    pub(crate) fn make_room_for(&mut self, namespace: &Namespace) -> bool {
        let (fan_out, reserve) = needs(self.iter().chain([namespace]));
        self.slab.make_room(fan_out, reserve)
    }

    /// A namespace comes, for whose layers [room was made](Self::make_room_for).
    pub(crate) fn put(&mut self, namespace: Namespace) {
        let index = namespace.nsid() as usize - 1;
        if self.namespaces.len() <= index {
            self.namespaces.resize_with(index + 1, || None);
        }
        self.deallocates |= namespace.characteristics().deallocated != Deallocated::Unsupported;
        self.namespaces[index] = Some(namespace);
        self.update_stacks();
        self.guard_namespaces();
    }

    /// Takes a namespace out for a moment, to be [laid](Self::lay) back.
    pub(crate) fn take_out_namespace(&mut self, index: u32) -> Option<Namespace> {
        self.namespaces.get_mut(index as usize)?.take()
    }

    pub(crate) fn put_back_namespace(&mut self, index: u32, namespace: Namespace) {
        self.namespaces[index as usize] = Some(namespace);
    }

    /// A namespace goes, and nothing of it is in flight.
    pub(crate) fn take(&mut self, nsid: u32) -> Option<Namespace> {
        let index = nsid.wrapping_sub(1);
        let namespace = self.namespaces.get_mut(index as usize)?.take()?;
        self.touched.retain(|touched| u32::from(*touched) != index);
        self.update_stacks();
        Some(namespace)
    }

    /// A namespace beside the slots of its commands, and their private memory.
    pub(crate) fn beside(&mut self, nsid: u32) -> Option<(&Namespace, &mut Slab, &SharedRegion)> {
        let Self { namespaces, slab, staging, .. } = self;
        let namespace = namespaces.get(nsid.wrapping_sub(1) as usize)?.as_ref()?;
        Some((namespace, slab, staging))
    }

    /// What is wrong with an NSID that is not an active namespace's: one that could be is inactive,
    /// and that is a field's fault; any other, the broadcast NSID too, is invalid (Base 3.2.1.5).
    pub(crate) fn status_of_inactive(nsid: u32) -> Status {
        match nsid {
            1..=NN => Status::INVALID_FIELD,
            _ => Status::INVALID_NAMESPACE,
        }
    }

    /// Active namespaces in ascending order of their NSID.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Namespace> + Clone {
        self.namespaces.iter().flatten()
    }

    /// True if some namespace does something with Deallocate. If none does, Dataset Management is not
    /// supported, and Identify's ONCS says so: a host that is told it may discard believes it.
    #[inline]
    pub(crate) fn deallocates(&self) -> bool {
        self.deallocates
    }

    /// NSIDs of those that may lose finished writes at a power cut, in ascending order.
    pub(crate) fn cached_namespaces(&self) -> impl Iterator<Item = u32> {
        let cached = |it: &&Namespace| it.characteristics().volatile_cache && !it.is_leaving();
        self.iter().filter(cached).map(Namespace::nsid)
    }

    /// Takes a command that was just fetched: `check` looks at it beside its slot, the slot's number and
    /// its namespace, notes what that cost if the request does not show it, and says whether there is anything to send. One that is refused comes back with the
    /// status, or without if there is no such namespace.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        command: Command,
        entry: &SubmissionEntry,
        now_ns: u64,
        check: impl FnOnce(&mut Slot, usize, &SharedRegion, &Namespace, &mut Health) -> Result<Next, Status>,
    ) -> Result<(), (Command, Option<Status>)> {
        let index = entry.nsid.wrapping_sub(1);
        let Some(Some(namespace)) = self.namespaces.get_mut(index as usize) else {
            return Err((command, None));
        };
        let number = self.slab.number(&command);
        let slot = self.slab.slot_mut(&command);
        slot.origin.namespace = index as u8;
        if namespace.is_guarded()
            && let Err(status) =
                access::check(&self.ana, &self.hosts, slot.origin.controller, namespace, entry.opcode)
        {
            slot.status = status;
            self.done.push(command);
            return Ok(());
        }
        match check(slot, number, &self.staging, namespace, &mut self.health) {
            Ok(Next::Send) => {
                self.health.count_segments(slot.data.len());
                namespace.router.submit(command, &mut self.slab, now_ns);
                touch(namespace, index, &mut self.touched);
            }
            Ok(Next::Pass) => {
                namespace.router.pass(command, &mut self.slab, now_ns);
                touch(namespace, index, &mut self.touched);
            }
            Ok(Next::Nothing) => self.done.push(command),
            Err(fused::CLAIMED) if namespace.is_claimed() => self.hold_back(command),
            Err(status) => return Err((command, Some(status))),
        }
        Ok(())
    }

    /// A command came for blocks that a fused operation has, or that abandoned commands may still change.
    #[cold]
    pub(crate) fn hold_back(&mut self, command: Command) {
        let Self { fused, abandoned, slab, .. } = self;
        let slot = slab.slot_mut(&command);
        match fused.has_claim() {
            true => fused.hold(command, slot),
            false => abandoned.hold(command, slot),
        }
    }

    /// Hands a command of our own making to its namespace's router.
    pub(crate) fn submit(&mut self, nsid: u32, command: Command, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        let namespace = self.namespaces[index as usize].as_mut().expect("the namespace was checked");
        namespace.router.submit(command, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// The first step of a command, in a namespace that need not be its own.
    pub(crate) fn submit_to(&mut self, nsid: u32, command: Command, now_ns: u64) {
        self.slab.slot_mut(&command).origin.namespace = nsid.wrapping_sub(1) as u8;
        self.submit(nsid, command, now_ns);
    }

    /// Hands a command that goes on as its host wrote it to its namespace's router.
    pub(crate) fn pass(&mut self, nsid: u32, command: Command, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        let namespace = self.namespaces[index as usize].as_mut().expect("the namespace was checked");
        self.slab.slot_mut(&command).origin.namespace = index as u8;
        namespace.router.pass(command, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// Hands a command of our own making to the layers, without asking a program.
    pub(crate) fn submit_unclassified(&mut self, nsid: u32, command: Command, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        self.slab.slot_mut(&command).origin.namespace = index as u8;
        let namespace = self.namespaces[index as usize].as_mut().expect("the namespace was checked");
        namespace.router.submit_unasked(command, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// The next step of a command that takes several.
    pub(crate) fn resubmit(&mut self, nsid: u32, command: Command, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        self.slab.slot_mut(&command).origin.namespace = index as u8;
        let namespace = self.namespaces[index as usize].as_mut().expect("the namespace was checked");
        namespace.router.resubmit(command, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// Takes a layer out of a namespace's stack: see [`Router::take_out`](sluice_router::Router::take_out).
    pub(crate) fn take_out(&mut self, nsid: u32, at: usize, now_ns: u64) -> Result<(), Busy> {
        let index = nsid.wrapping_sub(1);
        let Some(Some(namespace)) = self.namespaces.get_mut(index as usize) else { return Err(Busy) };
        namespace.router.take_out(at, &mut self.slab, now_ns)?;
        // What waited in the layer is on its way.
        touch(namespace, index, &mut self.touched);
        Ok(())
    }

    /// Looks at the stacks anew. False if there cannot be as many commands as their layers may make.
    pub(crate) fn update_stacks(&mut self) -> bool {
        let polls = self.iter().any(|n| n.router.stack().polls());
        // For one that is about to come room was made, which is its.
        let (fan_out, reserve) = needs(self.iter().chain(self.management.being_created()));
        self.polls = polls;
        self.slab.make_room(fan_out, reserve)
    }

    /// An asynchronous engine answered. Bits 39:32 of the token name the layer, 47:40 the namespace,
    /// 31:0 are the ticket.
    pub fn event(&mut self, token: u64, result: i32, now_ns: u64) {
        let index = (token >> 40) as usize & 0xff;
        let (node, ticket) = (NodeId((token >> 32) as u8), Ticket(token as u32));
        let Some(Some(namespace)) = self.namespaces.get_mut(index) else { return };
        namespace.router.event(node, ticket, result, &mut self.slab, now_ns);
        touch(namespace, index as u32, &mut self.touched);
    }

    /// The token prefix that layer `node` of namespace `nsid` gives its engines.
    pub fn token_prefix(nsid: u32, node: NodeId) -> u64 {
        u64::from(nsid.wrapping_sub(1) & 0xff) << 40 | u64::from(node.0) << 32
    }

    /// The operator resized the target of a namespace: hosts are told by an async event and see the
    /// new size without a rescan. False if there is no such namespace.
    pub fn resize(&mut self, nsid: u32, size: u64) -> bool {
        let Some(namespace) = self.get_mut(nsid) else { return false };
        let before = namespace.blocks();
        if namespace.resize(size) {
            let end = namespace.blocks().min(before) << namespace.block_shift();
            uncorrectable::resized(self, nsid, end);
            self.mailboxes.announce(Notice::NamespaceChanged(nsid));
        }
        true
    }

    /// Active namespaces in ascending order of their NSID.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.iter()
    }

    /// The router of a namespace: its classifier can be attached, replaced and detached at any time.
    pub fn router_mut(&mut self, nsid: u32) -> Option<&mut Router> {
        self.get_mut(nsid).map(|namespace| &mut namespace.router)
    }

    /// What its controllers have done since it was made, wherever their queues are.
    pub fn statistics(&self) -> Statistics {
        self.health.statistics()
    }

    /// Commands in flight of queue groups that are away.
    pub fn in_flight_remote(&self) -> u32 {
        self.health.remote.in_flight()
    }

    /// Commands of hosts in flight, and those that it sends itself.
    pub fn in_flight(&self) -> u32 {
        self.slab.in_flight()
    }

    /// Commands of its own making in flight.
    pub fn unfinished(&self) -> u32 {
        self.slab.in_flight_of(Origin::SUBSYSTEM)
    }

    /// True if a layer may show hosts' memory to a device of its own.
    pub fn shares_memory(&self) -> bool {
        self.polls
    }

    /// Works off what moves in the touched namespaces; what finished is appended to the done.
    #[inline]
    pub(crate) fn run_completions(&mut self, now_ns: u64) {
        while let Some(index) = self.touched.pop() {
            if let Some(namespace) = self.namespaces[usize::from(index)].as_mut() {
                namespace.touched = false;
                namespace.router.settle(&mut self.slab, now_ns, &mut self.done);
            }
        }
    }

    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        !self.touched.is_empty() || !self.done.is_empty()
    }

    /// Lets the layers look that find their work so. Returns how much they had to do.
    pub(crate) fn poll(&mut self, controller: u8, space: &Space, now_ns: u64) -> usize {
        let mut work = 0;
        for (index, namespace) in self.namespaces.iter_mut().enumerate() {
            let Some(namespace) = namespace else { continue };
            let found = namespace.router.stack_mut().poll(controller, space, &mut self.slab, now_ns);
            if found > 0 {
                touch(namespace, index as u32, &mut self.touched);
            }
            work += found;
        }
        work
    }

    /// About to sleep. True if a layer has work after all.
    pub fn arm(&mut self) -> bool {
        self.polls && self.each_stack().fold(false, |work, stack| stack.arm() | work)
    }

    pub fn disarm(&mut self) {
        if self.polls {
            self.each_stack().for_each(Stack::disarm);
        }
    }

    pub(crate) fn forget_memory(&mut self, removed: &Removed) {
        self.each_stack().for_each(|stack| stack.forget_memory(removed));
    }

    /// True while somebody beyond a layer may reach memory that the host took back.
    pub(crate) fn lends(&self, removed: &Removed) -> bool {
        self.iter().any(|namespace| namespace.router.stack().lends(removed))
    }

    /// The host of a controller is gone or begins anew: what only waits ends, what was lent further is taken back.
    pub(crate) fn recall(&mut self, controller: u8) {
        self.each_stack().for_each(|stack| stack.recall(controller));
    }

    /// The drain after a recall is over.
    pub(crate) fn renew(&mut self, controller: u8) {
        self.each_stack().for_each(|stack| stack.renew(controller));
    }

    pub(crate) fn is_recalled(&self, controller: u8) -> bool {
        self.iter().all(|namespace| namespace.router.stack().is_recalled(controller))
    }

    fn each_stack(&mut self) -> impl Iterator<Item = &mut Stack> {
        self.namespaces.iter_mut().flatten().map(|namespace| namespace.router.stack_mut())
    }

    pub(crate) fn each_namespace(&mut self, change: impl FnMut(&mut Namespace)) {
        self.namespaces.iter_mut().flatten().for_each(change);
    }

    /// A namespace is being taken from these controllers, or they begin anew: what of theirs only waits in its layers ends.
    pub(crate) fn end_waiting(&mut self, nsid: u32, of: Controllers, why: Status, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        let Some(Some(namespace)) = self.namespaces.get_mut(index as usize) else { return };
        namespace.router.stack_mut().end_waiting(of, why, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// These commands end as soon as nothing of them is under way, in whichever namespace they are.
    pub(crate) fn abort(&mut self, which: Aborted, why: Status, now_ns: u64) {
        (1..=NAMESPACES_MAX as u32).for_each(|nsid| self.abort_in(nsid, which, why, now_ns));
    }

    /// The same in one namespace.
    pub(crate) fn abort_in(&mut self, nsid: u32, which: Aborted, why: Status, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        let Some(Some(namespace)) = self.namespaces.get_mut(index as usize) else { return };
        namespace.router.stack_mut().abort(which, why, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// Bytes that one range of a Dataset Management should have at most; zero for any.
    pub(crate) fn deallocate_limit(&self) -> u64 {
        let limits = self.iter().map(|it| it.characteristics().deallocate_limit);
        limits.filter(|limit| *limit > 0).min().unwrap_or(0)
    }

    /// The earliest time something here is due, `u64::MAX` for never.
    fn earliest_ns(&self) -> u64 {
        let erasure = self.erasure.as_ref().filter(|_| !self.is_held()).and_then(Erasure::deadline_ns);
        let layers = self.iter().map(|namespace| namespace.router.deadline_ns());
        // Without a branch for each: this is part of every turn that had work.
        layers
            .chain([
                erasure,
                self.held_until_ns,
                self.persistent_events.deadline_ns(),
                self.persister.deadline_ns(),
            ])
            .chain([self.management.deadline_ns()])
            .fold(u64::MAX, |earliest, at| earliest.min(at.unwrap_or(u64::MAX)))
    }

    /// What ran may have set timers, or ended some: from here on turns compare the clock with the earliest of them.
    #[inline]
    pub(crate) fn note_deadline(&mut self) {
        self.next_deadline_ns = self.earliest_ns();
    }

    /// The earliest time that this subsystem needs a turn. It is the time that turns compare the clock with, so a turn at
    /// that time does what is due: nothing else may be used to arm a timer.
    pub fn deadline_ns(&mut self) -> Option<u64> {
        self.note_deadline();
        (self.next_deadline_ns != u64::MAX).then_some(self.next_deadline_ns)
    }

    #[cold]
    pub(crate) fn expire(&mut self, now_ns: u64) {
        self.expire_layers(now_ns);
        self.end_hold(now_ns);
        if !self.is_held() {
            erase::advance(self, now_ns);
        }
        self.advance_management(now_ns);
        self.persist_events(now_ns);
        self.persist_delayed(now_ns);
        self.note_deadline();
    }

    /// Calls layers whose time has come: of so many namespaces that a turn stays short, and of the others next.
    fn expire_layers(&mut self, now_ns: u64) {
        let (count, first) = (self.namespaces.len(), self.expired);
        let mut left = EXPIRED_AT_ONCE;
        for index in (first..count).chain(0..first.min(count)) {
            let Some(namespace) = &mut self.namespaces[index] else { continue };
            if namespace.router.deadline_ns().is_none_or(|deadline| deadline > now_ns) {
                continue;
            }
            namespace.router.expire(&mut self.slab, now_ns);
            touch(namespace, index as u32, &mut self.touched);
            self.expired = index + 1;
            left -= 1;
            if left == 0 {
                return;
            }
        }
    }
}

/// What comes of a command that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Its request goes to the router.
    Send,
    /// It goes to the router as it is.
    Pass,
    /// It asks for nothing and is finished.
    Nothing,
}

/// Children that a command of these namespaces can have, and the commands that their layers make themselves.
fn needs<'a>(namespaces: impl Iterator<Item = &'a Namespace> + Clone) -> (u32, u32) {
    let fan_out = namespaces.clone().map(|n| n.characteristics().fan_out).max().unwrap_or(0);
    let reserve = namespaces.map(|n| n.router.stack().reserve()).fold(0, u32::saturating_add);
    (fan_out, reserve)
}

#[inline]
fn touch(namespace: &mut Namespace, index: u32, touched: &mut Vec<u8>) {
    if !namespace.touched {
        namespace.touched = true;
        touched.push(index as u8);
    }
}
