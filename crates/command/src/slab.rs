//! The slab: every command that a drive can have in flight, allocated once.
//!
//! A slab belongs to one drive on one reactor. A design with one slab per core was rejected: a guest with 128
//! deep queues would fill it and its neighbours would starve.

use crate::handover::{COMMANDS_MAX, Commands, Segment};
use crate::slot::{Owner, Slot, SlotState};
use crate::trace::Trace;
use crate::{Command, Origin, Request, Route, Ticket};
use sluice_nvme::{Status, SubmissionEntry};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use zerocopy::{FromZeros, transmute};

/// The most slots that a slab can have: limited by the index of a [`Ticket`].
const SLOTS_MAX: usize = 1 << Ticket::INDEX_BITS;

/// Number of commands that a drive can have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Commands that hosts submitted. At the limit, entries wait in their submission queues.
    pub commands: u32,
    /// Child commands of all of those together, and commands that layers make themselves. The limit is
    /// derived from the stack's fan-out. So a fork never finds the slab full, and no two commands can wait
    /// for each other's slots.
    pub children: u32,
}

impl Limits {
    /// Returns limits for this many commands, or for as many as fit if each has `fan_out` children: at a fork
    /// it would be too late to refuse.
    pub fn new(commands: u32, fan_out: u32) -> Self {
        Self::with_reserve(commands, fan_out, 0)
    }

    /// Returns limits with `reserve` slots for commands that layers make themselves, and for their children:
    /// see [`Stack::reserve`](crate::Stack::reserve).
    pub fn with_reserve(commands: u32, fan_out: u32, reserve: u32) -> Self {
        let slots = (SLOTS_MAX as u32).saturating_sub(reserve);
        let fits = slots / fan_out.saturating_add(1);
        let commands = commands.min(fits).min(COMMANDS_MAX as u32);
        Self { commands, children: commands * fan_out + reserve.min(SLOTS_MAX as u32) }
    }
}

/// All slots of a drive: those of commands first, those of children behind them.
#[derive(Debug)]
pub struct Slab {
    /// Slots, initially zeros, which cost no memory before their first use. Moved only when the limits grow.
    pub(crate) slots: Box<[Slot]>,
    /// Free slots below the used number; all slots beyond are free, too.
    free: Vec<u32>,
    free_children: Vec<u32>,
    /// Number of slots of commands that were used, and of children.
    used: u32,
    used_children: u32,
    limits: Limits,
    children: u32,
    /// Commands in flight, by controller.
    of: [u32; 1 << u8::BITS],
    handover: Segment<Commands>,
    /// Traced commands, while some are traced.
    pub(crate) trace: Option<Box<Trace>>,
}

