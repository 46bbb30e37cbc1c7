//! Shared state of the controllers of one drive: identity, namespaces, and the slab of commands.

use crate::model::Namespace;
use crate::model::jobs::Jobs;
use crate::state::ana::Ana;
use crate::state::chunk;
use crate::state::erasure::Erasure;
use crate::state::fused::HeldCommands;
use crate::state::health::{Health, Statistics};
use crate::state::identity::Identity;
use crate::state::latency::{Latency, LatencyCells};
use crate::state::limits::{COMMANDS_MAX, CONTROLLERS_MAX, HOST_TIMEOUT, NAMESPACES_MAX, NN};
use crate::state::mailbox::Mailboxes;
use crate::state::polls::Polls;
use crate::state::reservation::{HostId, KnownAs};
use crate::state::sampling::Chosen;
use crate::state::trace::{TraceRing, Tracer};
use quanta::Clock;
use sluice_command::{Command, Deallocated, Limits, NodeId, Origin, Passthrough, Slab, Trace};
use sluice_memory::SharedRegion;
use sluice_nvme::Status;
use sluice_router::Router;
use std::io;
use std::sync::Arc;

/// Configuration of a drive.
#[derive(Debug)]
pub struct Config {
    pub identity: Identity,
    pub namespaces: Vec<Namespace>,
}

/// NVM subsystem, without its controllers.
#[derive(Debug)]
pub struct Subsystem {
    pub(super) identity: Identity,
    /// Value that stays the same as long as no acknowledged write is lost.
    pub(super) power_id: Option<[u8; 16]>,
    /// Namespaces by NSID less one.
    pub(super) namespaces: Vec<Option<Namespace>>,
    pub(super) slab: Slab,
    deallocates: bool,
    pub(super) polls: Polls,
    /// Indices of namespaces that may have finished commands.
    pub(super) touched: Vec<u8>,
    /// Finished commands on their way to their completion queues.
    pub(super) done: Vec<Command>,
    /// Spare list, empty except while its commands are being completed.
    finishing: Vec<Command>,
    pub(super) mailboxes: Mailboxes,
    /// Number of controllers to expect.
    pub(super) expected: u32,
    /// Bit per enabled controller; `share` is the number of commands that each of them may have in flight.
    pub(super) enabled: u32,
    pub(super) share: u32,
    /// Slots reserved for controllers that are not enabled.
    pub(super) reserved_slots: u32,
    /// Private memory for commands that compare.
    pub(super) staging: SharedRegion,
    pub(super) health: Health,
    /// Measurement of the commands, if it is on.
    latency: Option<Box<Latency>>,
    /// Value of [`Health::bytes`] when a turn began to move bytes.
    pub(super) moved_before: u64,
    pub(super) jobs: Jobs,
    /// Host of each controller, by controller number.
    pub(super) hosts: [HostId; CONTROLLERS_MAX],
    pub(super) names: [KnownAs; CONTROLLERS_MAX],
    /// Whether all sockets are paths of one guest.
    pub(super) one_guest: bool,
    /// Time after which hosts give up a command; zero for never.
    pub(super) host_timeout_ns: u64,
    pub(super) held: HeldCommands,
    pub(super) ana: Ana,
    /// Index of the namespace where [`expire`](Self::expire) goes on.
    pub(super) expired: usize,
    /// Time until which no entries are fetched.
    pub(super) held_until_ns: Option<u64>,
    /// Time of the next due work of the subsystem. Only [`note_deadline`](Self::note_deadline) computes it;
    /// [`make_due`](Self::make_due) may make it earlier.
    next_deadline_ns: u64,
}

impl Subsystem {
    /// Returns the commands that some namespace passes on.
    pub(crate) fn passthrough(&self) -> Passthrough {
        self.iter().fold(Passthrough::NONE, |all, namespace| all.union(namespace.passthrough()))
    }

    /// Creates a subsystem without controllers.
    ///
    /// # Errors
    /// The operating system has no memory or descriptors for it.
    pub fn new(config: Config) -> io::Result<Self> {
        let Config { identity, namespaces: list } = config;
        let (fan_out, reserve) = needs(list.iter());
        let deallocates = list.iter().any(|n| n.characteristics().deallocated != Deallocated::Unsupported);
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
        let mut subsystem = Self {
            identity,
            power_id: None,
            namespaces,
            slab,
            deallocates,
            polls: Polls::default(),
            touched,
            done: Vec::with_capacity(COMMANDS_MAX as usize),
            finishing: Vec::with_capacity(COMMANDS_MAX as usize),
            mailboxes: Mailboxes::default(),
            expected: 1,
            reserved_slots: 0,
            enabled: 0,
            share,
            staging: chunk::staging()?,
            health: Health::new(),
            latency: None,
            moved_before: 0,
            jobs: Jobs::default(),
            hosts: std::array::from_fn(|number| HostId::Unnamed(number as u8)),
            names: Default::default(),
            one_guest: false,
            host_timeout_ns: HOST_TIMEOUT.as_nanos() as u64,
            held: HeldCommands::default(),
            ana: Ana::default(),
            expired: 0,
            held_until_ns: None,
            next_deadline_ns: u64::MAX,
        };
        subsystem.schedule_polls();
        Ok(subsystem)
    }

