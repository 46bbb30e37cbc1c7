//! The trait of every storage function and every target.

use crate::{Aborted, Command, Controllers, Frame, Lane, Passthrough, Slot, Ticket};
use sluice_memory::{Removed, Space};
use sluice_nvme::Status;

/// Bytes that go on at once; the rest waits for the next turn: what a target moves at once, such as memory does, holds up
/// every drive of the reactor. A controller's turn has as many for what goes on as for what it takes from its queues, all
/// together, and the steps that are left of commands with several wait, too.
pub const TURN_BYTES: u64 = 4 << 20;

/// One layer of a drive's stack: a storage function, or a target at the bottom.
///
/// Who checks what: a request that arrives lies inside the size this layer's own
/// [`characteristics`](Layer::characteristics) gave, is a multiple of its block size, and its data is
/// as long as the request says; all of it was checked before the first layer. A layer that moves a
/// request keeps it inside what lies below; the lane checks that again, because a mistake there is
/// another tenant's data.
///
/// A layer never waits. What cannot be done now is parked with the lane, and an engine (io_uring, a
/// timer, another thread) brings the ticket back through [`event`](Layer::event). A layer never
/// completes into its caller: finishing puts the command on a list that is worked off afterwards.
pub trait Layer: Send {
    /// The layer's kind, as configuration spells it.
    fn name(&self) -> &'static str;

    /// What this layer is, given what lies below it, in the order of the stack's edges.
    fn characteristics(&self, below: &[Characteristics]) -> Characteristics;

    /// Takes a command: finish it, forward it, fork it or park it.
    fn submit(&mut self, command: Command, lane: &mut Lane<'_>);

    /// Takes a command that goes on as its host wrote it ([`Origin::raw`](crate::Origin)), for which its
    /// entry is at hand ([`Lane::entry`]). Only for a layer that says so
    /// ([`Characteristics::passthrough`]); nobody else knows what such a command does to its data.
    fn pass(&mut self, command: Command, lane: &mut Lane<'_>) {
        lane.finish(command, Status::INVALID_OPCODE);
    }

    /// A command that was forwarded with a frame is back; its status is in its slot.
    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let _ = frame;
        let status = lane.slot(&command).status;
        lane.finish(command, status);
    }

    /// One child of a forked command has finished. The default keeps the first error.
    fn child_done(&mut self, parent: &mut Slot, child: &Slot) {
        if parent.status.is_success() {
            parent.status = child.status;
        }
    }

    /// An engine answered for a parked command. `result` is the engine's (for io_uring: bytes, or a
    /// negated errno).
    fn event(&mut self, ticket: Ticket, result: i32, lane: &mut Lane<'_>) {
        let _ = result;
        if let Some(command) = lane.unpark(ticket) {
            lane.finish(command, Status::INTERNAL_ERROR);
        }
    }

    /// Called once after a batch of submits, for layers that do better with many at a time.
    fn flush(&mut self, lane: &mut Lane<'_>) {
        let _ = lane;
    }

    /// When this layer wants [`expire`](Layer::expire) called, on the lane's clock; none for never.
    fn deadline_ns(&self) -> Option<u64> {
        None
    }

    /// The time of [`deadline_ns`](Layer::deadline_ns) has come.
    fn expire(&mut self, lane: &mut Lane<'_>) {
        let _ = lane;
    }

    /// The namespace is being taken from these controllers, or they begin anew: commands of theirs end that only wait here,
    /// for something that may never come; with this status.
    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        let _ = (of, why, lane);
    }

    /// These commands end as soon as nothing of them is under way, with this status: a host has aborted them, has
    /// deleted their queue or begins anew. Those that wait end now, and those of several steps after the present step. A
    /// layer may leave alone what ends soon by itself. May be called again for the same commands.
    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        let _ = (which, why, lane);
    }

    /// The operator made the layer `size` bytes large; targets answer with what they now have.
    /// Called on the reactor: it must not block.
    fn resized(&mut self, size: u64) {
        let _ = size;
    }

    /// Blocks of the namespace have so many bytes from now on.
    fn formatted(&mut self, block_size: u32) {
        let _ = block_size;
    }

    /// True if this layer finds its work by looking, and so wants the methods that follow called. Asked
    /// once, when the stack is built.
    fn polls(&self) -> bool {
        false
    }

    /// One look, in every turn of a controller, at what this layer polls. `space` is the memory of the controller's
    /// host as it is now; in a turn that is the [subsystem's](crate::Origin::SUBSYSTEM), nobody's. Returns how much
    /// there was to do.
    fn poll(&mut self, controller: u8, space: &Space, lane: &mut Lane<'_>) -> usize {
        let _ = (controller, space, lane);
        0
    }

    /// The layer is to be taken out of its stack, if it has nothing under way: then what only waits here goes on
    /// to the layer below. False if it has, or cannot tell.
    fn leave(&mut self, lane: &mut Lane<'_>) -> bool {
        let _ = lane;
        false
    }

    /// The drive is about to sleep: has what this layer polls wake it through an
    /// [`event`](Layer::event), then looks once more. True if there is work after all.
    fn arm(&mut self) -> bool {
        false
    }

    /// Awake again: [`poll`](Layer::poll) is called, and nothing need wake the drive.
    fn disarm(&mut self) {}

    /// The host took memory back. Whoever lent it further takes it back, too, unless the host maps the
    /// same memory elsewhere: [`still_maps`](Layer::still_maps) says when that is over.
    fn forget_memory(&mut self, removed: &Removed) {
        let _ = removed;
    }

    /// True while somebody to whom this layer lent the host's memory may still reach what was removed,
    /// apart from commands in flight, whose segments the slab knows.
    fn still_maps(&self, removed: &Removed) -> bool {
        let _ = removed;
        false
    }

    /// The host of a controller is gone, or begins anew: with the next look, those of its commands that only wait end,
    /// and memory that was lent further is taken back, which is over when the layer
    /// [`is_revoked`](Layer::is_revoked). What other hosts want, and what a layer above asks for itself, goes on.
    fn revoke(&mut self, controller: u8) {
        let _ = controller;
    }

    /// Nothing is lent that a [`revoke`](Layer::revoke) wants back.
    fn is_revoked(&self, controller: u8) -> bool {
        let _ = controller;
        true
    }

    /// The drain after a [`revoke`](Layer::revoke) is over: what comes now is of the next life.
    fn renew(&mut self, controller: u8) {
        let _ = controller;
    }
}