impl Slab {
    /// Creates a slab.
    ///
    /// # Errors
    /// The operating system has no memory or descriptor for the hand-over segment.
    pub fn new(limits: Limits) -> io::Result<Self> {
        let capacity = (limits.commands + limits.children) as usize;
        assert!(
            capacity <= SLOTS_MAX && limits.commands as usize <= COMMANDS_MAX,
            "limits come from Limits::new"
        );
        let slots = Self::zeros(capacity).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            slots,
            free: Vec::with_capacity(limits.commands as usize),
            free_children: Vec::with_capacity(limits.children as usize),
            used: 0,
            used_children: 0,
            limits,
            children: 0,
            of: [0; 1 << u8::BITS],
            handover: Segment::new()?,
            trace: None,
        })
    }

    /// Makes room for the children of commands with this fan-out, and for `reserve` others, in a drive that
    /// is at work. Returns false, with nothing changed, if there cannot be so many.
    pub fn make_room(&mut self, fan_out: u32, reserve: u32) -> bool {
        let children = u64::from(self.limits.commands) * u64::from(fan_out) + u64::from(reserve);
        if u64::from(self.limits.commands) + children > SLOTS_MAX as u64 {
            return false;
        }
        let children = children as u32;
        if children <= self.limits.children {
            return true;
        }
        let Some(mut slots) = Self::zeros((self.limits.commands + children) as usize) else { return false };
        for range in self.ranges() {
            slots[range.clone()].swap_with_slice(&mut self.slots[range]);
        }
        self.slots = slots;
        self.limits.children = children;
        self.free_children.reserve_exact(children as usize - self.free_children.len());
        true
    }

    fn zeros(count: usize) -> Option<Box<[Slot]>> {
        FromZeros::new_box_zeroed_with_elems(count).ok()
    }

    /// Returns the ranges of slots that were used.
    fn ranges(&self) -> [Range<usize>; 2] {
        let first_child = self.limits.commands as usize;
        [0..self.used as usize, first_child..first_child + self.used_children as usize]
    }

    /// Returns the segment that a successor of this process would receive.
    pub fn handover(&self) -> &Commands {
        self.handover.get()
    }

    /// Returns the descriptor of the segment.
    pub fn handover_fd(&self) -> BorrowedFd<'_> {
        self.handover.fd()
    }

    /// Takes a slot for a command of a host; none if the drive has its limit in flight.
    #[inline]
    pub fn admit(&mut self, entry: &SubmissionEntry, origin: Origin) -> Option<Command> {
        self.admit_words(entry.to_words(), origin)
    }

    /// Takes a slot as [`admit`](Self::admit) does, for an entry in the words that were copied out of shared
    /// memory. A copy of the structure just built from the words would stall, because its loads are wider
    /// than those stores.
    #[inline(always)]
    pub fn admit_words(&mut self, entry: [u64; 8], origin: Origin) -> Option<Command> {
        self.admit_with(entry, origin, |_| ())
    }

    /// Takes a slot as [`admit_words`](Self::admit_words) does, with a [stamp](Slot::stamp).
    #[inline(always)]
    pub fn admit_stamped(&mut self, entry: [u64; 8], origin: Origin, stamp: u64) -> Option<Command> {
        self.admit_with(entry, origin, |slot| slot.stamp = stamp)
    }

    #[inline(always)]
    fn admit_with(
        &mut self,
        entry: [u64; 8],
        origin: Origin,
        set: impl FnOnce(&mut Slot),
    ) -> Option<Command> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.first_use()?,
        };
        self.of[usize::from(origin.controller)] += 1;
        let record = &mut self.handover.get_mut().commands[index as usize];
        record.entry = transmute!(entry);
        record.sq = origin.sq;
        record.controller = origin.controller.into();
        record.live = 1;
        let slot = self.take(index);
        slot.origin = origin;
        slot.route = Route::default();
        set(slot);
        // `release` has set the owner to the host.
        debug_assert_eq!(slot.owner, Owner::Host);
        Some(Command::new(index))
    }

    /// Takes a slot for a child of a command that has been forked.
    pub(crate) fn child(&mut self, parent: u32) -> Command {
        self.child_of(parent, Owner::Fork(parent))
    }

    /// Takes a slot for a command that a layer makes itself.
    pub(crate) fn original(&mut self) -> Command {
        self.take_spare(Origin::LAYER, Route::default(), Owner::Layer)
    }

    /// Takes a slot for a leg of `parent` beside others: a child with the `request.length` bytes of its data
    /// from `skip` on. The leg comes back among the finished commands, for [`join_leg`](Self::join_leg).
    ///
    /// # Panics
    /// If the data is shorter: it is as long as the parent's request, and the caller must check that.
    pub fn leg(&mut self, parent: &Command, request: Request, skip: usize) -> Command {
        let index = parent.index() as u32;
        let leg = self.child_of(index, Owner::Leg(index));
        let (parent, slot) = self.pair_mut(index, &leg);
        slot.request = request;
        if !parent.data.is_empty() {
            let length = if parent.origin.raw { parent.data.len_bytes() } else { request.length as usize };
            let copied = parent.data.slice(skip, length, &mut slot.data);
            copied.expect("a leg inside its command");
        }
        leg
    }

    fn child_of(&mut self, parent: u32, owner: Owner) -> Command {
        let Slot { origin, route, .. } = self.slots[parent as usize];
        self.take_spare(origin, route, owner)
    }

    fn take_spare(&mut self, origin: Origin, route: Route, owner: Owner) -> Command {
        assert!(self.children < self.limits.children, "a layer made more commands than it declared");
        self.children += 1;
        let index = match self.free_children.pop() {
            Some(index) => index,
            None => self.first_use_of_child(),
        };
        let slot = self.take(index);
        slot.origin = origin;
        slot.route = route;
        slot.request = Request::default();
        slot.owner = owner;
        Command::new(index)
    }

    #[inline]
    fn take(&mut self, index: u32) -> &mut Slot {
        let slot = &mut self.slots[index as usize];
        slot.state = SlotState::Held;
        slot.status = Status::SUCCESS;
        slot.frames.clear();
        slot.data.clear();
        slot
    }

    /// Returns the lowest number that was never used, so that a quiet drive keeps using the same few slots.
    /// There is none if the drive has its limit in flight.
    #[cold]
    fn first_use(&mut self) -> Option<u32> {
        if self.used == self.limits.commands {
            return None;
        }
        self.used += 1;
        Some(self.used - 1)
    }

    #[cold]
    fn first_use_of_child(&mut self) -> u32 {
        self.used_children += 1;
        self.limits.commands + self.used_children - 1
    }

    /// Frees the slot of a command that is finished and whose completion is written.
    #[inline]
    pub fn release(&mut self, command: Command) {
        let index = command.into_index();
        let slot = &mut self.slots[index as usize];
        slot.state = SlotState::Free;
        if std::mem::take(&mut slot.owner) != Owner::Host {
            self.children -= 1;
            self.free_children.push(index);
        } else {
            self.of[usize::from(slot.origin.controller)] -= 1;
            self.handover.get_mut().commands[index as usize].live = 0;
            self.free.push(index);
        }
    }

    #[inline]
    pub fn slot(&self, command: &Command) -> &Slot {
        &self.slots[command.index()]
    }

    #[inline]
    pub fn slot_mut(&mut self, command: &Command) -> &mut Slot {
        &mut self.slots[command.index()]
    }

    /// Returns the entry as it was copied out of the submission queue, once. For a command of a host:
    /// children have none.
    #[inline]
    pub fn entry(&self, command: &Command) -> &SubmissionEntry {
        &self.handover.get().commands[command.index()].entry
    }

    /// Returns the entry of the last command in a slot, which a host submitted. It may be over.
    pub fn entry_of_number(&self, number: usize) -> &SubmissionEntry {
        &self.handover.get().commands[number.min(COMMANDS_MAX - 1)].entry
    }

    /// Returns the entry of a slot, which may be a leg's.
    pub(crate) fn entry_of(&self, index: usize) -> &SubmissionEntry {
        let of = match self.slots[index].owner {
            Owner::Leg(parent) => parent as usize,
            Owner::Host | Owner::Fork(_) | Owner::Layer => index,
        };
        &self.handover.get().commands[of.min(COMMANDS_MAX - 1)].entry
    }

    /// Parks a command until an engine returns the ticket.
    #[inline]
    pub fn park(&mut self, command: Command) -> Ticket {
        let index = command.into_index();
        let slot = &mut self.slots[index as usize];
        slot.state = SlotState::Parked;
        // A new generation each time: a repeated answer must not take the command out of its next park.
        slot.generation = (slot.generation + 1) & Ticket::GENERATION_MASK;
        Ticket::new(index, slot.generation)
    }

    /// Takes a parked command up again; none if the ticket is stale. That is an error of the engine, and
    /// never returns another command.
    #[inline]
    pub fn unpark(&mut self, ticket: Ticket) -> Option<Command> {
        let slot = self.slots.get_mut(ticket.index())?;
        if slot.state != SlotState::Parked || slot.generation != ticket.generation() {
            return None;
        }
        slot.state = SlotState::Held;
        Some(Command::new(ticket.index() as u32))
    }

    /// Returns the slot behind a ticket, while its command stays parked.
    pub fn parked(&self, ticket: Ticket) -> Option<&Slot> {
        let slot = self.slots.get(ticket.index())?;
        (slot.state == SlotState::Parked && slot.generation == ticket.generation()).then_some(slot)
    }

    /// Returns the slot behind a ticket, for changing it, while its command stays parked.
    pub fn parked_mut(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(ticket.index())?;
        (slot.state == SlotState::Parked && slot.generation == ticket.generation()).then_some(slot)
    }

    pub(crate) fn fork(&mut self, parent: Command) -> u32 {
        let index = parent.into_index();
        let slot = &mut self.slots[index as usize];
        slot.state = SlotState::Forked;
        slot.pending = 0;
        index
    }

    /// Returns parent and child at once, to hand work down or merge the outcome.
    pub(crate) fn pair_mut(&mut self, parent: u32, child: &Command) -> (&mut Slot, &mut Slot) {
        let [parent, child] = self
            .slots
            .get_disjoint_mut([parent as usize, child.index()])
            .expect("a command is not its own parent");
        (parent, child)
    }

    pub(crate) fn at(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    /// Returns the parent's handle after every child has returned.
    pub(crate) fn rejoin(&mut self, parent: u32) -> Command {
        self.slots[parent as usize].state = SlotState::Held;
        Command::new(parent)
    }

    /// Gives up the handle of a command until one of its [legs](Self::leg) is back.
    pub fn await_legs(&mut self, parent: Command) {
        self.fork(parent);
    }

    /// Frees the slot of a leg that is back; returns its parent's handle.
    ///
    /// # Panics
    /// If it is no leg, or its parent does not wait: both are errors of the router.
    pub fn join_leg(&mut self, leg: Command) -> Command {
        let Owner::Leg(parent) = self.slot(&leg).owner else { panic!("{leg:?} is not a leg") };
        assert_eq!(
            self.slots[parent as usize].state,
            SlotState::Forked,
            "the parent of {leg:?} does not wait"
        );
        self.release(leg);
        self.rejoin(parent)
    }

    /// Returns the number of commands of hosts in flight.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.used - self.free.len() as u32
    }

    /// Returns the number of commands that layers have made themselves, and of children, in flight.
    #[inline]
    pub fn children(&self) -> u32 {
        self.children
    }

    /// Returns the number of commands of one controller in flight.
    #[inline]
    pub fn in_flight_of(&self, controller: u8) -> u32 {
        self.of[usize::from(controller)]
    }

    /// Returns the number of commands of hosts that can be in flight.
    pub fn limit(&self) -> u32 {
        self.limits.commands
    }

    /// Returns how many more commands can be admitted.
    #[inline]
    pub fn room(&self) -> u32 {
        self.limits.commands - self.in_flight()
    }

    /// Returns the number of a command's slot, below the limit of commands for one that a host submitted.
    #[inline]
    pub fn number(&self, command: &Command) -> usize {
        command.index()
    }

    /// Returns the commands of hosts, each with the number of its slot and its entry.
    pub fn commands(&self) -> impl Iterator<Item = (usize, &Slot, &SubmissionEntry)> {
        let [commands, _] = self.ranges();
        let records = &self.handover.get().commands;
        let all = self.slots[commands].iter().zip(records).enumerate();
        let used = all.filter(|(_, (slot, _))| slot.state != SlotState::Free);
        used.map(|(number, (slot, record))| (number, slot, &record.entry))
    }

    /// Returns the slot of this number, if it is in use.
    pub fn used(&self, number: usize) -> Option<&Slot> {
        self.slots.get(number).filter(|slot| slot.state != SlotState::Free)
    }

    /// Returns every slot in use, for the few operations on all commands: an unmap, an Abort, a snapshot.
    pub fn live(&self) -> impl Iterator<Item = &Slot> {
        let [commands, children] = self.ranges();
        let used = self.slots[commands].iter().chain(&self.slots[children]);
        used.filter(|slot| slot.state != SlotState::Free)
    }

    /// Returns every slot in use, for marking it.
    pub fn live_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        let [commands, children] = self.ranges();
        let (first, second) = self.slots.split_at_mut(self.limits.commands as usize);
        let used = first[commands].iter_mut().chain(&mut second[..children.len()]);
        used.filter(|slot| slot.state != SlotState::Free)
    }
}
