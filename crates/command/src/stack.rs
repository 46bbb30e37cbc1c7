//! Layers of a drive as a tree, and the loop that moves commands through it.

use crate::lane::{Here, Traffic};
use crate::layer_counters::NamespaceCounters;
use crate::slot::Owner;
use crate::{Aborted, Characteristics, Command, Controllers, Frame, Lane, Layer, Slab, Ticket, TraceStage};
use sluice_memory::{Removed, Space};
use sluice_nvme::Status;
use std::fmt;
use zerocopy::FromZeros;

/// Number of a layer in its stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, FromZeros)]
pub struct NodeId(pub u8);

/// A layer with the edges to the layers below.
pub(crate) struct Node {
    pub(crate) layer: Box<dyn Layer>,
    pub(crate) below: Vec<NodeId>,
    /// Bytes of the layer at the end of each edge.
    pub(crate) sizes: Vec<u64>,
    pub(crate) characteristics: Characteristics,
    /// The layer received a command since its last flush.
    touched: bool,
    /// The layer is a target whose size does not depend on the namespace's.
    fixed: bool,
    /// The layer was removed: the number is free for another layer.
    pub(crate) gone: bool,
    /// The commands of the layer are counted.
    pub(crate) counted: bool,
}

/// Reason for which a stack cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackError {
    /// The stack is deeper than the number of a command's frames.
    TooDeep {
        depth: usize,
    },
    TooManyLayers,
    /// An edge to a layer that was not added before.
    NoSuchLayer(NodeId),
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooDeep { depth } => {
                write!(f, "the stack is {depth} layers deep; at most {} are possible", Frame::MAX)
            }
            Self::TooManyLayers => write!(f, "the stack has more than {} layers", u8::MAX),
            Self::NoSuchLayer(node) => write!(f, "layer {} is used before it was added", node.0),
        }
    }
}

impl std::error::Error for StackError {}

/// Builder of a stack from the bottom up: targets first, then the layers above them.
#[derive(Default)]
pub struct StackBuilder {
    pub(crate) nodes: Vec<Node>,
}

impl fmt::Debug for StackBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes.iter().map(|node| node.layer.name())).finish()
    }
}

impl StackBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the identifier that the next [`add`](Self::add) will return: engines need it beforehand.
    pub fn next_id(&self) -> NodeId {
        let free = self.nodes.iter().position(|node| node.gone);
        NodeId(free.unwrap_or(self.nodes.len()) as u8)
    }

    /// Adds a layer over others that were added before.
    pub fn add(&mut self, layer: Box<dyn Layer>, below: &[NodeId]) -> Result<NodeId, StackError> {
        let id = self.next_id();
        if id == NodeId(u8::MAX) {
            return Err(StackError::TooManyLayers);
        }
        let mut under = Vec::with_capacity(below.len());
        for node in below {
            let found = self.nodes.get(usize::from(node.0)).filter(|node| !node.gone);
            let found = found.ok_or(StackError::NoSuchLayer(*node))?;
            under.push(found.characteristics);
        }
        let characteristics = layer.characteristics(&under);
        if usize::from(characteristics.depth) > Frame::MAX {
            return Err(StackError::TooDeep { depth: usize::from(characteristics.depth) });
        }
        let sizes = under.iter().map(|c| c.size).collect();
        let below = below.to_vec();
        let (touched, fixed, gone, counted) = (false, false, false, false);
        let node = Node { layer, below, sizes, characteristics, touched, fixed, gone, counted };
        match self.nodes.get_mut(usize::from(id.0)) {
            // A pending flush of the previous layer flushes this one.
            Some(free) => *free = Node { touched: free.touched, ..node },
            None => self.nodes.push(node),
        }
        Ok(id)
    }

    /// Returns the bytes of a layer that was added before; zero for another one.
    pub fn size_of(&self, node: NodeId) -> u64 {
        self.nodes.get(usize::from(node.0)).map_or(0, |node| node.characteristics.size)
    }

    /// Keeps the size of this target when the namespace is resized.
    pub fn fix(&mut self, target: NodeId) {
        self.nodes[usize::from(target.0)].fixed = true;
    }

    /// Returns the finished stack; the layer added last is its root.
    pub fn build(self) -> Stack {
        assert!(!self.nodes.is_empty(), "a stack has at least a target");
        let root = NodeId(self.nodes.len() as u8 - 1);
        let touched = Touched::new(self.nodes.len());
        let polled = polled(&self.nodes);
        Stack { nodes: self.nodes, traffic: Traffic::default(), root, touched, polled, counters: None }
    }
}

