//! Commands on their way through the layers of the namespaces.

use crate::model::{Namespace, Subsystem};
use crate::state::ana::Ana;
use crate::state::health::Health;
use crate::state::limits::NAMESPACES_MAX;
use crate::state::polls::Polls;
use crate::state::reservation::HostId;
use sluice_command::{Aborted, Busy, Command, Controllers, NodeId, Origin, Slab, Stack, Ticket};
use sluice_memory::{Removed, SharedRegion, Space};
use sluice_nvme::Status;

/// Namespaces whose layers expire in one turn. Each may free tens of MiB then.
const EXPIRED_AT_ONCE: usize = 4;

/// Namespace of a command that was just fetched, with all that its check and its start need.
pub(crate) struct Target<'a> {
    pub(crate) index: u32,
    pub(crate) namespace: &'a mut Namespace,
    pub(crate) slab: &'a mut Slab,
    pub(crate) staging: &'a SharedRegion,
    pub(crate) health: &'a mut Health,
    pub(crate) ana: &'a Ana,
    pub(crate) hosts: &'a [HostId],
    pub(crate) done: &'a mut Vec<Command>,
    touched: &'a mut Vec<u8>,
}

impl Target<'_> {
    /// Sends a command to the router of its namespace.
    #[inline]
    pub(crate) fn send(self, command: Command, now_ns: u64) {
        self.namespace.router.submit(command, self.slab, now_ns);
        touch(self.namespace, self.index, self.touched);
    }

    /// Sends a command to the router of its namespace, which notes its stages.
    pub(crate) fn send_traced(self, command: Command, now_ns: u64) {
        self.namespace.router.submit_traced(command, self.slab, now_ns);
        touch(self.namespace, self.index, self.touched);
    }

    /// Sends a command unchanged, as its host wrote it, to the router of its namespace.
    #[inline]
    pub(crate) fn pass(self, command: Command, now_ns: u64) {
        self.namespace.router.pass(command, self.slab, now_ns);
        touch(self.namespace, self.index, self.touched);
    }
}

impl Subsystem {
    /// Returns the namespace of a command that was just fetched.
    #[inline]
    pub(crate) fn target(&mut self, nsid: u32) -> Option<Target<'_>> {
        let Self { namespaces, slab, staging, health, ana, hosts, done, touched, .. } = self;
        let index = nsid.wrapping_sub(1);
        let Some(Some(namespace)) = namespaces.get_mut(index as usize) else { return None };
        Some(Target { index, namespace, slab, staging, health, ana, hosts, done, touched })
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

    /// Delivers the result of an asynchronous engine. Bits 39:32 of the token name the layer, 47:40 the
    /// namespace, 31:0 are the ticket.
    pub fn event(&mut self, token: u64, result: i32, now_ns: u64) {
        let index = (token >> 40) as usize & 0xff;
        let (node, ticket) = (NodeId((token >> 32) as u8), Ticket(token as u32));
        let Some(Some(namespace)) = self.namespaces.get_mut(index) else { return };
        namespace.router.event(node, ticket, result, &mut self.slab, now_ns);
        touch(namespace, index as u32, &mut self.touched);
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

    /// Polls the layers that have to be polled, and returns the amount of work they had. Only the first
    /// controller of a round polls; the layers follow the memory of the other controllers' hosts. A subsystem
    /// without a turn of a controller passes [`Origin::SUBSYSTEM`] as the controller.
    pub(crate) fn poll(&mut self, controller: u8, space: &Space, now_ns: u64) -> usize {
        if let Polls::EachRound(round) = &mut self.polls
            && controller != Origin::SUBSYSTEM
            && !round.begins_with(controller, now_ns)
        {
            self.each_stack().for_each(|stack| stack.follow_memory(controller, space));
            return 0;
        }
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
        self.shares_memory() && self.each_stack().fold(false, |work, stack| stack.arm() | work)
    }

    pub fn disarm(&mut self) {
        if self.shares_memory() {
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

    /// Ends these commands where they are in the layer at the position `at` of a namespace's chain, or below it.
    pub(crate) fn abort_target(&mut self, nsid: u32, at: usize, which: Aborted, why: Status, now_ns: u64) {
        let index = nsid.wrapping_sub(1);
        let Some(Some(namespace)) = self.namespaces.get_mut(index as usize) else { return };
        namespace.router.stack_mut().abort_below(at, which, why, &mut self.slab, now_ns);
        touch(namespace, index, &mut self.touched);
    }

    /// Expires layers whose time has come. The number of namespaces is limited so that a turn stays short;
    /// the next turn goes on behind them.
    pub(crate) fn expire_layers(&mut self, now_ns: u64) {
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

#[inline]
fn touch(namespace: &mut Namespace, index: u32, touched: &mut Vec<u8>) {
    if !namespace.touched {
        namespace.touched = true;
        touched.push(index as u8);
    }
}