    /// Sets a value for Identify Controller that stays the same as long as no acknowledged write is lost.
    pub fn set_power_id(&mut self, power_id: [u8; 16]) {
        self.power_id = Some(power_id);
    }

    /// Measures how long I/O commands take from now on. No other subsystem may have the same cells.
    pub fn measure_latency(&mut self, clock: Clock, cells: Arc<LatencyCells>) {
        self.each_namespace(|namespace| count_layers(namespace, &cells));
        self.latency = Some(Box::new(Latency::new(clock, cells)));
    }

    /// Traces commands from now on, until the ring's time is over.
    pub fn begin_trace(&mut self, ring: Arc<TraceRing>) {
        self.slab.set_trace(Some(Trace::new(ring.clock().clone())));
        let latency = self.latency.get_or_insert_with(|| Box::new(Latency::of_trace(ring.clock().clone())));
        latency.set_tracer(Some(Tracer::new(ring)));
    }

    /// Ends the trace of commands.
    #[cold]
    pub(crate) fn end_trace(&mut self) {
        self.slab.set_trace(None);
        self.latency = self.latency.take().and_then(|mut it| it.set_tracer(None).then_some(it));
    }

    /// Counts a batch of commands that are fetched. Returns whether some of them are [chosen](Self::choose) for a
    /// measurement.
    #[inline(always)]
    pub(crate) fn measurement_is_due(&mut self, count: u32, now_ns: u64) -> bool {
        self.latency.as_deref_mut().is_some_and(|latency| latency.is_due(count, now_ns))
    }

    /// Returns which commands of a batch are measured.
    pub(crate) fn choose(&mut self, count: u32, now_ns: u64) -> Chosen {
        let Some(latency) = self.latency.as_deref_mut() else { return Chosen::default() };
        let chosen = latency.choose(count, now_ns);
        if latency.trace_is_over() {
            self.end_trace();
        }
        chosen
    }

    #[inline]
    pub(crate) fn latency_mut(&mut self) -> Option<&mut Latency> {
        self.latency.as_deref_mut()
    }

    #[inline]
    pub(crate) fn latency(&self) -> Option<&Latency> {
        self.latency.as_deref()
    }

