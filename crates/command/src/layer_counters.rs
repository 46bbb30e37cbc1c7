//! Counters of the layers of a drive. A layer that is counted is wrapped, so that layers that are not counted pay nothing.

use crate::edit_stack::RemovedLayer;
use crate::{
    Aborted, Characteristics, Command, Controllers, Frame, Lane, Layer, NodeId, Operation, Slot, Stack,
    Ticket,
};
use sluice_memory::{Removed, Space};
use sluice_nvme::Status;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use zerocopy::FromZeros;

/// Layers of a namespace that are counted; further ones are not.
pub const COUNTED_LAYERS_MAX: usize = 32;

/// Commands that a layer has received, parts of divided ones too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerCounts {
    pub commands: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// Counters of the layers of all namespaces of a subsystem. Its reactor writes, and any thread reads.
#[derive(Debug, Default)]
pub struct LayerCounters(Box<[Cells]>);

#[derive(Debug, FromZeros)]
struct Cells {
    commands: AtomicU64,
    /// Bytes by operation.
    bytes: [AtomicU64; OPERATIONS],
}

const OPERATIONS: usize = Operation::Deallocate as usize + 1;

impl LayerCounters {
    /// Creates counters for this many namespaces. Memory is used for layers that have had commands. Without memory there
    /// are no counters.
    #[must_use]
    pub fn new(namespaces: usize) -> Self {
        Self(FromZeros::new_box_zeroed_with_elems(namespaces * COUNTED_LAYERS_MAX).unwrap_or_default())
    }

    /// Returns the counters of a layer of the namespace with this index.
    pub fn get(&self, namespace: usize, layer: NodeId) -> Option<LayerCounts> {
        let cells = self.0.get(Self::index(namespace, layer)?)?;
        let bytes = |operation: Operation| cells.bytes[operation as usize].load(Relaxed);
        let (bytes_read, bytes_written) = (bytes(Operation::Read), bytes(Operation::Write));
        Some(LayerCounts { commands: cells.commands.load(Relaxed), bytes_read, bytes_written })
    }

    fn index(namespace: usize, layer: NodeId) -> Option<usize> {
        let layer = usize::from(layer.0);
        (layer < COUNTED_LAYERS_MAX).then_some(namespace * COUNTED_LAYERS_MAX + layer)
    }
}

/// Counters of one namespace's layers.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceCounters {
    counters: Arc<LayerCounters>,
    namespace: usize,
}

/// A layer whose commands are counted.
struct CountedLayer {
    layer: Box<dyn Layer>,
    counters: Arc<LayerCounters>,
    index: usize,
}

impl CountedLayer {
    #[inline]
    fn count(&self, command: &Command, lane: &Lane<'_>) {
        let request = &lane.slot(command).request;
        if let Some(cells) = self.counters.0.get(self.index) {
            // One thread writes: a load and a store, not a locked instruction.
            cells.commands.store(cells.commands.load(Relaxed).wrapping_add(1), Relaxed);
            let bytes = &cells.bytes[request.operation as usize];
            bytes.store(bytes.load(Relaxed).wrapping_add(request.length), Relaxed);
        }
    }
}

impl Layer for CountedLayer {
    fn name(&self) -> &'static str {
        self.layer.name()
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        self.layer.characteristics(below)
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.count(&command, lane);
        self.layer.submit(command, lane);
    }

    fn pass(&mut self, command: Command, lane: &mut Lane<'_>) {
        self.count(&command, lane);
        self.layer.pass(command, lane);
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        self.layer.resume(command, frame, lane);
    }

    fn child_done(&mut self, parent: &mut Slot, child: &Slot) {
        self.layer.child_done(parent, child);
    }

    fn event(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        self.layer.event(ticket, result, lane);
    }

    fn flush(&mut self, lane: &mut Lane<'_>) {
        self.layer.flush(lane);
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.layer.deadline_ns()
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        self.layer.expire(lane);
    }

    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        self.layer.end_waiting(of, why, lane);
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.layer.abort(which, why, lane);
    }

    fn resized(&mut self, size: u64) {
        self.layer.resized(size);
    }

    fn formatted(&mut self, block_size: u32) {
        self.layer.formatted(block_size);
    }

    fn polls(&self) -> bool {
        self.layer.polls()
    }

    fn poll(&mut self, controller: u8, space: &Space, lane: &mut Lane<'_>) -> usize {
        self.layer.poll(controller, space, lane)
    }

    fn follow_memory(&mut self, controller: u8, space: &Space) {
        self.layer.follow_memory(controller, space);
    }

    fn leave(&mut self, lane: &mut Lane<'_>) -> bool {
        self.layer.leave(lane)
    }

    fn is_idle(&self) -> bool {
        self.layer.is_idle()
    }

    fn arm(&mut self) -> bool {
        self.layer.arm()
    }

    fn disarm(&mut self) {
        self.layer.disarm();
    }

    fn forget_memory(&mut self, removed: &Removed) {
        self.layer.forget_memory(removed);
    }

    fn still_maps(&self, removed: &Removed) -> bool {
        self.layer.still_maps(removed)
    }

    fn revoke(&mut self, controller: u8) {
        self.layer.revoke(controller);
    }

    fn is_revoked(&self, controller: u8) -> bool {
        self.layer.is_revoked(controller)
    }

    fn renew(&mut self, controller: u8) {
        self.layer.renew(controller);
    }
}

