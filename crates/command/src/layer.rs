//! The trait of every storage function and every target.

use crate::{Aborted, Command, Controllers, Frame, Lane, Passthrough, Slot, Ticket};
use sluice_memory::{Removed, Space};
use sluice_nvme::Status;

/// Bytes that a target moves at once; the rest waits for the next turn, because a target that moves data
/// itself, such as memory, stops every drive of the reactor. A controller's turn has as many bytes for
/// commands that continue as for commands from its queues. Remaining steps of commands with several steps
/// wait, too.
pub const TURN_BYTES: u64 = 4 << 20;

/// A layer of a drive's stack: a storage function, or a target at the bottom.
///
/// All checks come before the first layer. A request lies inside the size of this layer's own
/// [`characteristics`](Layer::characteristics), and is a multiple of its block size. The data is as long as
/// the request. A layer that moves a request keeps it inside the layer below; the lane checks that again,
/// because a mistake there is another tenant's data.
///
/// A layer never waits. An operation that takes time is parked with the lane, and an engine (io_uring, a
/// timer, another thread) returns the ticket through [`event`](Layer::event). A layer never completes into
/// its caller: finishing puts the command on a list that is processed afterwards.
pub trait Layer: Send {
    /// Returns the layer's kind, as configuration spells it.
    fn name(&self) -> &'static str;

    /// Returns the characteristics of this layer, given those of the layers below, in the order of the
    /// stack's edges.
    fn characteristics(&self, below: &[Characteristics]) -> Characteristics;

    /// Takes a command: finish it, forward it, fork it or park it.
    fn submit(&mut self, command: Command, lane: &mut Lane<'_>);

    /// Takes a command that is passed to a device as its host wrote it ([`Origin::raw`](crate::Origin)), with
    /// its entry ([`Lane::entry`]). Only for a layer that declares the opcode
    /// ([`Characteristics::passthrough`]); no other layer can determine the effect of such a command on its
    /// data.
    fn pass(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::INVALID_OPCODE);
    }