    /// Returns the measurement together with all that counts and reports a finished command.
    #[inline]
    pub(crate) fn timed_accounts(&mut self) -> Option<(&mut Slab, &mut Health, &Identity, &Latency)> {
        let latency = self.latency.as_deref()?;
        Some((&mut self.slab, &mut self.health, &self.identity, latency))
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn power_id(&self) -> Option<[u8; 16]> {
        self.power_id
    }

    /// Returns the host of each controller, by controller number.
    pub(crate) fn hosts(&self) -> &[HostId] {
        &self.hosts
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
        let namespace = self.namespaces[index].insert(namespace);
        if let Some(cells) = self.latency.as_ref().map(|latency| latency.cells()) {
            count_layers(namespace, cells);
        }
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
        self.jobs.ended.retain(|job| job.nsid != nsid);
        self.touched.retain(|touched| u32::from(*touched) != index);
        self.update_stacks();
        Some(namespace)
    }

    #[inline]
    pub(crate) fn slab(&self) -> &Slab {
        &self.slab
    }

    #[inline]
    pub(crate) fn slab_mut(&mut self) -> &mut Slab {
        &mut self.slab
    }

    /// Returns the slab together with the private memory of commands.
    pub(crate) fn slab_and_staging(&mut self) -> (&mut Slab, &SharedRegion) {
        (&mut self.slab, &self.staging)
    }

    /// Returns the slab together with all that counts and reports a finished command.
    #[inline]
    pub(crate) fn slab_and_accounts(&mut self) -> (&mut Slab, &mut Health, &Identity) {
        (&mut self.slab, &mut self.health, &self.identity)
    }

    #[inline]
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    #[inline]
    pub(crate) fn health_mut(&mut self) -> &mut Health {
        &mut self.health
    }

    #[inline]
    pub(crate) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    pub(crate) fn jobs_mut(&mut self) -> &mut Jobs {
        &mut self.jobs
    }

    /// Takes the commands of a controller that wait for a job.
    pub(crate) fn take_commands_of(&mut self, number: u8) -> Vec<Command> {
        let Self { jobs, slab, .. } = self;
        jobs.take_commands(|command| slab.slot(command).origin.controller == number)
    }

    /// Returns a namespace together with the slab and the private memory of commands.
    pub(crate) fn beside(&mut self, nsid: u32) -> (Option<&Namespace>, &mut Slab, &SharedRegion) {
        let Self { namespaces, slab, staging, .. } = self;
        let namespace = namespaces.get(nsid.wrapping_sub(1) as usize).and_then(Option::as_ref);
        (namespace, slab, staging)
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

    /// Updates what depends on the stacks of all namespaces. Returns false if the slab cannot hold as many
    /// commands as their layers may make.
    pub(crate) fn update_stacks(&mut self) -> bool {
        self.schedule_polls();
        // A namespace that is being created already has its room.
        let (fan_out, reserve) = needs(self.iter().chain(self.jobs.management.being_created()));
        self.slab.make_room(fan_out, reserve)
    }

    /// Chooses the turns that poll the layers, after a change of the stacks or of the number of controllers.
    pub(super) fn schedule_polls(&mut self) {
        let is_polled = self.iter().any(|namespace| namespace.router.stack().polls());
        self.polls = Polls::new(is_polled, self.mailboxes.count());
    }

    /// Returns the token prefix that layer `node` of namespace `nsid` gives its engines.
    pub fn token_prefix(nsid: u32, node: NodeId) -> u64 {
        u64::from(nsid.wrapping_sub(1) & 0xff) << 40 | u64::from(node.0) << 32
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
    #[inline]
    pub fn shares_memory(&self) -> bool {
        !matches!(self.polls, Polls::Never)
    }

    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        !self.touched.is_empty() || !self.done.is_empty()
    }

    /// Ends a command with this status. The next completions post its entry.
    #[cold]
    pub(crate) fn refuse(&mut self, command: Command, status: Status) {
        self.slab.slot_mut(&command).status = status;
        self.done.push(command);
    }

    /// Takes the finished commands. The list must [come back](Self::put_back_list) when it is empty.
    #[inline]
    pub(crate) fn take_finished(&mut self) -> Vec<Command> {
        // The next steps of these commands push to the other list.
        let spare = std::mem::take(&mut self.finishing);
        std::mem::replace(&mut self.done, spare)
    }

    #[inline]
    pub(crate) fn put_back_list(&mut self, empty: Vec<Command>) {
        self.finishing = empty;
    }

    pub(crate) fn each_namespace(&mut self, change: impl FnMut(&mut Namespace)) {
        self.namespaces.iter_mut().flatten().for_each(change);
    }

    /// Returns the largest size in bytes of one range of a Dataset Management; zero for any size.
    pub(crate) fn deallocate_limit(&self) -> u64 {
        let limits = self.iter().map(|it| it.characteristics().deallocate_limit);
        limits.filter(|limit| *limit > 0).min().unwrap_or(0)
    }

    /// Returns the earliest time at which work of the subsystem is due, `u64::MAX` for never.
    fn earliest_ns(&self) -> u64 {
        let erasure = self.jobs.erasure.as_ref().filter(|_| !self.is_held()).and_then(Erasure::deadline_ns);
        let layers = self.iter().map(|namespace| namespace.router.deadline_ns());
        // Has no branch for each deadline, since it is part of every turn that had work.
        layers
            .chain([
                erasure,
                self.held_until_ns,
                self.jobs.persistent_events.deadline_ns(),
                self.jobs.persister.deadline_ns(),
            ])
            .chain([self.jobs.management.deadline_ns()])
            .fold(u64::MAX, |earliest, at| earliest.min(at.unwrap_or(u64::MAX)))
    }

    /// Returns whether work of the subsystem is due.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_deadline_ns
    }

    /// Makes work due at this time, or earlier if other work is.
    pub(crate) fn make_due(&mut self, at_ns: u64) {
        self.next_deadline_ns = self.next_deadline_ns.min(at_ns);
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
}

/// Forgets commands that wait here for a turn or for the end of a format.
impl Drop for Subsystem {
    fn drop(&mut self) {
        let Self { done, mailboxes, jobs, .. } = self;
        let erasures = jobs.erasure.as_mut().and_then(Erasure::take_command);
        done.drain(..).chain(mailboxes.drain()).chain(erasures).for_each(std::mem::forget);
    }
}

fn count_layers(namespace: &mut Namespace, cells: &LatencyCells) {
    let index = namespace.nsid() as usize - 1;
    if let Some(layers) = cells.layers() {
        namespace.router.stack_mut().count_layers(Arc::clone(layers), index);
    }
}

/// Returns the most children that a command of these namespaces can have, and the number of commands that
/// their layers make themselves.
fn needs<'a>(namespaces: impl Iterator<Item = &'a Namespace> + Clone) -> (u32, u32) {
    let fan_out = namespaces.clone().map(|n| n.characteristics().fan_out).max().unwrap_or(0);
    let reserve = namespaces.map(|n| n.router.stack().reserve()).fold(0, u32::saturating_add);
    (fan_out, reserve)
}