impl Stack {
    /// Counts the commands of all layers, and of layers that are added later, as layers of the namespace with this index.
    pub fn count_layers(&mut self, counters: Arc<LayerCounters>, namespace: usize) {
        if self.counters.is_none() {
            self.counters = Some(NamespaceCounters { counters, namespace });
            self.count_new_layers();
        }
    }

    /// Counts the commands of layers that are not counted yet, if any are.
    pub(crate) fn count_new_layers(&mut self) {
        let Some(NamespaceCounters { counters, namespace }) = self.counters.clone() else { return };
        for (id, node) in (0..).map(NodeId).zip(&mut self.nodes) {
            if node.gone || node.counted {
                continue;
            }
            if let Some(index) = LayerCounters::index(namespace, id) {
                let layer = std::mem::replace(&mut node.layer, Box::new(RemovedLayer));
                node.layer = Box::new(CountedLayer { layer, counters: Arc::clone(&counters), index });
                node.counted = true;
            }
        }
    }

    /// Returns the layers with their kinds.
    pub fn layers(&self) -> impl Iterator<Item = (NodeId, &'static str)> {
        let all = (0..).map(NodeId).zip(&self.nodes).filter(|(_, node)| !node.gone);
        all.map(|(id, node)| (id, node.layer.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Origin, Request, Slab, StackBuilder};

    /// A layer that forwards, or finishes where nothing is below.
    struct Step;

    impl Layer for Step {
        fn name(&self) -> &'static str {
            "step"
        }

        fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
            below.first().map_or_else(|| Characteristics::target(1 << 20, 512), |it| it.over())
        }

        fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
            match lane.here.below.is_empty() {
                true => lane.finish(command, Status::SUCCESS),
                false => lane.forward(command),
            }
        }
    }

    #[test]
    fn each_layer_counts_its_commands_and_bytes() {
        let mut builder = StackBuilder::new();
        let target = builder.add(Box::new(Step), &[]).expect("a target");
        let top = builder.add(Box::new(Step), &[target]).expect("a function");
        let (mut stack, counters) = (builder.build(), Arc::new(LayerCounters::new(4)));
        let mut slab = Slab::new(Limits::new(16, 0)).expect("a slab");
        let mut run = |stack: &mut Stack, entry: NodeId, operation: Operation, length: u64| {
            let origin = Origin { sq: 1, ..Origin::default() };
            let command = slab.admit_stamped([0; 8], origin, 0).expect("there is room");
            slab.slot_mut(&command).request = Request { operation, length, ..Request::default() };
            stack.submit(entry, command, &mut slab, 0);
            let mut done = Vec::new();
            stack.run_completions(&mut slab, 0, &mut done);
            done.drain(..).for_each(|command| slab.release(command));
        };
        run(&mut stack, top, Operation::Read, 512);
        stack.count_layers(Arc::clone(&counters), 3);
        run(&mut stack, top, Operation::Read, 512);
        // A layer that is counted already is not counted twice.
        stack.resize(1 << 20);
        run(&mut stack, target, Operation::Write, 4096);
        run(&mut stack, top, Operation::Flush, 0);
        let counts =
            |commands, bytes_read, bytes_written| Some(LayerCounts { commands, bytes_read, bytes_written });
        assert_eq!(counters.get(3, top), counts(2, 512, 0));
        assert_eq!(counters.get(3, target), counts(3, 512, 4096));
        for namespace in 0..3 {
            assert_eq!([target, top].map(|layer| counters.get(namespace, layer)), [counts(0, 0, 0); 2]);
        }
        assert_eq!(counters.get(4, top), None);
        assert_eq!([2, 3].map(|it| counters.get(it, NodeId(COUNTED_LAYERS_MAX as u8))), [None; 2]);
        assert_eq!(stack.layers().collect::<Vec<_>>(), [(target, "step"), (top, "step")]);
    }
}
