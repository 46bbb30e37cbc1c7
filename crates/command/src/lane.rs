//! Operations of a layer on a command.

use crate::{Aborted, Command, Controllers, Frame, NodeId, Request, Slab, Slot, Ticket};
use sluice_memory::Segment;
use sluice_nvme::{Status, SubmissionEntry};
use std::collections::VecDeque;

/// Commands between two layers, until the stack processes them.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Commands on their way down, each with the node that receives it.
    pub(crate) down: VecDeque<(NodeId, Command)>,
    /// Commands on their way up, with frames or a parent to return to.
    pub(crate) up: VecDeque<Command>,
    /// Finished commands, for which nothing in the stack waits any more.
    pub(crate) done: Vec<Command>,
}

impl Traffic {
    #[inline]
    pub(crate) fn is_moving(&self) -> bool {
        !self.down.is_empty() || !self.up.is_empty()
    }
}

/// Context of a layer while it processes a command.
#[derive(Debug)]
pub struct Lane<'a> {
    pub(crate) slab: &'a mut Slab,
    pub(crate) traffic: &'a mut Traffic,
    /// Edges of the node and the sizes at their ends.
    pub(crate) here: Here<'a>,
    now_ns: u64,
}

/// Parts of a node that are not the layer itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here<'a> {
    pub(crate) node: NodeId,
    pub(crate) below: &'a [NodeId],
    pub(crate) sizes: &'a [u64],
}

impl<'a> Lane<'a> {
    pub(crate) fn new(slab: &'a mut Slab, traffic: &'a mut Traffic, here: Here<'a>, now_ns: u64) -> Self {
        Self { slab, traffic, here, now_ns }
    }

    /// Returns the time of this turn, nanoseconds of a monotonic clock.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the bytes of the layer at the end of edge `edge`.
    #[inline]
    pub fn size_below(&self, edge: usize) -> u64 {
        self.here.sizes[edge]
    }

    #[inline]
    pub fn slot(&self, command: &Command) -> &Slot {
        self.slab.slot(command)
    }

    #[inline]
    pub fn slot_mut(&mut self, command: &Command) -> &mut Slot {
        self.slab.slot_mut(command)
    }

    /// Finishes the command in this layer, with this status.
    #[inline]
    pub fn finish(&mut self, command: Command, status: Status) {
        let slot = self.slab.slot_mut(&command);
        slot.status = status;
        if slot.frames.is_empty() && !slot.owner.is_fork() {
            self.traffic.done.push(command);
        } else {
            self.traffic.up.push_back(command);
        }
    }

    /// Forwards a command to the layer below; it does not come back to this layer.
    #[inline]
    pub fn forward(&mut self, command: Command) {
        self.forward_to(0, command);
    }

    /// Forwards a command to the layer at the end of edge `edge`; it does not come back to this layer.
    #[inline]
    pub fn forward_to(&mut self, edge: usize, command: Command) {
        let request = self.slab.slot(&command).request;
        // The last check of an address is the one that counts: a layer that computed a range outside of the
        // layer below must not reach it.
        if request.end() > self.here.sizes[edge] {
            return self.finish(command, Status::LBA_OUT_OF_RANGE);
        }
        self.traffic.down.push_back((self.here.below[edge], command));
    }

    /// Forwards a command to a layer below, from which it returns to [`Layer::resume`](crate::Layer::resume)
    /// with this stage and data.
    pub fn forward_with(&mut self, edge: usize, command: Command, stage: u8, data: [u64; 2]) {
        let frame = Frame { node: self.here.node, stage, data };
        self.slab.slot_mut(&command).frames.push(frame);
        self.forward_to(edge, command);
    }

    /// Parks the command until an engine returns the ticket.
    #[inline]
    pub fn park(&mut self, command: Command) -> Ticket {
        self.slab.park(command)
    }

    /// Takes a parked command up; none if the ticket is stale.
    #[inline]
    pub fn unpark(&mut self, ticket: Ticket) -> Option<Command> {
        self.slab.unpark(ticket)
    }

    /// Returns the entry of a command as its host submitted it; of a leg, its command's.
    pub fn entry(&self, command: &Command) -> &SubmissionEntry {
        self.slab.entry_of(command.index())
    }

    /// Returns the entry of a parked command; none if the ticket is stale.
    pub fn parked_entry(&self, ticket: Ticket) -> Option<&SubmissionEntry> {
        self.slab.parked(ticket).map(|_| self.slab.entry_of(ticket.index()))
    }

    /// Returns the slot of a parked command.
    pub fn parked(&self, ticket: Ticket) -> Option<&Slot> {
        self.slab.parked(ticket)
    }

    pub fn parked_mut(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        self.slab.parked_mut(ticket)
    }

    /// Sends a command of the layer itself, of no host, to the layer at the end of edge `edge`. The command
    /// returns to [`Layer::resume`](crate::Layer::resume) with `stage` and `note`, and is
    /// [discarded](Self::discard) there.
    ///
    /// # Panics
    /// If the layer has more commands in flight than its [characteristics](crate::Characteristics::requests)
    /// declare.
    pub fn originate(
        &mut self,
        edge: usize,
        request: Request,
        data: Option<Segment>,
        stage: u8,
        note: [u64; 2],
    ) {
        let command = self.slab.original();
        let slot = self.slab.slot_mut(&command);
        slot.request = request;
        if let Some(segment) = data {
            slot.data.push(segment).expect("one segment is not too many");
        }
        self.forward_with(edge, command, stage, note);
    }

    /// Frees a command that this layer [made](Self::originate), after its return.
    pub fn discard(&mut self, command: Command) {
        debug_assert!(!self.slab.slot(&command).origin.is_host(), "hosts wait for theirs");
        self.slab.release(command);
    }

    /// Returns whether a parked command came through one of these controllers, or is part of such a command;
    /// false if a layer above made it.
    pub fn is_of(&self, controllers: Controllers, ticket: Ticket) -> bool {
        !controllers.is_empty()
            && self.parked(ticket).is_some_and(|slot| controllers.has(slot.origin.controller))
    }

    /// Returns whether a parked command is one that is to end early.
    pub fn is_aborted(&self, which: Aborted, ticket: Ticket) -> bool {
        self.parked(ticket).is_some_and(|slot| which.has(&slot.origin))
    }

    /// Splits a command into `count` children. `prepare` receives each child's number and slot beside the
    /// parent's. It fills in the child's request and data, and returns the edge that the child goes down.
    /// When the last child is back the parent returns to [`Layer::resume`](crate::Layer::resume) with `stage`
    /// and `data`.
    pub fn fork(
        &mut self,
        parent: Command,
        count: u32,
        stage: u8,
        data: [u64; 2],
        mut prepare: impl FnMut(u32, &Slot, &mut Slot) -> usize,
    ) {
        assert!(count > 0, "a fork into nothing would never return");
        let slot = self.slab.slot_mut(&parent);
        slot.frames.push(Frame { node: self.here.node, stage, data });
        slot.status = Status::SUCCESS;
        let parent = self.slab.fork(parent);
        // Counted before the first child starts, so that a child that fails at once does not look like the
        // last.
        self.slab.at(parent).pending = count;
        for number in 0..count {
            let child = self.slab.child(parent);
            let (parent_slot, child_slot) = self.slab.pair_mut(parent, &child);
            let edge = prepare(number, parent_slot, child_slot);
            self.forward_to(edge, child);
        }
    }
}
