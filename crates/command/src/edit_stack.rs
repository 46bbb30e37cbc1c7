//! Insertion of a layer into a stack at work, and its removal. Both are for a drive that has no command of a
//! host in flight; commands that layers made themselves may be in flight.

use crate::stack::{Node, StackBuilder, polled};
use crate::{Aborted, Characteristics, Command, Lane, Layer, NodeId, Slab, Stack, StackError};
use sluice_nvme::Status;
use std::mem;

/// Error: commands are under way in a layer that is to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// A layer that is in a stack, or is about to be.
#[derive(Clone, Copy, Debug)]
pub struct Insertion {
    /// Characteristics below the layer.
    pub under: Characteristics,
    /// Characteristics of the layer.
    pub layer: Characteristics,
}

/// Placeholder of a removed layer.
pub(crate) struct RemovedLayer;

impl Layer for RemovedLayer {
    fn name(&self) -> &'static str {
        "gone"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics::target(0, 512)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::INTERNAL_ERROR);
    }
}

impl Node {
    fn leave(&mut self) {
        self.layer = Box::new(RemovedLayer);
        (self.below, self.sizes) = (Vec::new(), Vec::new());
        (self.characteristics, self.gone) = (Characteristics::target(0, 512), true);
        self.counted = false;
    }
}

impl Stack {
    /// Returns the layers of the first path: the root, the first layer below it, and so on to the target.
    pub fn chain(&self) -> Vec<NodeId> {
        let below = |node: &NodeId| self.nodes[usize::from(node.0)].below.first().copied();
        std::iter::successors(Some(self.root), below).collect()
    }

    /// Returns whether a command is in flight that passed a layer above the position `at` of the
    /// [`chain`](Self::chain).
    pub fn is_crossed(&self, at: usize, slab: &Slab) -> bool {
        let chain = self.chain();
        let above = &chain[..at.min(chain.len())];
        slab.live().any(|slot| above.iter().any(|node| slot.passes(*node)))
    }

    /// Inserts a layer into the [`chain`](Self::chain), over the layer at the position `at`. `build` adds the
    /// layer and all others that it stands on, and `accept` decides in the end.
    ///
    /// # Errors
    /// Those of `build` and `accept`; no such position; a stack that is too deep. Nothing has changed then.
    pub fn insert<E: From<StackError>>(
        &mut self,
        at: usize,
        build: impl FnOnce(NodeId, &mut StackBuilder) -> Result<NodeId, E>,
        accept: impl FnOnce(Insertion) -> Result<(), E>,
    ) -> Result<(), E> {
        let (above, under, new) = self.add(at, build, accept)?;
        self.relink(above, under, new);
        Ok(())
    }

    /// Replaces the layer at the position `at` of the [`chain`](Self::chain), and all below it, by the layer that
    /// `build` adds. `accept` decides in the end.
    ///
    /// # Errors
    /// Those of `build` and `accept`; no such position; a stack that is too deep. Nothing has changed then.
    pub fn exchange<E: From<StackError>>(
        &mut self,
        at: usize,
        build: impl FnOnce(&mut StackBuilder) -> Result<NodeId, E>,
        accept: impl FnOnce(Insertion) -> Result<(), E>,
    ) -> Result<(), E> {
        let (above, old, new) = self.add(at, |_, builder| build(builder), accept)?;
        for node in self.tree(old) {
            self.nodes[usize::from(node.0)].leave();
        }
        self.relink(above, old, new);
        Ok(())
    }

    /// Returns whether no command is in the layer at the position `at` of the [`chain`](Self::chain) and below it.
    pub fn is_idle(&self, at: usize, slab: &Slab) -> bool {
        let tree = self.chain().get(at).map(|node| self.tree(*node)).unwrap_or_default();
        let are_idle = tree.iter().all(|node| self.nodes[usize::from(node.0)].layer.is_idle());
        let moves = self.traffic.down.iter().any(|(to, _)| tree.contains(to));
        are_idle && !moves && !slab.live().any(|slot| tree.iter().any(|node| slot.passes(*node)))
    }

    /// Aborts these commands where they are in the layer at the position `at` of the [`chain`](Self::chain), or
    /// below it.
    pub fn abort_below(&mut self, at: usize, which: Aborted, why: Status, slab: &mut Slab, now_ns: u64) {
        let tree = self.chain().get(at).map(|node| self.tree(*node)).unwrap_or_default();
        for node in tree {
            self.with(node, slab, now_ns, |layer, lane| layer.abort(which, why, lane));
        }
    }

    /// Returns the position in the [`chain`](Self::chain) of the first layer of this kind.
    pub fn position(&self, kind: &str) -> Option<usize> {
        self.chain().iter().position(|node| self.nodes[usize::from(node.0)].layer.name() == kind)
    }

