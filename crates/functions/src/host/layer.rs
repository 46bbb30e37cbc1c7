//! Layer that sends commands to a function, in this process or in another, and executes its replies.

use super::Translations;
use super::arena::Arena;
use super::commands::{CommandTable, Next};
use super::control::ActiveOrder;
use super::eventfds::{Eventfds, IoEventfds, ticket};
use super::instance::InstanceSlot;
use super::local::{Notice, Outcome};
use super::peer::{External, Incoming, Local, Peer};
use super::request::OWN;
use super::start::{Below, Leaving, Readiness};
use super::translate::PendingUpdate;
use super::unreported_loss::UnreportedLoss;
use super::{ARENA_BYTES, OnDeath, PreparedUif};
use crate::SizeOf;
use sluice_command::{
    Aborted, Characteristics, Command, Controllers, Deallocated, Frame, Lane, Layer, Operation, Passthrough,
    Storage, Ticket, common_boundary,
};
use sluice_memory::Space;
use sluice_nvme::Status;
use sluice_reactor::{Io, TaskId};
use sluice_uif::abi::REQUESTS_MAX;
use sluice_uif::{Direct, Interest, Properties};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Commands that can wait without allocation: the most that a drive has in flight.
const WAITING: usize = 1024;

/// Searches for overdue commands in each deadline.
const CHECKS_PER_DEADLINE: u64 = 4;

/// Deadlines that a command has while requests of its function are in flight: a deallocation of a drive with
/// many versions takes long.
const DEADLINES_AT_WORK: u64 = 12;

/// Storage function as a layer.
#[derive(Debug)]
pub struct Uif {
    pub(super) properties: Properties,
    pub(super) deadline_ns: u64,
    pub(super) on_death: OnDeath,
    size: Option<SizeOf>,
    atomic_write: Option<u32>,
    pub(super) peer: Peer,
    /// Arena of the present connection.
    pub(super) arena: Option<Arena>,
    /// Arenas of ended connections, for as long as commands below have data there.
    pub(super) retiring: Vec<Arena>,
    pub(super) commands: CommandTable,
    pub(super) unreported_loss: UnreportedLoss,
    /// Commands in the order of their arrival.
    pub(super) waiting: VecDeque<u32>,
    /// Commands back from below, for the function. They go first: other commands wait for the buffers that
    /// these hold.
    pub(super) returning: VecDeque<u32>,
    /// Commands that the function has.
    pub(super) out: u16,
    /// Outcomes of calls of a function in this process that wait for a translation.
    pub(super) postponed: VecDeque<Outcome>,
    pub(super) instance: Arc<InstanceSlot>,
    pub(super) eventfds: Box<dyn Eventfds>,
    pub(super) below: Below,
    pub(super) readiness: Readiness,
    pub(super) leaving: Leaving,
    /// Whether no function will come: commands pass.
    abandoned: bool,
    /// Calls of a function in this process that are still to be made.
    pub(super) unsent: VecDeque<Notice>,
    /// Order of an operator that the function has.
    pub(super) active_order: Option<ActiveOrder>,
    /// Counter of orders.
    pub(super) orders: u32,
    /// Translation cache of the drive's classifier.
    pub(super) translations: Option<Box<dyn Translations>>,
    pub(super) pending_update: Option<PendingUpdate>,
    /// Places of the cache that were visited since the last look.
    pub(super) places_visited: u64,
    /// Time of the next search for overdue commands.
    check_ns: u64,
    /// Time until which this daemon itself did not run.
    absent_until_ns: u64,
    /// Controllers whose hosts are gone or begin anew: their waiting commands end.
    pub(super) ending: Controllers,
}

impl PreparedUif {
    /// Builds the layer, on its reactor's thread. `token_prefix` is the part of this layer's tokens above the
    /// low 32 bits, which are the ticket.
    ///
    /// # Errors
    /// The reactor has no room for three more files, or the system has no memory for the buffers.
    pub fn build(self, task: TaskId, io: &Io, token_prefix: u64) -> io::Result<Uif> {
        let eventfds = IoEventfds::new(task, io, token_prefix, self.instance.layer_eventfd())?;
        self.build_with(Box::new(eventfds))
    }

