//! Shared state of the controllers of one drive: identity, namespaces, and the slab of commands.

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

/// Namespaces whose layers expire in one turn. Each may free tens of MiB then.
const EXPIRED_AT_ONCE: usize = 4;

/// Identity of a drive (Base 5.17.2.1).
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

/// Largest NSID.
pub(crate) const NN: u32 = NAMESPACES_MAX as u32;

/// NVM subsystem, without its controllers.
#[derive(Debug)]
pub struct Subsystem {
    pub(crate) identity: Identity,
    /// Value that stays the same as long as no acknowledged write is lost.
    pub(crate) power_id: Option<[u8; 16]>,
    /// Namespaces by NSID less one.
    namespaces: Vec<Option<Namespace>>,
    pub(crate) slab: Slab,
    deallocates: bool,
    /// Whether a layer must be polled for its work.
    pub(crate) polls: bool,
    /// Indices of namespaces that may have finished commands.
    touched: Vec<u8>,
    /// Finished commands on their way to their completion queues.
    pub(crate) done: Vec<Command>,
    /// Spare list, empty except while its commands are being completed.
    pub(crate) finishing: Vec<Command>,
    pub(crate) mailboxes: Mailboxes,
    /// Number of controllers to expect.
    pub(crate) expected: u32,
    /// Bit per enabled controller; `share` is the number of commands that each of them may have in flight.
    pub(crate) enabled: u32,
    pub(crate) share: u32,
    /// Slots reserved for controllers that are not enabled.
    pub(crate) reserved_slots: u32,
    /// Private memory for commands that compare.
    pub(crate) staging: SharedRegion,
    pub(crate) health: Health,
    /// Value of [`Health::bytes`] when a turn began to move bytes.
    pub(crate) moved_before: u64,
    pub(crate) persistent_events: PersistentEvents,
    /// Erasure that is under way.
    pub(crate) erasure: Option<Erasure>,
    pub(crate) sync: Option<Sync>,
    pub(crate) losses: Losses,
    pub(crate) persister: Persister,
    pub(crate) sanitize: Sanitize,
    /// Host of each controller, by controller number.
    pub(crate) hosts: [HostId; CONTROLLERS_MAX],
    pub(crate) names: [KnownAs; CONTROLLERS_MAX],
    /// Whether all sockets are paths of one guest.
    pub(crate) one_guest: bool,
    pub(crate) orders: Orders,
    pub(crate) fused: Fused,
    pub(crate) abandoned: Abandoned,
    pub(crate) uncorrectable: UncorrectableUpdates,
    pub(crate) ana: Ana,
    pub(crate) management: Management,
    /// Index of the namespace where [`expire`](Self::expire) goes on.
    expired: usize,
    /// Time until which no entries are fetched.
    pub(crate) held_until_ns: Option<u64>,
    /// Time of the next due work of the subsystem. Only [`note_deadline`](Self::note_deadline) computes it;
    /// other code may only make it earlier.
    pub(crate) next_deadline_ns: u64,
}

impl Subsystem {
    /// Creates a subsystem without controllers.
    ///
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

    /// Sets a value for Identify Controller that stays the same as long as no acknowledged write is lost.
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

    /// Makes room in the slab for the commands of a new namespace's layers. Returns false if that exceeds its
    /// size.
    pub(crate) fn make_room_for(&mut self, namespace: &Namespace) -> bool {
        let (fan_out, reserve) = needs(self.iter().chain([namespace]));
        self.slab.make_room(fan_out, reserve)
    }

    /// Adds a namespace, for whose layers [room was made](Self::make_room_for).
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

    /// Takes a namespace out for a moment. The caller must [put it back](Self::put_back_namespace).
    pub(crate) fn take_out_namespace(&mut self, index: u32) -> Option<Namespace> {
        self.namespaces.get_mut(index as usize)?.take()
    }

    pub(crate) fn put_back_namespace(&mut self, index: u32, namespace: Namespace) {
        self.namespaces[index as usize] = Some(namespace);
    }

    /// Removes a namespace that has nothing in flight.
    pub(crate) fn take(&mut self, nsid: u32) -> Option<Namespace> {
        let index = nsid.wrapping_sub(1);
        let namespace = self.namespaces.get_mut(index as usize)?.take()?;
        self.touched.retain(|touched| u32::from(*touched) != index);
        self.update_stacks();
        Some(namespace)
    }

    /// Returns a namespace together with the slab and the private memory of commands.
    pub(crate) fn beside(&mut self, nsid: u32) -> Option<(&Namespace, &mut Slab, &SharedRegion)> {
        let Self { namespaces, slab, staging, .. } = self;
        let namespace = namespaces.get(nsid.wrapping_sub(1) as usize)?.as_ref()?;
        Some((namespace, slab, staging))
    }