    /// Adds a layer that is to stand in the [`chain`](Self::chain) over the layer at the position `at`, or in its
    /// place. Returns the layer above it, the one at the position, and the new one.
    fn add<E: From<StackError>>(
        &mut self,
        at: usize,
        build: impl FnOnce(NodeId, &mut StackBuilder) -> Result<NodeId, E>,
        accept: impl FnOnce(Insertion) -> Result<(), E>,
    ) -> Result<(Option<NodeId>, NodeId, NodeId), E> {
        let chain = self.chain();
        let under = *chain.get(at).ok_or(StackError::NoSuchLayer(NodeId(u8::MAX)))?;
        let before: Vec<bool> = self.nodes.iter().map(|node| !node.gone).collect();
        let mut builder = StackBuilder { nodes: mem::take(&mut self.nodes) };
        let built = build(under, &mut builder);
        self.nodes = builder.nodes;
        let accepted = built.and_then(|new| {
            let [of_layer, of_under] =
                [new, under].map(|node| self.nodes[usize::from(node.0)].characteristics);
            let of_root = self.nodes[usize::from(self.root.0)].characteristics;
            let depth = usize::from(of_layer.depth) + at;
            if depth.max(of_root.depth.into()) > crate::Frame::MAX {
                return Err(StackError::TooDeep { depth }.into());
            }
            accept(Insertion { under: of_under, layer: of_layer }).map(|()| new)
        });
        self.touched.grow(self.nodes.len());
        match accepted {
            Ok(new) => Ok((at.checked_sub(1).map(|above| chain[above]), under, new)),
            Err(error) => {
                let stays = |index: usize| before.get(index).copied().unwrap_or(false);
                let nodes = self.nodes.iter_mut().enumerate();
                nodes.filter(|(index, _)| !stays(*index)).for_each(|(_, node)| node.leave());
                Err(error)
            }
        }
    }

    /// Removes the layer at the position `at` of the [`chain`](Self::chain), with all others that only it
    /// stands on. Commands that only waited in the layer continue below. Returns the layer in its place.
    ///
    /// # Errors
    /// The layer has commands under way, or cannot report whether it has.
    pub fn take_out(&mut self, at: usize, slab: &mut Slab, now_ns: u64) -> Result<NodeId, Busy> {
        let chain = self.chain();
        let (&node, &under) = chain.get(at).zip(chain.get(at + 1)).ok_or(Busy)?;
        let mut going = self.aside(node);
        going.push(node);
        if slab.live().any(|slot| going.iter().any(|node| slot.passes(*node))) {
            return Err(Busy);
        }
        let mut leaves = false;
        self.with(node, slab, now_ns, |layer, lane| leaves = layer.leave(lane));
        if !leaves {
            return Err(Busy);
        }
        for (to, _) in self.traffic.down.iter_mut().filter(|(to, _)| *to == node) {
            *to = under;
        }
        self.unlink(at);
        Ok(under)
    }

    /// Removes a layer that is known to have no command, without calling it.
    pub fn unlink(&mut self, at: usize) {
        let chain = self.chain();
        let Some((&node, &under)) = chain.get(at).zip(chain.get(at + 1)) else { return };
        for going in self.aside(node).into_iter().chain([node]) {
            self.nodes[usize::from(going.0)].leave();
        }
        self.relink(at.checked_sub(1).map(|above| chain[above]), node, under);
    }

    /// Returns the layer at this position of the [`chain`](Self::chain), if there is a layer below it.
    pub fn insertion(&self, at: usize) -> Option<Insertion> {
        let chain = self.chain();
        let of = |at: usize| chain.get(at).and_then(|node| self.characteristics_at(*node));
        of(at).zip(of(at + 1)).map(|(layer, under)| Insertion { under, layer })
    }

    /// Leads the edge to `from`, or the entry of the stack, to `to`.
    fn relink(&mut self, above: Option<NodeId>, from: NodeId, to: NodeId) {
        match above {
            Some(above) => {
                let edges = &mut self.nodes[usize::from(above.0)].below;
                edges.iter_mut().filter(|edge| **edge == from).for_each(|edge| *edge = to);
            }
            None => self.root = to,
        }
        self.polled = polled(&self.nodes);
        self.derive();
    }

    /// Returns the layers below `node` that are not in the chain.
    fn aside(&self, node: NodeId) -> Vec<NodeId> {
        let aside = self.nodes[usize::from(node.0)].below.iter().skip(1).copied();
        self.with_all_below(aside.collect())
    }

    /// Returns `node` and all layers below it.
    fn tree(&self, node: NodeId) -> Vec<NodeId> {
        self.with_all_below(vec![node])
    }

    /// Returns these layers and all below them.
    fn with_all_below(&self, mut found: Vec<NodeId>) -> Vec<NodeId> {
        let mut next = 0;
        while let Some(node) = found.get(next) {
            found.extend_from_slice(&self.nodes[usize::from(node.0)].below.clone());
            next += 1;
        }
        found
    }

    /// Returns all layers, each after those below it.
    pub(crate) fn order(&self) -> Vec<NodeId> {
        let mut order: Vec<NodeId> = Vec::new();
        let is_next = |order: &[NodeId], id: NodeId| {
            let node = &self.nodes[usize::from(id.0)];
            !node.gone && !order.contains(&id) && node.below.iter().all(|below| order.contains(below))
        };
        let all = || (0..self.nodes.len()).map(|index| NodeId(index as u8));
        while let Some(next) = all().find(|id| is_next(&order, *id)) {
            order.push(next);
        }
        order
    }

    /// Derives the characteristics of every layer from those of the layers below it.
    pub(crate) fn derive(&mut self) {
        self.count_new_layers();
        for id in self.order() {
            let below = self.nodes[usize::from(id.0)].below.iter();
            let below: Vec<_> = below.map(|node| self.nodes[usize::from(node.0)].characteristics).collect();
            let node = &mut self.nodes[usize::from(id.0)];
            node.sizes = below.iter().map(|c| c.size).collect();
            node.characteristics = node.layer.characteristics(&below);
        }
    }
}