    pub(super) fn build_with(self, eventfds: Box<dyn Eventfds>) -> io::Result<Uif> {
        let mut layer = Uif {
            properties: self.properties,
            deadline_ns: self.deadline_ns,
            on_death: self.on_death,
            size: self.size,
            atomic_write: self.atomic_write,
            peer: Peer::Absent,
            arena: None,
            retiring: Vec::new(),
            commands: CommandTable::default(),
            unreported_loss: UnreportedLoss::new(self.reports_loss_once),
            waiting: VecDeque::with_capacity(WAITING),
            returning: VecDeque::with_capacity(WAITING),
            out: 0,
            postponed: VecDeque::new(),
            instance: self.instance,
            eventfds,
            below: Below::default(),
            readiness: Readiness::Starting { since_ns: 0 },
            leaving: Leaving::No,
            unsent: VecDeque::with_capacity(usize::from(REQUESTS_MAX)),
            active_order: None,
            orders: 0,
            translations: None,
            pending_update: None,
            places_visited: 0,
            check_ns: 0,
            absent_until_ns: 0,
            abandoned: false,
            ending: Controllers::default(),
        };
        if let Some((number, incoming)) = layer.instance.take() {
            layer.connect(number, incoming)?;
        }
        Ok(layer)
    }
}

impl Uif {
    /// Connects to an instance of the function.
    fn connect(&mut self, number: u32, incoming: Incoming) -> io::Result<()> {
        let (peer, arena) = match incoming {
            Incoming::Local(function, memory) => {
                let function = Box::new(Direct::new(function, ARENA_BYTES));
                (Peer::Local(Local { number, function }), memory)
            }
            Incoming::External(link) => {
                let external = External::new(number, &link);
                self.eventfds.attach(link.doorbell, link.bell)?;
                (Peer::External(external), link.arena)
            }
        };
        self.instance.connected(number);
        self.peer = peer;
        self.arena = Some(Arena::new(number, arena, self.properties.pool));
        self.below.announced.set(false);
        self.set_readiness(Readiness::Starting { since_ns: 0 });
        Ok(())
    }

    /// Publishes the entries that were sent, and wakes the function if it sleeps.
    pub(super) fn publish(&mut self) {
        if let Peer::External(external) = &mut self.peer
            && external.sender.publish()
        {
            self.instance.counts.rings.increment();
            self.eventfds.signal();
        }
    }

    /// Executes the replies that are there. Returns their number.
    fn look(&mut self, lane: &mut Lane<'_>) -> usize {
        let held_up = self.pending_update.is_some() || !self.postponed.is_empty();
        self.places_visited = 0;
        if !self.apply_pending() {
            return 1;
        }
        if held_up {
            self.execute_postponed(lane);
        }
        let Peer::External(external) = &mut self.peer else { return usize::from(held_up) };
        let Ok(waiting) = external.receiver.waiting() else {
            self.kill("its ring is broken", lane);
            return 1;
        };
        for _ in 0..waiting {
            let Peer::External(external) = &mut self.peer else { break };
            let reply = external.receiver.take();
            self.execute(&reply, lane);
            if self.is_held_up() {
                break;
            }
        }
        usize::from(waiting)
    }

    /// Kills a function that has had a command for too long: it would keep every other command, too.
    fn check_deadlines(&mut self, lane: &mut Lane<'_>) {
        let (now_ns, interval_ns) = (lane.now_ns(), self.deadline_ns / CHECKS_PER_DEADLINE);
        if now_ns.saturating_sub(self.check_ns) > interval_ns {
            // The daemon itself did not run: the machine was suspended or the daemon stopped. A function that
            // was stopped with it gets its time anew.
            self.absent_until_ns = now_ns;
        }
        self.check_ns = now_ns.saturating_add(interval_ns);
        let deadlines = if self.is_at_work(now_ns) { DEADLINES_AT_WORK } else { 1 };
        let since_ns = now_ns.saturating_sub(self.deadline_ns.saturating_mul(deadlines));
        if self.out > 0 && self.absent_until_ns < since_ns && self.commands.is_overdue(since_ns) {
            self.instance.counts.timeouts.increment();
            self.kill("it did not answer in time", lane);
        }
    }