    /// Handles the return of a command that was forwarded with a frame; its status is in its slot.
    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let _ = frame;
        let status = lane.slot(&command).status;
        lane.finish(command, status);
    }

    /// Handles the end of a child of a forked command. The default keeps the first error.
    fn child_done(&mut self, parent: &mut Slot, child: &Slot) {
        if parent.status.is_success() {
            parent.status = child.status;
        }
    }

    /// Handles an engine's answer for a parked command. `result` is the engine's (for io_uring: bytes, or a
    /// negated errno).
    fn event(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        let _ = result;
        if let Some(command) = lane.unpark(ticket) {
            lane.finish(command, Status::INTERNAL_ERROR);
        }
    }

    /// Ends a batch of submits, for layers that process many commands at a time.
    fn flush(&mut self, lane: &mut Lane<'_>) {
        let _ = lane;
    }

    /// Returns the time, on the lane's clock, of the next call of [`expire`](Layer::expire); none for never.
    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    /// Handles the time of [`deadline_ns`](Layer::deadline_ns).
    fn expire(&mut self, lane: &mut Lane<'_>) {
        let _ = lane;
    }

    /// Ends commands that only wait here for something that may never happen, with this status. The namespace
    /// is being detached from these controllers, or they are reset.
    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        let _ = (of, why, lane);
    }

    /// Ends these commands as soon as nothing of them is under way, with this status: a host has aborted
    /// them, has deleted their queue, or resets its controller. Waiting commands end now, and commands of
    /// several steps after the present step. A layer need not end a command that ends soon by itself. May be
    /// called again for the same commands.
    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        let _ = (which, why, lane);
    }

    /// Handles a resize to `size` bytes by the operator; targets report their new size in their
    /// characteristics. Called on the reactor: it must not block.
    fn resized(&mut self, size: u64) {
        let _ = size;
    }

    /// Sets the bytes of a block of the namespace.
    fn formatted(&mut self, block_size: u32) {
        let _ = block_size;
    }

    /// Returns whether this layer is polled, and the following methods are called. Called once, when the
    /// stack is built.
    fn polls(&self) -> bool {
        false
    }

    /// Polls this layer's sources, once in a turn of the drive. `controller` is the first one with a turn, and
    /// `space` is the present memory of its host. In a turn of the [subsystem](crate::Origin::SUBSYSTEM) the
    /// memory is empty. Returns the work done.
    fn poll(&mut self, controller: u8, space: &Space, lane: &mut Lane<'_>) -> usize {
        let _ = (controller, space, lane);
        0
    }

    /// Handles changes of the memory of a host whose controller has a turn later than the one that polled.
    fn follow_memory(&mut self, controller: u8, space: &Space) {
        let _ = (controller, space);
    }

    /// Prepares the layer's removal from its stack: commands that only wait here are forwarded to the layer
    /// below. Returns false if an operation is under way, or the layer cannot determine that.
    fn leave(&mut self, lane: &mut Lane<'_>) -> bool {
        let _ = lane;
        false
    }

    /// Returns whether no command is in the layer, and no operation of an engine for it is under way. So another
    /// layer can take its place. False for a layer that cannot determine that.
    fn is_idle(&self) -> bool {
        false
    }

    /// Arms the layer before the drive sleeps: its sources wake the drive through an [`event`](Layer::event).
    /// Then polls once more; returns whether there is work after all.
    fn arm(&mut self) -> bool {
        false
    }

    /// Ends arming after a wake-up: [`poll`](Layer::poll) is called, and no source need wake the drive.
    fn disarm(&mut self) {}

    /// Handles memory that the host unmapped. A layer that mapped it for an engine unmaps it there, too,
    /// unless the host maps the same memory at another address: [`still_maps`](Layer::still_maps) returns
    /// when that is over.
    fn forget_memory(&mut self, removed: &Removed) {
        let _ = removed;
    }

    /// Returns whether an engine for which this layer mapped the host's memory may still reach the removed
    /// part. Commands in flight are not considered: their segments are in the slab.
    fn still_maps(&self, removed: &Removed) -> bool {
        let _ = removed;
        false
    }

    /// Ends the use of a controller's memory: its host is gone, or it is reset. With the next poll those of
    /// its commands end that only wait, and memory mapped for an engine is unmapped. That is over when the
    /// layer [`is_revoked`](Layer::is_revoked). Commands of other hosts, and those of layers above, continue.
    fn revoke(&mut self, controller: u8) {
        let _ = controller;
    }

    /// Returns whether no mapping is left that a [`revoke`](Layer::revoke) is to remove.
    fn is_revoked(&self, controller: u8) -> bool {
        let _ = controller;
        true
    }

    /// Ends the drain after a [`revoke`](Layer::revoke): later commands belong to the next host, or to the
    /// controller after its reset.
    fn renew(&mut self, controller: u8) {
        let _ = controller;
    }
}

/// Result of reading a deallocated block (NVM Command Set 4.1.5.1, DLFEAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Deallocated {
    /// Deallocate does nothing here.
    #[default]
    Unsupported,
    /// Zeroes.
    Zeroes,
    /// Old data or zeroes.
    Indeterminate,
}

/// Properties of a layer. Identify is derived from those of the topmost layer, never maintained by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Characteristics {
    /// Bytes of the layer.
    pub size: u64,
    /// The smallest unit of a request, bytes; a power of two.
    pub block_size: u32,
    /// The preferred unit of a write, bytes; a multiple of the block size.
    pub optimal_write: u32,
    /// A request that crosses a multiple of this many bytes is slower or split; zero for none.
    pub boundary: u32,
    /// A write that crosses a multiple of this many bytes may be seen half done; zero for none.
    pub atomic_boundary: u32,
    /// Bytes of a write that is never seen half done, not even after a power cut.
    pub atomic_write: u32,
    /// Flag for a cache: finished writes may be lost at a power cut until a Flush.
    pub volatile_cache: bool,
    pub deallocated: Deallocated,
    /// Most child commands that one command can have in flight below this layer, itself not counted.
    pub fan_out: u32,
    /// Commands that this layer [makes itself](Lane::originate), at a time; those of layers below not
    /// counted.
    pub requests: u32,
    /// Layers from here to the bottom.
    pub depth: u8,
    /// Bytes of a Deallocate that ends soon for any contents; announced to hosts. Zero for no limit.
    pub deallocate_limit: u64,
    /// Flag for a layer that accepts no write.
    pub read_only: bool,
    /// Flag for a layer below which overwritten data may still be stored: older versions, spare blocks.
    pub keeps_versions: bool,
    /// Opcodes that the layer takes as the host wrote them, when commands enter the stack at this layer.
    pub passthrough: Passthrough,
    pub storage: Storage,
}

