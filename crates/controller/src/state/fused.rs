//! State of fused operations.

use crate::state::abandoned::Abandoned;
use sluice_command::{Command, Origin, Slot};
use sluice_nvme::Status;
use std::collections::VecDeque;
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct First {
    pub(crate) command: Command,
    /// Head of its queue when its second half was fetched next.
    pub(crate) head: u32,
}

/// Opcodes in place of the real one, for commands of a pair in the layers, and for commands that wait. No
/// command of the specification has them.
pub(crate) const FUSED: u8 = 0x7e;

pub(crate) const WAITS: u8 = 0x7f;

/// Result of the check of a command for claimed blocks. It is never visible to a host, since the command
/// waits.
pub(crate) const CLAIMED: Status = Status::COMMAND_SEQUENCE_ERROR;

#[derive(Debug, Default)]
pub(crate) struct Fused {
    pub(crate) firsts: Vec<First>,
    pub(crate) pairs: VecDeque<Pair>,
    pub(crate) claim: Option<Claim>,
    /// Other commands that wait for the end of the claim.
    pub(crate) held: Vec<Command>,
    /// Whether there is work, so that a turn looks only at this.
    pub(crate) busy: bool,
}

#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) first: Command,
    pub(crate) second: Command,
}

/// Commands that wait for the blocks of others.
#[derive(Debug, Default)]
pub(crate) struct HeldCommands {
    pub(crate) fused: Fused,
    pub(crate) abandoned: Abandoned,
}

impl HeldCommands {
    /// Returns whether a command may have to wait.
    pub(crate) fn may_hold(&self) -> bool {
        self.fused.has_claim() || !self.abandoned.is_empty()
    }

    /// Notes whether there is work.
    pub(crate) fn note_busy(&mut self) {
        self.fused.note_busy(&self.abandoned);
    }
}

/// Claim of a pair that has its blocks to itself.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) nsid: u32,
    pub(crate) bytes: Range<u64>,
    /// Slot number of the command that the layers have.
    pub(crate) number: usize,
    pub(crate) step: Step,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// Other commands work on the blocks.
    Waiting(Pair),
    /// The Compare runs; this is the Write that follows.
    Comparing(Command),
    Writing,
}

impl Fused {
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Makes the next turn look for work.
    pub(crate) fn has_work(&mut self) {
        self.busy = true;
    }

    fn note_busy(&mut self, abandoned: &Abandoned) {
        let waits = !abandoned.is_empty()
            || !self.firsts.is_empty()
            || !self.pairs.is_empty()
            || !self.held.is_empty();
        self.busy = waits || self.claim.is_some();
    }

    pub(crate) fn has_claim(&self) -> bool {
        self.claim.is_some()
    }

    /// Holds a command for blocks that are claimed, or may be.
    pub(crate) fn hold(&mut self, command: Command, slot: &mut Slot) {
        (slot.origin.opcode, slot.origin.ahead) = (WAITS, false);
        self.held.push(command);
        self.busy = true;
    }
}

impl Drop for Fused {
    fn drop(&mut self) {
        self.firsts.drain(..).for_each(std::mem::forget);
        self.pairs.drain(..).for_each(std::mem::forget);
        self.claim.take().into_iter().for_each(std::mem::forget);
        self.held.drain(..).for_each(std::mem::forget);
    }
}

pub(crate) fn is_of(one: Origin, other: Origin) -> bool {
    (one.controller, one.sq, one.epoch) == (other.controller, other.sq, other.epoch)
}