    /// Returns the status for an NSID without an active namespace. A possible NSID is inactive, which is an
    /// invalid field. Any other, the broadcast NSID too, is invalid (Base 3.2.1.5).
    pub(crate) fn status_of_inactive(nsid: u32) -> Status {
        match nsid {
            1..=NN => Status::INVALID_FIELD,
            _ => Status::INVALID_NAMESPACE,
        }
    }

    /// Returns the active namespaces in ascending order of their NSID.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Namespace> + Clone {
        self.namespaces.iter().flatten()
    }

    /// Returns whether some namespace supports Deallocate. If none does, Identify's ONCS reports Dataset
    /// Management as not supported, so that no host relies on discards.
    #[inline]
    pub(crate) fn deallocates(&self) -> bool {
        self.deallocates
    }

    /// Returns in ascending order the NSIDs of namespaces that may lose finished writes at a power cut.
    pub(crate) fn cached_namespaces(&self) -> impl Iterator<Item = u32> {
        let cached = |it: &&Namespace| it.characteristics().volatile_cache && !it.is_leaving();
        self.iter().filter(cached).map(Namespace::nsid)
    }

    /// Takes a command that was just fetched. `check` checks it with its slot, the slot's number and its
    /// namespace, counts effort that the request does not show, and returns its next step. A refused command
    /// comes back with its status, or with none if there is no such namespace.
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

    /// Holds a command for blocks of a fused operation, or for blocks that abandoned commands may still
    /// change.
    #[cold]
    pub(crate) fn hold_back(&mut self, command: Command) {
        let Self { fused, abandoned, slab, .. } = self;
        let slot = slab.slot_mut(&command);
        match fused.has_claim() {
            true => fused.hold(command, slot),
            false => abandoned.hold(command, slot),
        }
    }

    /// Sends an internal command to the router of its namespace.
    pub(crate) fn submit(&mut self, nsid: u32, command: Command, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        let namespace = self.namespaces[index as usize].as_mut().expect("the namespace was checked");
        namespace.router.submit(command, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// Starts the first step of a command, in a namespace that need not be its own.
    pub(crate) fn submit_to(&mut self, nsid: u32, command: Command, now_ns: u64) {
        self.slab.slot_mut(&command).origin.namespace = nsid.wrapping_sub(1) as u8;
        self.submit(nsid, command, now_ns);
    }

    /// Sends a command unchanged, as its host wrote it, to the router of its namespace.
    pub(crate) fn pass(&mut self, nsid: u32, command: Command, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        let namespace = self.namespaces[index as usize].as_mut().expect("the namespace was checked");
        self.slab.slot_mut(&command).origin.namespace = index as u8;
        namespace.router.pass(command, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// Sends an internal command to the layers without a call of the classifier.
    pub(crate) fn submit_unclassified(&mut self, nsid: u32, command: Command, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        self.slab.slot_mut(&command).origin.namespace = index as u8;
        let namespace = self.namespaces[index as usize].as_mut().expect("the namespace was checked");
        namespace.router.submit_unclassified(command, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// Starts the next step of a command with several steps.
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
        // Commands that waited in the layer are on their way.
        touch(namespace, index, &mut self.touched);
        Ok(())
    }

    /// Updates what depends on the stacks of all namespaces. Returns false if the slab cannot hold as many
    /// commands as their layers may make.
    pub(crate) fn update_stacks(&mut self) -> bool {
        let polls = self.iter().any(|n| n.router.stack().polls());
        // A namespace that is being created already has its room.
        let (fan_out, reserve) = needs(self.iter().chain(self.management.being_created()));
        self.polls = polls;
        self.slab.make_room(fan_out, reserve)
    }

    /// Delivers the result of an asynchronous engine. Bits 39:32 of the token name the layer, 47:40 the
    /// namespace, 31:0 are the ticket.
    pub fn event(&mut self, token: u64, result: i32, now_ns: u64) {
        let index = (token >> 40) as usize & 0xff;
        let (node, ticket) = (NodeId((token >> 32) as u8), Ticket(token as u32));
        let Some(Some(namespace)) = self.namespaces.get_mut(index) else { return };
        namespace.router.event(node, ticket, result, &mut self.slab, now_ns);
        touch(namespace, index as u32, &mut self.touched);
    }

    /// Returns the token prefix that layer `node` of namespace `nsid` gives its engines.
    pub fn token_prefix(nsid: u32, node: NodeId) -> u64 {
        u64::from(nsid.wrapping_sub(1) & 0xff) << 40 | u64::from(node.0) << 32
    }

    /// Applies a new size of a namespace's target. Hosts receive an event, and read the new size without a
    /// rescan. Returns false if there is no such namespace.
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

    /// Returns the active namespaces in ascending order of their NSID.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.iter()
    }

    /// Returns the router of a namespace, whose classifier can be attached, replaced and detached at any
    /// time.
    pub fn router_mut(&mut self, nsid: u32) -> Option<&mut Router> {
        self.get_mut(nsid).map(|namespace| &mut namespace.router)
    }

    /// Returns the counters of all controllers, remote ones included.
    pub fn statistics(&self) -> Statistics {
        self.health.statistics()
    }

    /// Returns the commands in flight of remote queue groups.
    pub fn in_flight_remote(&self) -> u32 {
        self.health.remote.in_flight()
    }

    /// Returns the commands in flight of hosts and of the subsystem itself.
    pub fn in_flight(&self) -> u32 {
        self.slab.in_flight()
    }

    /// Returns the commands in flight of the subsystem itself.
    pub fn unfinished(&self) -> u32 {
        self.slab.in_flight_of(Origin::SUBSYSTEM)
    }

    /// Returns whether a layer may give a device of its own access to host memory.
    pub fn shares_memory(&self) -> bool {
        self.polls
    }

    /// Runs the layers of the touched namespaces, and appends finished commands to `done`.
    #[inline]
    pub(crate) fn run_completions(&mut self, now_ns: u64) {
        while let Some(index) = self.touched.pop() {
            if let Some(namespace) = self.namespaces[usize::from(index)].as_mut() {
                namespace.touched = false;
                namespace.router.run_completions(&mut self.slab, now_ns, &mut self.done);
            }
        }
    }

    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        !self.touched.is_empty() || !self.done.is_empty()
    }

    /// Polls the layers that have to be polled, and returns the amount of work they had.
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

    /// Prepares the layers for sleep. Returns whether one has work after all.
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

    /// Returns whether a device below a layer may still reach the removed memory.
    pub(crate) fn lends(&self, removed: &Removed) -> bool {
        self.iter().any(|namespace| namespace.router.stack().still_maps(removed))
    }

    /// Ends commands that only wait, and revokes lent memory, when the host of a controller is gone or starts
    /// anew.
    pub(crate) fn recall(&mut self, controller: u8) {
        self.each_stack().for_each(|stack| stack.revoke(controller));
    }

    /// Ends the recall of a controller after its drain.
    pub(crate) fn renew(&mut self, controller: u8) {
        self.each_stack().for_each(|stack| stack.renew(controller));
    }

    pub(crate) fn is_recalled(&self, controller: u8) -> bool {
        self.iter().all(|namespace| namespace.router.stack().is_revoked(controller))
    }

    fn each_stack(&mut self) -> impl Iterator<Item = &mut Stack> {
        self.namespaces.iter_mut().flatten().map(|namespace| namespace.router.stack_mut())
    }

    pub(crate) fn each_namespace(&mut self, change: impl FnMut(&mut Namespace)) {
        self.namespaces.iter_mut().flatten().for_each(change);
    }

    /// Ends commands of these controllers that only wait in the layers of a namespace. The namespace is
    /// detached from the controllers, or they are being reset.
    pub(crate) fn end_waiting(&mut self, nsid: u32, of: Controllers, why: Status, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        let Some(Some(namespace)) = self.namespaces.get_mut(index as usize) else { return };
        namespace.router.stack_mut().end_waiting(of, why, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// Ends these commands in all namespaces, each as soon as none of its operations is under way.
    pub(crate) fn abort(&mut self, which: Aborted, why: Status, now_ns: u64) {
        (1..=NAMESPACES_MAX as u32).for_each(|nsid| self.abort_in(nsid, which, why, now_ns));
    }

    /// Ends these commands in one namespace.
    pub(crate) fn abort_in(&mut self, nsid: u32, which: Aborted, why: Status, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        let Some(Some(namespace)) = self.namespaces.get_mut(index as usize) else { return };
        namespace.router.stack_mut().abort(which, why, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// Returns the largest size in bytes of one range of a Dataset Management; zero for any size.
    pub(crate) fn deallocate_limit(&self) -> u64 {
        let limits = self.iter().map(|it| it.characteristics().deallocate_limit);
        limits.filter(|limit| *limit > 0).min().unwrap_or(0)
    }

    /// Returns the earliest time at which work of the subsystem is due, `u64::MAX` for never.
    fn earliest_ns(&self) -> u64 {
        let erasure = self.erasure.as_ref().filter(|_| !self.is_held()).and_then(Erasure::deadline_ns);
        let layers = self.iter().map(|namespace| namespace.router.deadline_ns());
        // Has no branch for each deadline, since it is part of every turn that had work.
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

    /// Computes the next deadline, since timers may have been set or ended. Later turns compare the clock
    /// with it.
    #[inline]
    pub(crate) fn note_deadline(&mut self) {
        self.next_deadline_ns = self.earliest_ns();
    }

    /// Returns the earliest time at which this subsystem needs a turn. Turns compare the clock with the same
    /// time, so a turn at that time does the due work. Timers must be armed only from it.
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

    /// Expires layers whose time has come. The number of namespaces is limited so that a turn stays short;
    /// the next turn goes on behind them.
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

/// Next step of a command that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Submission of its request to the router.
    Send,
    /// Submission to the router as it is.
    Pass,
    /// Completion, since it requests no operation.
    Nothing,
}

/// Returns the most children that a command of these namespaces can have, and the number of commands that
/// their layers make themselves.
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