/// Returns the layers that are polled.
pub(crate) fn polled(nodes: &[Node]) -> Box<[NodeId]> {
    let numbered = (0..).map(NodeId).zip(nodes);
    numbered.filter(|(_, node)| !node.gone && node.layer.polls()).map(|(id, _)| id).collect()
}

/// All layers of one namespace.
pub struct Stack {
    pub(crate) nodes: Vec<Node>,
    pub(crate) traffic: Traffic,
    pub(crate) root: NodeId,
    /// Nodes to flush at the end of the batch.
    pub(crate) touched: Touched,
    /// Nodes that are polled.
    pub(crate) polled: Box<[NodeId]>,
    /// Counters of the layers, if they are counted.
    pub(crate) counters: Option<NamespaceCounters>,
}

/// Set of layers that never grows during a submit: a function call there would cost more than the rest of the
/// submit.
pub(crate) struct Touched {
    nodes: Box<[NodeId]>,
    count: usize,
}

impl Touched {
    fn new(layers: usize) -> Self {
        Self { nodes: vec![NodeId(0); layers].into_boxed_slice(), count: 0 }
    }

    /// Makes room for this many layers.
    pub(crate) fn grow(&mut self, layers: usize) {
        let mut nodes = std::mem::take(&mut self.nodes).into_vec();
        nodes.resize(layers.max(nodes.len()), NodeId(0));
        self.nodes = nodes.into_boxed_slice();
    }

    #[inline]
    fn push(&mut self, node: NodeId) {
        self.nodes[self.count] = node;
        self.count += 1;
    }

