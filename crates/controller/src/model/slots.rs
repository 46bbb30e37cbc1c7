//! Commands in flight, as the jobs of a drive see them: their slots, their end, and commands of the drive itself.

use crate::model::Subsystem;
use sluice_command::{Command, Origin, Slot};
use sluice_memory::SharedRegion;
use sluice_nvme::opcode::io;
use sluice_nvme::{Status, SubmissionEntry};

/// Way of a command of the drive itself into the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Router,
    /// Straight to the layers: a classifier could exclude blocks.
    Unclassified,
}

/// Command of the drive itself that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) entry: SubmissionEntry,
    pub(crate) origin: Origin,
    pub(crate) status: Status,
    /// Bytes of its request.
    pub(crate) length: u64,
}

impl Subsystem {
    pub(crate) fn entry(&self, command: &Command) -> &SubmissionEntry {
        self.slab.entry(command)
    }

    pub(crate) fn slot(&self, command: &Command) -> &Slot {
        self.slab.slot(command)
    }

    /// Returns the number of a command's controller.
    pub(crate) fn controller_of(&self, command: &Command) -> u8 {
        self.slab.slot(command).origin.controller
    }

    /// Returns whether no further command fits into the drive.
    pub(crate) fn is_full(&self) -> bool {
        self.slab.room() == 0
    }

    /// Returns whether some command in flight is selected.
    pub(crate) fn has_live(&self, is_meant: impl Fn(&Slot) -> bool) -> bool {
        self.slab.live().any(is_meant)
    }

    /// Marks the selected commands in flight, whose end is awaited. Returns their number.
    pub(crate) fn await_live(&mut self, is_meant: impl Fn(&Slot) -> bool) -> usize {
        let meant = self.slab.live_mut().filter(|slot| is_meant(slot));
        meant.map(|slot| slot.origin.awaited = true).count()
    }

    /// Marks all Copy commands in flight, after namespaces were closed. Their next sources and destinations are
    /// not visible, so each of them is awaited. A later Copy finds the namespaces closed.
    pub(crate) fn await_copies(&mut self) {
        self.await_live(|slot| slot.origin.opcode == io::COPY && slot.origin.sq != 0);
    }

    /// Sets the status of a command, for the engine to complete it.
    pub(crate) fn decide(&mut self, command: Command, status: Status) {
        self.decide_with(command, status, |_| {});
    }

    /// Sets the status of a command and changes its slot, for the engine to complete it.
    pub(crate) fn decide_with(&mut self, command: Command, status: Status, change: impl FnOnce(&mut Slot)) {
        let slot = self.slab.slot_mut(&command);
        slot.status = status;
        change(slot);
        self.done.push(command);
    }

    /// Starts a command of the drive itself, for which there must be room. `prepare` sets its request, with the
    /// slot's number and the private memory of commands.
    pub(crate) fn start_internal(
        &mut self,
        entry: &SubmissionEntry,
        origin: Origin,
        way: Way,
        now_ns: u64,
        prepare: impl FnOnce(&mut Slot, usize, &SharedRegion) -> Result<(), Status>,
    ) {
        let command = self.slab.admit(entry, origin).expect("room was looked at");
        let number = self.slab.number(&command);
        match (prepare(self.slab.slot_mut(&command), number, &self.staging), way) {
            (Ok(()), Way::Router) => self.submit_to(entry.nsid, command, now_ns),
            (Ok(()), Way::Unclassified) => self.submit_unclassified(entry.nsid, command, now_ns),
            (Err(status), _) => self.decide(command, status),
        }
    }

    /// Frees the slot of a command of the drive itself that has ended.
    pub(crate) fn end_internal(&mut self, command: Command) -> Ended {
        let (slot, entry) = (self.slab.slot(&command), *self.slab.entry(&command));
        let ended = Ended { entry, origin: slot.origin, status: slot.status, length: slot.request.length };
        self.slab.release(command);
        ended
    }
}