    /// Returns whether a request of the function's own is in flight, or ended at most one deadline ago.
    fn is_at_work(&self, now_ns: u64) -> bool {
        let Peer::External(external) = &self.peer else { return false };
        let waits = self.arena.as_ref().is_some_and(|arena| arena.requests > 0);
        let heard = external.done_ns > 0 && now_ns.saturating_sub(external.done_ns) < self.deadline_ns;
        waits || heard
    }

    pub(super) fn kill(&mut self, why: &str, lane: &mut Lane<'_>) {
        let Peer::External(external) = &self.peer else { return };
        tracing::warn!(drive = self.instance.drive(), "a function is ended: {why}");
        self.instance.kill(external.number);
        self.on_exit(lane);
    }

    /// Handles a signal of the instance slot.
    fn check_instance(&mut self, lane: &mut Lane<'_>) {
        self.take_translations();
        if self.instance.is_abandoned() {
            self.abandoned = true;
            self.let_pass(lane);
        }
        if let Peer::External(external) = &self.peer
            && self.instance.has_ended(external.number)
        {
            // Replies that were sent before the end still count.
            self.look(lane);
            self.on_exit(lane);
        }
        self.load_next();
        let is_planned = match &self.peer {
            Peer::Absent => false,
            Peer::Local(_) => self.instance.is_unloading(),
            Peer::External(_) => self.instance.is_planned(),
        };
        match self.leaving {
            Leaving::No if is_planned => self.leaving = Leaving::Finishing,
            // The operator has withdrawn the request.
            Leaving::Finishing if !is_planned => self.leaving = Leaving::No,
            _ => {}
        }
    }

    /// Takes the next instance if the slot is empty, unless it is to stay empty.
    pub(super) fn load_next(&mut self) {
        if !matches!(self.peer, Peer::Absent) {
            return;
        }
        if self.instance.is_unloading() {
            return self.instance.set_empty();
        }
        if let Some((number, incoming)) = self.instance.take()
            && let Err(error) = self.connect(number, incoming)
        {
            tracing::error!(%error, "the reactor cannot take a function");
            self.instance.kill(number);
        }
    }

    /// Continues commands that waited and can go on.
    fn go_on(&mut self, lane: &mut Lane<'_>) {
        self.pump(lane);
        self.publish();
    }
}