    #[inline]
    fn pop(&mut self) -> Option<NodeId> {
        self.count = self.count.checked_sub(1)?;
        self.nodes.get(self.count).copied()
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Stack {
    /// Creates a stack of a single target.
    pub fn of(target: Box<dyn Layer>) -> Self {
        let mut builder = StackBuilder::new();
        builder.add(target, &[]).expect("one layer is not too many");
        builder.build()
    }

    /// Returns the topmost layer, where commands enter unless their path starts elsewhere.
    pub fn root(&self) -> NodeId {
        self.root
    }

    /// Returns the characteristics of the whole stack.
    pub fn characteristics(&self) -> Characteristics {
        self.nodes[usize::from(self.root.0)].characteristics
    }

    /// Returns the characteristics below a command that enters at `node`; none if there is no such layer.
    pub fn characteristics_at(&self, node: NodeId) -> Option<Characteristics> {
        self.nodes.get(usize::from(node.0)).filter(|node| !node.gone).map(|node| node.characteristics)
    }

    /// Returns the slots for commands that layers make themselves, and for their children.
    pub fn reserve(&self) -> u32 {
        let fan_out = |id: &NodeId| self.nodes[usize::from(id.0)].characteristics.fan_out;
        let slots = |node: &Node| {
            let each = node.below.iter().map(fan_out).max().unwrap_or(0).saturating_add(1);
            node.characteristics.requests.saturating_mul(each)
        };
        self.nodes.iter().map(slots).fold(0, u32::saturating_add)
    }

    /// Returns the layers' kinds, topmost first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let topmost_first = self.order().into_iter().rev();
        topmost_first.map(|node| self.nodes[usize::from(node.0)].layer.name())
    }

    /// Hands a command to a layer. Finished commands are returned by
    /// [`run_completions`](Self::run_completions).
    // Always inlined: the call would cost each command more than the copies of this function cost in size.
    #[inline(always)]
    pub fn submit(&mut self, entry: NodeId, command: Command, slab: &mut Slab, now_ns: u64) {
        let node = &mut self.nodes[usize::from(entry.0)];
        if !node.touched {
            node.touched = true;
            self.touched.push(entry);
        }
        let here = Here { node: entry, below: &node.below, sizes: &node.sizes };
        node.layer.submit(command, &mut Lane::new(slab, &mut self.traffic, here, now_ns));
    }

    /// Hands a command to a layer that passes it to a device as its host wrote it.
    pub fn pass(&mut self, entry: NodeId, command: Command, slab: &mut Slab, now_ns: u64) {
        let node = &mut self.nodes[usize::from(entry.0)];
        if !node.touched {
            node.touched = true;
            self.touched.push(entry);
        }
        self.with(entry, slab, now_ns, |layer, lane| layer.pass(command, lane));
    }

    /// Delivers an engine's answer to the layer `at`.
    pub fn event(&mut self, at: NodeId, ticket: Ticket, result: i32, slab: &mut Slab, now_ns: u64) {
        self.with(at, slab, now_ns, |layer, lane| layer.event(ticket, result, lane));
    }

    /// Processes all commands between the layers, flushes the layers that received commands, and moves the
    /// finished commands to `done`.
    #[inline]
    pub fn run_completions(&mut self, slab: &mut Slab, now_ns: u64, done: &mut Vec<Command>) {
        loop {
            if self.traffic.is_moving() {
                self.drain(slab, now_ns);
            }
            let Some(node) = self.touched.pop() else { break };
            self.nodes[usize::from(node.0)].touched = false;
            self.with(node, slab, now_ns, |layer, lane| layer.flush(lane));
        }
        match done.is_empty() {
            true => std::mem::swap(done, &mut self.traffic.done),
            false => done.append(&mut self.traffic.done),
        }
    }

    fn drain(&mut self, slab: &mut Slab, now_ns: u64) {
        loop {
            if let Some((node, command)) = self.traffic.down.pop_front() {
                self.submit(node, command, slab, now_ns);
            } else if let Some(command) = self.traffic.up.pop_front() {
                self.complete_up(command, slab, now_ns);
            } else {
                break;
            }
        }
    }

    /// Moves a command one step up: to the layer that pushed the topmost frame, or into the parent.
    fn complete_up(&mut self, command: Command, slab: &mut Slab, now_ns: u64) {
        if let Some(frame) = slab.slot_mut(&command).frames.pop() {
            let Some(node) = self.nodes.get_mut(usize::from(frame.node.0)) else {
                return self.return_traced(command, slab, now_ns);
            };
            let here = Here { node: frame.node, below: &node.below, sizes: &node.sizes };
            node.layer.resume(command, frame, &mut Lane::new(slab, &mut self.traffic, here, now_ns));
        } else if let Owner::Fork(parent) = slab.slot(&command).owner {
            self.join(parent, command, slab, now_ns);
        } else {
            self.traffic.done.push(command);
        }
    }

    /// Notes the return of a traced command, whose frame of no layer was taken.
    #[cold]
    fn return_traced(&mut self, command: Command, slab: &mut Slab, now_ns: u64) {
        slab.note_stage(&command, TraceStage::Returned);
        self.complete_up(command, slab, now_ns);
    }

    fn join(&mut self, parent: u32, child: Command, slab: &mut Slab, now_ns: u64) {
        let (parent_slot, child_slot) = slab.pair_mut(parent, &child);
        let forker = parent_slot.frames.top().expect("a forked command has its forker's frame").node;
        self.nodes[usize::from(forker.0)].layer.child_done(parent_slot, child_slot);
        parent_slot.pending -= 1;
        let last = parent_slot.pending == 0;
        slab.release(child);
        if last {
            let parent = slab.rejoin(parent);
            self.complete_up(parent, slab, now_ns);
        }
    }

    #[inline]
    pub(crate) fn with(
        &mut self,
        at: NodeId,
        slab: &mut Slab,
        now_ns: u64,
        run: impl FnOnce(&mut dyn Layer, &mut Lane<'_>),
    ) {
        let Some(node) = self.nodes.get_mut(usize::from(at.0)) else { return };
        let here = Here { node: at, below: &node.below, sizes: &node.sizes };
        run(node.layer.as_mut(), &mut Lane::new(slab, &mut self.traffic, here, now_ns));
    }

    /// Returns the earliest deadline of a layer.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.nodes.iter().filter_map(|node| node.layer.deadline_ns()).min()
    }

    /// Calls the layers whose deadline has come.
    pub fn expire(&mut self, slab: &mut Slab, now_ns: u64) {
        for index in 0..self.nodes.len() {
            if self.nodes[index].layer.deadline_ns().is_some_and(|deadline| deadline <= now_ns) {
                self.with(NodeId(index as u8), slab, now_ns, |layer, lane| layer.expire(lane));
            }
        }
    }

    /// Ends the commands of these controllers that only wait in a layer: the namespace is being detached from
    /// the controllers, or they are reset.
    pub fn end_waiting(&mut self, of: Controllers, why: Status, slab: &mut Slab, now_ns: u64) {
        for index in 0..self.nodes.len() {
            self.with(NodeId(index as u8), slab, now_ns, |layer, lane| layer.end_waiting(of, why, lane));
        }
    }

    /// Aborts these commands: each ends as soon as nothing of it is under way in a layer.
    pub fn abort(&mut self, which: Aborted, why: Status, slab: &mut Slab, now_ns: u64) {
        for index in 0..self.nodes.len() {
            self.with(NodeId(index as u8), slab, now_ns, |layer, lane| layer.abort(which, why, lane));
        }
    }

    /// Sets the bytes of a block of the namespace.
    pub fn formatted(&mut self, block_size: u32) {
        self.nodes.iter_mut().for_each(|node| node.layer.formatted(block_size));
    }

    /// Returns whether a layer is polled: then [`poll`](Self::poll) is part of every turn.
    pub fn polls(&self) -> bool {
        !self.polled.is_empty()
    }

    /// Polls these layers in a turn of the drive, whose first controller has a host with the memory `space`.
    /// Returns the work done.
    pub fn poll(&mut self, controller: u8, space: &Space, slab: &mut Slab, now_ns: u64) -> usize {
        let Self { nodes, polled, traffic, .. } = self;
        let mut work = 0;
        for id in polled.iter() {
            let node = &mut nodes[usize::from(id.0)];
            let here = Here { node: *id, below: &node.below, sizes: &node.sizes };
            work += node.layer.poll(controller, space, &mut Lane::new(slab, traffic, here, now_ns));
        }
        work
    }

    /// Passes the memory of a host to the polled layers, in a turn of its controller that does not poll.
    pub fn follow_memory(&mut self, controller: u8, space: &Space) {
        self.polled
            .iter()
            .for_each(|id| self.nodes[usize::from(id.0)].layer.follow_memory(controller, space));
    }

    /// Arms the layers before the drive sleeps. Returns whether a layer has work after all.
    pub fn arm(&mut self) -> bool {
        // All layers are armed, also after one that has work: each is disarmed afterwards.
        self.polled.iter().fold(false, |work, id| self.nodes[usize::from(id.0)].layer.arm() | work)
    }

    pub fn disarm(&mut self) {
        self.polled.iter().for_each(|id| self.nodes[usize::from(id.0)].layer.disarm());
    }

    /// Handles memory that the host unmapped.
    pub fn forget_memory(&mut self, removed: &Removed) {
        self.polled.iter().for_each(|id| self.nodes[usize::from(id.0)].layer.forget_memory(removed));
    }

    /// Returns whether an engine beyond the stack may still reach memory that the host unmapped.
    pub fn still_maps(&self, removed: &Removed) -> bool {
        self.polled.iter().any(|id| self.nodes[usize::from(id.0)].layer.still_maps(removed))
    }

    /// Revokes the mappings of a controller whose host is gone or that is reset.
    pub fn revoke(&mut self, controller: u8) {
        self.polled.iter().for_each(|id| self.nodes[usize::from(id.0)].layer.revoke(controller));
    }

    /// Ends a revocation: later commands belong to the next host, or to the controller after its reset.
    pub fn renew(&mut self, controller: u8) {
        self.polled.iter().for_each(|id| self.nodes[usize::from(id.0)].layer.renew(controller));
    }

    /// Returns whether no mapping is left that a revoke is to remove.
    pub fn is_revoked(&self, controller: u8) -> bool {
        self.polled.iter().all(|id| self.nodes[usize::from(id.0)].layer.is_revoked(controller))
    }

    /// Returns the bytes of the target at the bottom, which may differ from those of the stack if a function
    /// changes the size.
    pub fn target_size(&self) -> u64 {
        let mut node = &self.nodes[usize::from(self.root.0)];
        while let Some(below) = node.below.first() {
            node = &self.nodes[usize::from(below.0)];
        }
        node.characteristics.size
    }

    /// Sets the bytes of the target at the bottom, unless it is [fixed](StackBuilder::fix); every layer above
    /// derives its own size anew.
    pub fn resize(&mut self, size: u64) {
        for node in &mut self.nodes {
            if node.below.is_empty() && !node.fixed {
                node.layer.resized(size);
            }
        }
        self.derive();
    }
}
