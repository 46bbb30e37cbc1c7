//! Abandoned commands and the commands that overlap them.

use crate::state::fused;
use crate::state::reservation::Group;
use sluice_command::{Command, Origin, Slab, Slot};
use sluice_nvme::SubmissionEntry;
use sluice_nvme::opcode::io as opcode;
use std::ops::Range;

#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    pub(crate) changes: Vec<Change>,
    /// Commands that overlap an abandoned command.
    pub(crate) held: Vec<Command>,
    /// Commands that overlapped an abandoned command that has ended. They are checked again.
    pub(crate) ready: Vec<Command>,
}

/// Abandoned command.
#[derive(Debug)]
pub(crate) struct Change {
    /// Number of its slot.
    pub(crate) number: usize,
    pub(crate) origin: Origin,
    pub(crate) nsid: u32,
    pub(crate) bytes: Range<u64>,
}

impl Change {
    /// Returns whether the slot still belongs to this command.
    pub(crate) fn is_under_way(&self, slab: &Slab) -> bool {
        slab.used(self.number).is_some_and(|slot| is_same(&slot.origin, &self.origin))
    }
}

pub(crate) fn is_same(one: &Origin, other: &Origin) -> bool {
    (one.controller, one.sq, one.epoch, one.cid) == (other.controller, other.sq, other.epoch, other.cid)
}

impl Abandoned {
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.held.is_empty() && self.ready.is_empty()
    }

    /// Holds a command that overlaps an abandoned one.
    pub(crate) fn hold(&mut self, command: Command, slot: &mut Slot) {
        (slot.origin.opcode, slot.origin.ahead) = (fused::WAITS, false);
        self.held.push(command);
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.held.drain(..).chain(self.ready.drain(..)).for_each(std::mem::forget);
    }
}

/// Returns the bytes that a command may still change; none if it changes none, or if another mechanism
/// protects them.
pub(crate) fn changed_bytes(slot: &Slot, entry: &SubmissionEntry, shift: u32) -> Option<Range<u64>> {
    const ALL: Range<u64> = 0..u64::MAX;
    let Origin { opcode: code, raw, .. } = slot.origin;
    // A held command ends, and a fused operation has its blocks to itself.
    if code == fused::WAITS || code == fused::FUSED && !raw || Group::of_io(code) == Group::Free {
        return None;
    }
    if raw {
        return slot.request.operation.modifies().then_some(ALL);
    }
    match code {
        opcode::READ | opcode::COMPARE | opcode::VERIFY | opcode::FLUSH => None,
        opcode::WRITE | opcode::WRITE_ZEROES | opcode::WRITE_UNCORRECTABLE => {
            let start = entry.slba() << shift;
            Some(start..start + (u64::from(entry.blocks()) << shift))
        }
        opcode::DATASET_MANAGEMENT => {
            let ranges = || slot.steps.iter().flat_map(|steps| &steps.ranges);
            let start = ranges().map(|range| range.offset).min()?;
            Some(start..ranges().map(|range| range.offset + range.length).max()?)
        }
        opcode::COPY => {
            let steps = slot.steps.as_ref()?;
            let left = steps.ranges.get(steps.progress as usize..).unwrap_or_default();
            let left: u64 = left.iter().map(|range| range.length).sum();
            Some(entry.slba() << shift..steps.destination + left)
        }
        _ => Some(ALL),
    }
}
