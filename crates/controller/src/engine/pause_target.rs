//! Pause of a target, and its replacement by another one, while hosts use the drive.
//!
//! A layer that parks commands stands over a paused target. Commands that are in the target already go on.

use crate::engine::edit_stack::EditStackError;
use crate::model::Subsystem;
use crate::state::mailbox::Notice;
use crate::state::refusal::Refusal;
use sluice_command::{Aborted, Controllers, Deallocated, Insertion, NodeId, StackBuilder};
use sluice_nvme::Status;

impl Subsystem {
    /// Inserts a layer that parks commands over the layer at the position `at` of a namespace's chain. Commands
    /// may be in flight.
    ///
    /// # Errors
    /// Errors of `build`, and refusals. Nothing has changed then.
    pub fn pause_target<E>(
        &mut self,
        nsid: u32,
        at: usize,
        build: impl FnOnce(NodeId, &mut StackBuilder) -> Result<NodeId, E>,
    ) -> Result<(), EditStackError<E>> {
        let namespace = self.get_mut(nsid).ok_or(Refusal::NoSuchNamespace(nsid))?;
        let build = |under, stack: &mut StackBuilder| build(under, stack).map_err(EditStackError::Build);
        namespace.router_mut().insert_for_all(at, build, |_| Ok(()))?;
        namespace.stack_edited();
        self.update_stacks();
        Ok(())
    }

    /// Takes the layer at the position `at` of a namespace's chain out. The commands that wait in it go on.
    pub fn resume_target(&mut self, nsid: u32, at: usize, now_ns: u64) -> Result<(), Refusal> {
        self.take_out(nsid, at, now_ns).map_err(|_| Refusal::Busy)?;
        self.get_mut(nsid).ok_or(Refusal::NoSuchNamespace(nsid))?.stack_edited();
        self.update_stacks();
        // The commands that go on have no turn of their own.
        self.announce(Notice::Resumed);
        Ok(())
    }

    /// Returns whether nothing is in the target at the position `at` of a namespace's chain.
    pub fn is_target_idle(&self, nsid: u32, at: usize) -> bool {
        let stack = self.get(nsid).map(|namespace| namespace.router().stack());
        stack.is_some_and(|stack| stack.is_idle(at, self.slab()))
    }

    /// Ends the commands that only wait in the target at the position `at` of a namespace's chain: their hosts
    /// submit them again. Returns whether nothing is left in the target.
    pub fn clear_target(&mut self, nsid: u32, at: usize, now_ns: u64) -> bool {
        let all = Aborted::of(Controllers::of_bits(u32::MAX));
        self.abort_target(nsid, at, all, Status::COMMAND_INTERRUPTED, now_ns);
        self.is_target_idle(nsid, at)
    }

    /// Ends the commands that only wait in the layer at the position `at` of a namespace's chain, or below it, with a
    /// status of the path: their hosts take another path, or wait for this one.
    pub fn refuse_parked(&mut self, nsid: u32, at: usize, why: Status, now_ns: u64) {
        let all = Aborted::of(Controllers::of_bits(u32::MAX));
        self.abort_target(nsid, at, all, why, now_ns);
    }

    /// Replaces the target at the position `at` of a namespace's chain, which is paused and
    /// [clear](Self::clear_target). `accept` decides in the end.
    ///
    /// # Errors
    /// Errors of `build` and `accept`, and refusals. Nothing has changed then.
    pub fn replace_target<E>(
        &mut self,
        nsid: u32,
        at: usize,
        build: impl FnOnce(&mut StackBuilder) -> Result<NodeId, E>,
        accept: impl FnOnce(&Insertion) -> Result<(), E>,
    ) -> Result<(), EditStackError<E>> {
        if self.jobs().erasure.is_some() {
            return Err(Refusal::Formatted.into());
        }
        if !self.is_target_idle(nsid, at) {
            return Err(Refusal::Busy.into());
        }
        let namespace = self.get_mut(nsid).ok_or(Refusal::NoSuchNamespace(nsid))?;
        let (block_size, bytes) = (namespace.block_size(), namespace.bytes());
        let build = |stack: &mut StackBuilder| build(stack).map_err(EditStackError::Build);
        namespace.router_mut().exchange(at, build, |it| {
            check(&it, block_size)?;
            accept(&it).map_err(EditStackError::Build)
        })?;
        namespace.stack_edited();
        // The host may have formatted the namespace with another block size than the one that it was opened with.
        namespace.router_mut().stack_mut().formatted(block_size);
        self.update_stacks();
        let size = self.get(nsid).map_or(bytes, |namespace| namespace.router().stack().target_size());
        self.resize(nsid, size);
        self.announce(Notice::NamespaceChanged(nsid));
        Ok(())
    }
}

/// Checks that a target can stand for another without a change that a host relies on.
fn check(Insertion { under: was, layer: is }: &Insertion, block_size: u32) -> Result<(), Refusal> {
    let deallocates = |it: Deallocated| it != Deallocated::Unsupported;
    if is.size < was.size {
        Err(Refusal::Smaller { has: is.size, needs: was.size })
    } else if is.block_size > block_size {
        Err(Refusal::BlockSize(is.block_size))
    } else if is.volatile_cache && !was.volatile_cache {
        Err(Refusal::VolatileCache)
    } else if deallocates(was.deallocated) && !deallocates(is.deallocated) {
        Err(Refusal::Deallocate)
    } else if is.read_only && !was.read_only {
        Err(Refusal::ReadOnly)
    } else {
        Ok(())
    }
}
