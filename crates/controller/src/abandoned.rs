//! Commands whose queue is gone, and that may still change blocks.
//!
//! A host that loses a connection sends its commands again on another one, and then newer commands. A command of the lost
//! connection that is still in the layers could end after those. So commands that overlap it are held until it has ended,
//! whichever host sends them. Other commands go on, and a namespace without abandoned commands needs no further check: see
//! [`Namespace::check`](crate::Namespace).

use crate::fused;
use crate::mailbox::Notice;
use crate::reservation::Group;
use crate::{BATCH_MAX, Controller, Namespace, Subsystem};
use sluice_command::{Command, Origin, Slab, Slot};
use sluice_memory::Space;
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};
use std::ops::Range;

#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    changes: Vec<Change>,
    /// Commands that overlap an abandoned command.
    held: Vec<Command>,
    /// Commands that overlapped an abandoned command that has ended. They are checked again.
    ready: Vec<Command>,
}

/// Abandoned command.
#[derive(Debug)]
struct Change {
    /// Number of its slot.
    number: usize,
    origin: Origin,
    nsid: u32,
    bytes: Range<u64>,
}

impl Change {
    /// Returns whether the slot still belongs to this command.
    fn is_under_way(&self, slab: &Slab) -> bool {
        slab.used(self.number).is_some_and(|slot| is_same(&slot.origin, &self.origin))
    }
}

fn is_same(one: &Origin, other: &Origin) -> bool {
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

/// Handles the loss of a controller's queues, or of one of them: ends its held commands, and makes its
/// commands in the layers hold back others.
#[cold]
pub(crate) fn abandon(subsystem: &mut Subsystem, controller: u8, queue: Option<u16>) {
    fused::forget(subsystem, controller, queue);
    forget(subsystem, controller, queue);
    let is_its = |origin: &Origin| {
        let is_io = origin.sq != 0 && origin.sq != Origin::INTERNAL;
        is_io && origin.controller == controller && queue.is_none_or(|id| id == origin.sq)
    };
    let existing = &subsystem.abandoned.changes;
    let its = subsystem.slab.commands().filter(|(_, slot, _)| is_its(&slot.origin));
    let new: Vec<Change> = its
        .filter_map(|(number, slot, entry)| {
            let shift = subsystem.get(entry.nsid).map_or(0, Namespace::block_shift);
            let bytes = changed_bytes(slot, entry, shift)?;
            Some(Change { number, origin: slot.origin, nsid: entry.nsid, bytes })
        })
        .filter(|new| !existing.iter().any(|it| it.number == new.number && is_same(&it.origin, &new.origin)))
        .collect();
    if new.is_empty() {
        return;
    }
    let commands = new.len();
    tracing::info!(
        commands,
        "commands of a lost connection are still under way; commands that overlap them wait"
    );
    subsystem.abandoned.changes.extend(new);
    subsystem.fused.has_work();
    update_held_back(subsystem);
}

/// Returns the bytes that a command may still change; none if it changes none, or if another mechanism
/// protects them.
fn changed_bytes(slot: &Slot, entry: &SubmissionEntry, shift: u32) -> Option<Range<u64>> {
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

/// Gives each namespace the list of its held-back ranges.
fn update_held_back(subsystem: &mut Subsystem) {
    let changes = std::mem::take(&mut subsystem.abandoned.changes);
    subsystem.each_namespace(|namespace| {
        let its = changes.iter().filter(|change| change.nsid == namespace.nsid());
        namespace.hold_back(its.map(|change| change.bytes.clone()).collect());
    });
    subsystem.abandoned.changes = changes;
}

/// Continues commands whose abandoned commands have ended, and returns their number. Part of a turn of each
/// controller while there are abandoned or held commands.
#[cold]
pub(crate) fn advance(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    space: &Space,
    now_ns: u64,
) -> usize {
    let Subsystem { abandoned: Abandoned { changes, held, ready }, slab, .. } = &mut *subsystem;
    let before = changes.len();
    changes.retain(|change| change.is_under_way(slab));
    if changes.len() < before {
        ready.append(held);
        update_held_back(subsystem);
    }
    let Subsystem { abandoned: Abandoned { ready, .. }, slab, .. } = &mut *subsystem;
    let is_own = |command: &mut Command| slab.slot(command).origin.controller == controller.number;
    // A host can have hundreds: the others go on with the next turns.
    let own: Vec<Command> = ready.extract_if(.., is_own).take(BATCH_MAX as usize).collect();
    let count = own.len();
    fused::check_again(controller, subsystem, own, space, now_ns);
    if !subsystem.abandoned.ready.is_empty() {
        // Their controllers may be asleep.
        subsystem.mailboxes.announce(Notice::Resumed);
    }
    count
}

/// Returns whether a turn of this controller would continue something.
pub(crate) fn can_advance(controller: &Controller, subsystem: &Subsystem) -> bool {
    let Subsystem { abandoned: Abandoned { changes, ready, .. }, slab, .. } = subsystem;
    let is_own = |command: &Command| slab.slot(command).origin.controller == controller.number;
    changes.iter().any(|change| !change.is_under_way(slab)) || ready.iter().any(is_own)
}

/// Ends the commands that wait here, when their queue is gone.
fn forget(subsystem: &mut Subsystem, controller: u8, queue: Option<u16>) {
    let Subsystem { abandoned: Abandoned { held, ready, .. }, slab, .. } = &mut *subsystem;
    let is_own = |command: &mut Command| {
        let origin = slab.slot(command).origin;
        origin.controller == controller && queue.is_none_or(|id| id == origin.sq)
    };
    let mut ended: Vec<Command> = held.extract_if(.., is_own).collect();
    ended.extend(ready.extract_if(.., is_own));
    ended.into_iter().for_each(|command| fused::refuse(subsystem, command, Status::ABORTED_SQ_DELETION));
}