/// Identity of the storage that a layer ends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// Number that differs from that of all other storage, and outlives restarts. Zero if there is no such
    /// number, and [`UNSEEN`](Self::UNSEEN) if there may be one.
    pub id: u128,
    /// Flag for storage that was never written: the file was just created, or is one hole.
    pub is_new: bool,
}

impl Storage {
    /// Storage of unknown identity on a machine that was not reachable when the storage was opened.
    pub const UNSEEN: Self = Self { id: u128::MAX, is_new: false };

    fn is_unseen(self) -> bool {
        self.id == Self::UNSEEN.id
    }

    /// Returns the identity of storage with this name, which was written to.
    #[must_use]
    pub fn named(name: &[u8]) -> Self {
        let id = name.iter().fold(1, |id, byte| mixed(id, u128::from(*byte) + 1));
        Self { id, is_new: false }
    }

    /// Returns the identity of a part of this storage, distinguished from others by `number`.
    #[must_use]
    pub fn part(self, number: u64) -> Self {
        let id = if self.is_unseen() { self.id } else { mixed(self.id, number.into()) };
        Self { id, ..self }
    }

    /// Returns the identity of a layer over all of these.
    #[must_use]
    pub fn of_all(parts: impl Iterator<Item = Self> + Clone) -> Self {
        if parts.clone().any(Self::is_unseen) {
            return Self::UNSEEN;
        }
        let mut whole = parts.clone();
        let first = whole.next().unwrap_or_default();
        let id = whole.fold(first.id, |id, part| if part.id == 0 { 0 } else { mixed(id, part.id) });
        Self { id, is_new: parts.into_iter().all(|part| part.is_new) }
    }
}

/// Returns one number from two; zero if the first is zero.
fn mixed(id: u128, more: u128) -> u128 {
    if id == 0 {
        return 0;
    }
    // An odd factor, as FNV has it: each digit of the result depends on all lower ones.
    const FACTOR: u128 = (1 << 88) + 0x13b;
    ((id ^ more.rotate_left(64)).wrapping_mul(FACTOR) ^ more).clamp(1, u128::MAX - 1)
}

/// Returns a distance of boundaries that includes the multiples of both of these; zero is the distance without
/// boundaries.
#[must_use]
pub fn common_boundary(one: u64, other: u64) -> u32 {
    let (mut divisor, mut rest) = (one, other);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    u32::try_from(divisor).unwrap_or(1 << divisor.trailing_zeros().min(31))
}

impl Characteristics {
    /// Returns the characteristics of a target of this size and block size without further properties.
    pub fn target(size: u64, block_size: u32) -> Self {
        Self {
            size,
            block_size,
            optimal_write: block_size,
            boundary: 0,
            atomic_boundary: 0,
            atomic_write: block_size,
            volatile_cache: false,
            deallocated: Deallocated::Unsupported,
            deallocate_limit: 0,
            fan_out: 0,
            requests: 0,
            depth: 1,
            read_only: false,
            keeps_versions: false,
            passthrough: Passthrough::NONE,
            storage: Storage::default(),
        }
    }

    /// Returns the same characteristics for a layer on top of this one.
    pub fn over(self) -> Self {
        let passthrough = Passthrough::NONE;
        Self { depth: self.depth.saturating_add(1), requests: 0, passthrough, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_boundary_includes_the_boundaries_of_both() {
        for (one, other, common) in [
            (0, 0, 0),
            (0, 8, 8),
            (8, 0, 8),
            (8, 12, 4),
            (32, 8, 8),
            (1 << 40, 0, 1 << 31),
            (3 << 33, 0, 1 << 31),
        ] {
            assert_eq!(common_boundary(one, other), common, "{one}, {other}");
            assert_eq!(common_boundary(other, one), common, "{other}, {one}");
        }
    }
}
