//! Commands that do not go on: holds of a drive, and commands that wait for the blocks of others.

use crate::model::Subsystem;
use crate::state::fused::HeldCommands;
use crate::state::mailbox::Notice;
use sluice_command::{Command, Slab, Slot};
use sluice_nvme::opcode::admin;

impl Subsystem {
    /// Takes no entry out of any queue until [`resume`](Self::resume), or until `until_ns`, since hosts time
    /// out soon. Commands in flight go on; the drive [is quiet](Self::is_quiet) when they are done.
    pub fn hold(&mut self, until_ns: u64) {
        self.held_until_ns = Some(until_ns);
        self.make_due(until_ns);
    }

    /// Ends a hold.
    pub fn resume(&mut self) {
        self.held_until_ns = None;
        // Timers that were off during the hold have a deadline again.
        self.make_due(0);
        self.announce(Notice::Resumed);
    }

    /// Ends a hold that has lasted too long.
    pub(crate) fn end_hold(&mut self, now_ns: u64) {
        if self.held_until_ns.take_if(|until_ns| *until_ns <= now_ns).is_some() {
            tracing::warn!("a drive was held for as long as hosts can wait, and goes on");
            self.announce(Notice::Resumed);
        }
    }

    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.held_until_ns.is_some()
    }

    /// Returns whether all commands in flight are ones that may wait forever: Asynchronous Event Requests, a
    /// Format NVM between any two of its chunks, and a Sanitize until it is persisted.
    pub fn is_quiet(&self) -> bool {
        let waits = |slot: &&Slot| {
            slot.origin.sq == 0
                && matches!(
                    slot.origin.opcode,
                    admin::ASYNC_EVENT_REQUEST | admin::FORMAT_NVM | admin::SANITIZE
                )
        };
        self.slab.in_flight() == self.slab.live().filter(waits).count() as u32
    }

    /// Holds a command for blocks of a fused operation, or for blocks that abandoned commands may still
    /// change.
    #[cold]
    pub(crate) fn hold_back(&mut self, command: Command) {
        let (HeldCommands { fused, abandoned }, slab) = self.held_and_slab();
        let slot = slab.slot_mut(&command);
        match fused.has_claim() {
            true => fused.hold(command, slot),
            false => abandoned.hold(command, slot),
        }
    }

    /// Returns the commands that wait for the blocks of others.
    pub(crate) fn held(&self) -> &HeldCommands {
        &self.held
    }

    pub(crate) fn held_mut(&mut self) -> &mut HeldCommands {
        &mut self.held
    }

    pub(crate) fn held_and_slab(&mut self) -> (&mut HeldCommands, &mut Slab) {
        (&mut self.held, &mut self.slab)
    }

    /// Returns whether a turn must look at commands that wait for the blocks of others.
    #[inline]
    pub(crate) fn has_held_work(&self) -> bool {
        self.held.fused.is_busy()
    }
}