/// What reads of a deallocated block return (NVM Command Set 4.1.5.1, DLFEAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Deallocated {
    /// Deallocate does nothing here.
    #[default]
    Unsupported,
    /// Zeroes.
    Zeroes,
    /// Anything: old data or zeroes.
    Indeterminate,
}

/// What a layer promises about itself. Identify is derived from the topmost one, never hand-kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Characteristics {
    /// Bytes.
    pub size: u64,
    /// The smallest unit of a request, bytes; a power of two.
    pub block_size: u32,
    /// The unit that is written best, bytes; a multiple of the block size.
    pub optimal_write: u32,
    /// A request that crosses a multiple of this many bytes is slower or split; zero for none.
    pub boundary: u32,
    /// A write of up to this many bytes is never seen half done, not even after a power cut.
    pub atomic_write: u32,
    /// Finished writes may be lost at a power cut until a Flush.
    pub volatile_cache: bool,
    pub deallocated: Deallocated,
    /// Most child commands that one command can have in flight below this layer, itself not counted.
    pub fan_out: u32,
    /// Commands that this layer [makes itself](Lane::originate), at a time; those below not counted.
    pub requests: u32,
    /// Layers from here to the bottom.
    pub depth: u8,
    /// Bytes of a Deallocate that ends soon whatever is stored there; hosts are told to keep to it. Zero for any.
    pub deallocate_limit: u64,
    /// No write is accepted.
    pub read_only: bool,
    /// What was written over may still be stored somewhere below: older versions, blocks that are spare.
    pub keeps_versions: bool,
    /// Opcodes that the layer takes as the host wrote them, when commands enter the stack with it.
    pub passthrough: Passthrough,
    pub storage: Storage,
}

/// Which storage a layer ends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// Differs from that of all other storage, and outlives restarts. Zero if there is no such number, and
    /// [`UNSEEN`](Self::UNSEEN) if it may have one.
    pub id: u128,
    /// Nothing was ever written there: the file was just made, or is one hole.
    pub is_new: bool,
}

impl Storage {
    /// Storage on a machine that was not there when it was opened. Which one it is, is not known.
    pub const UNSEEN: Self = Self { id: u128::MAX, is_new: false };

    fn is_unseen(self) -> bool {
        self.id == Self::UNSEEN.id
    }

    /// The storage that these bytes name, which was written to.
    #[must_use]
    pub fn named(name: &[u8]) -> Self {
        let id = name.iter().fold(1, |id, byte| mixed(id, u128::from(*byte) + 1));
        Self { id, is_new: false }
    }

    /// A part of this storage, told from others by `number`.
    #[must_use]
    pub fn part(self, number: u64) -> Self {
        let id = if self.is_unseen() { self.id } else { mixed(self.id, number.into()) };
        Self { id, ..self }
    }

    /// The storage of a layer over all of these.
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

/// One number of two; zero if the first is.
fn mixed(id: u128, more: u128) -> u128 {
    if id == 0 {
        return 0;
    }
    // An odd factor, as FNV has it: each digit of the result depends on all lower ones.
    const FACTOR: u128 = (1 << 88) + 0x13b;
    ((id ^ more.rotate_left(64)).wrapping_mul(FACTOR) ^ more).clamp(1, u128::MAX - 1)
}

impl Characteristics {
    /// A target of this size and block size with nothing else to say about itself.
    pub fn target(size: u64, block_size: u32) -> Self {
        Self {
            size,
            block_size,
            optimal_write: block_size,
            boundary: 0,
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

    /// The same, seen from one layer further up.
    pub fn over(self) -> Self {
        let passthrough = Passthrough::NONE;
        Self { depth: self.depth.saturating_add(1), requests: 0, passthrough, ..self }
    }
}