impl Layer for Uif {
    fn name(&self) -> &'static str {
        "uif"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        self.below.update(below);
        let first = below[0];
        let transforms = self.properties.transforms && first.deallocated != Deallocated::Unsupported;
        let block_size = first.block_size.max(self.properties.block_size);
        let fan_out = below.iter().map(|layer| layer.fan_out).max().unwrap_or(0);
        Characteristics {
            size: match &self.size {
                Some(size) => size.over(&below.iter().map(|layer| layer.size).collect::<Vec<_>>()),
                None if self.properties.size > 0 => self.properties.size,
                None => first.size,
            },
            block_size,
            optimal_write: first.optimal_write.max(self.properties.block_size),
            // A function with requests of its own works in several steps, which may be seen half done.
            atomic_write: match self.atomic_write {
                Some(bytes) => bytes.max(block_size),
                None if self.properties.pool > 0 => {
                    below.iter().map(|layer| layer.atomic_write).fold(block_size, u32::min)
                }
                None => first.atomic_write,
            },
            // A write that crosses a boundary below is whole nevertheless.
            atomic_boundary: match self.atomic_write {
                Some(_) => 0,
                None if self.properties.pool > 0 => below
                    .iter()
                    .map(|layer| layer.atomic_boundary)
                    .fold(0, |one, other| common_boundary(one.into(), other.into())),
                None => first.atomic_boundary,
            },
            volatile_cache: below.iter().any(|layer| layer.volatile_cache),
            deallocated: if transforms { Deallocated::Indeterminate } else { first.deallocated },
            // One child for each command: what is sent below for it.
            fan_out: fan_out + 1,
            depth: below.iter().map(|layer| layer.depth).max().unwrap_or(0).saturating_add(1),
            requests: REQUESTS_MAX.into(),
            // A function may store data anywhere.
            keeps_versions: true,
            // A command that only a device understands cannot pass a function.
            passthrough: Passthrough::NONE,
            storage: Storage::of_all(below.iter().map(|layer| layer.storage)),
            ..first
        }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        let slot = lane.slot(&command);
        if self.unreported_loss.see(&slot.origin) {
            self.publish_loss();
        }
        let request = &slot.request;
        let empty = request.length == 0 && request.operation != Operation::Flush;
        if empty || self.abandoned || self.properties.interests[request.operation as usize] == Interest::Skip
        {
            return lane.forward(command);
        }
        let request = *request;
        let index = self.commands.open(lane.park(command));
        let state = self.commands.of(index);
        (state.request, state.cookie) = (request, [0; 2]);
        (state.next, state.status, state.returns) = (Next::Finish, Status::SUCCESS, 0);
        self.waiting.push_back(index);
        self.pump(lane);
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        if frame.stage == OWN {
            self.request_done(command, frame.data, lane);
            return self.go_on(lane);
        }
        let status = lane.slot(&command).status;
        let ticket = lane.park(command);
        self.came_back(frame.data[0] as u32, ticket, status, lane);
        self.go_on(lane);
    }

    fn event(&mut self, Ticket(ticket): Ticket, _result: i32, lane: &mut Lane<'_>) {
        match ticket {
            ticket::INSTANCE => self.check_instance(lane),
            ticket::REPLIES => drop(self.look(lane)),
            _ => return,
        }
        self.go_on(lane);
    }

    fn flush(&mut self, _lane: &mut Lane<'_>) {
        self.publish();
    }

    fn deadline_ns(&self) -> Option<u64> {
        let commands = (self.out > 0).then_some(self.check_ns);
        let alarm = if let Peer::Local(local) = &self.peer { local.function.alarm_ns() } else { None };
        [commands, alarm, self.start_deadline_ns(), self.quiet_until_ns()].into_iter().flatten().min()
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        // An answer that is there came in time.
        self.look(lane);
        if self.out > 0 && lane.now_ns() >= self.check_ns {
            self.check_deadlines(lane);
        }
        if self.start_deadline_ns().is_some_and(|deadline_ns| lane.now_ns() >= deadline_ns) {
            self.instance.counts.timeouts.increment();
            self.kill("it did not get ready in time", lane);
        }
        self.check_quiet(lane);
        self.wake_local(lane);
        self.go_on(lane);
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.end_some(|ticket, lane| lane.is_aborted(which, ticket), why, lane);
    }

    fn polls(&self) -> bool {
        true
    }

    fn leave(&mut self, lane: &mut Lane<'_>) -> bool {
        self.give_up(lane)
    }

    fn revoke(&mut self, controller: u8) {
        self.ending.insert(controller);
    }

    fn renew(&mut self, controller: u8) {
        self.ending.remove(controller);
    }

    fn poll(&mut self, _controller: u8, _space: &Space, lane: &mut Lane<'_>) -> usize {
        let ended = if self.ending.is_empty() { 0 } else { self.end_waiting(lane) };
        let state = ended + self.look(lane) + usize::from(self.must_start());
        if state > 0 {
            self.go_on(lane);
        }
        state
    }

    fn arm(&mut self) -> bool {
        if self.pending_update.is_some() || !self.postponed.is_empty() {
            return true;
        }
        let Peer::External(external) = &self.peer else { return false };
        if self.out == 0 && external.is_first_version {
            return false;
        }
        external.receiver.request_wakeup();
        external.receiver.waiting() != Ok(0)
    }

    fn disarm(&mut self) {
        if let Peer::External(external) = &self.peer {
            external.receiver.cancel_wakeup();
        }
    }
}
