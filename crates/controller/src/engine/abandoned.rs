//! Commands whose queue is gone, and that may still change blocks.
//!
//! A host that loses a connection sends its commands again on another one, and then newer commands. A command of the lost
//! connection that is still in the layers could end after those. So commands that overlap it are held until it has ended,
//! whichever host sends them. Other commands go on, and a namespace without abandoned commands needs no further check: see
//! [`Namespace::check`](crate::Namespace).

use crate::engine::fused;
use crate::model::{Controller, Namespace, Subsystem};
use crate::state::abandoned::{Abandoned, Change, changed_bytes, is_same};
use crate::state::fused::HeldCommands;
use crate::state::limits::BATCH_MAX;
use crate::state::mailbox::Notice;
use sluice_command::{Command, Origin};
use sluice_memory::Space;
use sluice_nvme::Status;

/// Handles the loss of a controller's queues, or of one of them: ends its held commands, and makes its
/// commands in the layers hold back others.
#[cold]
pub(crate) fn abandon(subsystem: &mut Subsystem, controller: u8, queue: Option<u16>) {
    fused::forget(subsystem, controller, queue);
    forget(subsystem, controller, queue);
    let is_its = |origin: &Origin| {
        let is_io = origin.sq != 0 && origin.sq != Origin::INTERNAL_SQ;
        is_io && origin.controller == controller && queue.is_none_or(|id| id == origin.sq)
    };
    let existing = &subsystem.held().abandoned.changes;
    let its = subsystem.slab().commands().filter(|(_, slot, _)| is_its(&slot.origin));
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
    subsystem.held_mut().abandoned.changes.extend(new);
    subsystem.held_mut().fused.has_work();
    update_held_back(subsystem);
}

/// Gives each namespace the list of its held-back ranges.
fn update_held_back(subsystem: &mut Subsystem) {
    let changes = std::mem::take(&mut subsystem.held_mut().abandoned.changes);
    subsystem.each_namespace(|namespace| {
        let its = changes.iter().filter(|change| change.nsid == namespace.nsid());
        namespace.hold_back(its.map(|change| change.bytes.clone()).collect());
    });
    subsystem.held_mut().abandoned.changes = changes;
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
    let (HeldCommands { abandoned: Abandoned { changes, held, ready }, .. }, slab) =
        subsystem.held_and_slab();
    let before = changes.len();
    changes.retain(|change| change.is_under_way(slab));
    if changes.len() < before {
        ready.append(held);
        update_held_back(subsystem);
    }
    let (HeldCommands { abandoned: Abandoned { ready, .. }, .. }, slab) = subsystem.held_and_slab();
    let is_own = |command: &mut Command| slab.slot(command).origin.controller == controller.number();
    // A host can have hundreds: the others go on with the next turns.
    let own: Vec<Command> = ready.extract_if(.., is_own).take(BATCH_MAX as usize).collect();
    let count = own.len();
    fused::check_again(controller, subsystem, own, space, now_ns);
    if !subsystem.held().abandoned.ready.is_empty() {
        // Their controllers may be asleep.
        subsystem.announce(Notice::Resumed);
    }
    count
}

/// Returns whether a turn of this controller would continue something.
pub(crate) fn can_advance(controller: &Controller, subsystem: &Subsystem) -> bool {
    let (Abandoned { changes, ready, .. }, slab) = (&subsystem.held().abandoned, subsystem.slab());
    let is_own = |command: &Command| slab.slot(command).origin.controller == controller.number();
    changes.iter().any(|change| !change.is_under_way(slab)) || ready.iter().any(is_own)
}

/// Ends the commands that wait here, when their queue is gone.
fn forget(subsystem: &mut Subsystem, controller: u8, queue: Option<u16>) {
    let (HeldCommands { abandoned: Abandoned { held, ready, .. }, .. }, slab) = subsystem.held_and_slab();
    let is_own = |command: &mut Command| {
        let origin = slab.slot(command).origin;
        origin.controller == controller && queue.is_none_or(|id| id == origin.sq)
    };
    let mut ended: Vec<Command> = held.extract_if(.., is_own).collect();
    ended.extend(ready.extract_if(.., is_own));
    ended.into_iter().for_each(|command| subsystem.refuse(command, Status::ABORTED_SQ_DELETION));
}
