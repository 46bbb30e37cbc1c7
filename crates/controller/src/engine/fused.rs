//! Fused operations (Base 3.4.2): a Compare and a Write of the same blocks, in consecutive entries, which are
//! one atomic step to all other commands of the drive.
//!
//! A pair claims its blocks. Later commands for these blocks are held, of whichever controller. When the
//! commands that were under way have ended, the pair runs. A subsystem has at most one claim at a time. Other
//! blocks pay nothing for this: see [`Namespace::check`](crate::Namespace).
//!
//! The data of a pair must be in shared memory. A pair with data that only its client reaches fails with Data
//! Transfer Error.

use crate::command::compare;
use crate::command::fused::{check_access, check_entries};
use crate::command::transfer::transfer;
use crate::engine::intake::Intake;
use crate::engine::{abandoned, client_dma, firsts};
use crate::model::namespace::{is_offered, largest};
use crate::model::{Controller, Subsystem};
use crate::state::client_dma::has;
use crate::state::fused::{Claim, FUSED, First, HeldCommands, Pair, Step, WAITS, is_of};
use crate::state::limits::BATCH_MAX;
use crate::state::mailbox::Notice;
use crate::state::queue::SubmissionQueue;
use crate::state::reservation::Group;
use sluice_command::{Command, Operation, Origin, Slot};
use sluice_memory::{Access, Space};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};
use std::collections::VecDeque;
use std::ops::Range;

/// Values of FUSE.
const FIRST: u8 = 1;

const SECOND: u8 = 2;

/// Takes a command with FUSE that was just fetched out of `queue`.
#[cold]
pub(crate) fn collect(
    subsystem: &mut Subsystem,
    queue: &SubmissionQueue,
    command: Command,
    entry: &SubmissionEntry,
) {
    if !is_offered(subsystem) {
        return subsystem.refuse(command, Status::INVALID_FIELD);
    }
    subsystem.held_mut().fused.busy = true;
    let origin = subsystem.slab().slot(&command).origin;
    subsystem.slab_mut().slot_mut(&command).origin.opcode = WAITS;
    let (HeldCommands { fused, .. }, slab) = subsystem.held_and_slab();
    let is_same = |first: &First| is_of(slab.slot(&first.command).origin, origin);
    let before = fused.firsts.iter().position(is_same).map(|index| fused.firsts.swap_remove(index));
    let at = if queue.head == 0 { queue.size - 1 } else { queue.head - 1 };
    match (entry.fuse(), before) {
        (SECOND, Some(First { command: first, head })) if head == at => {
            fused.pairs.push_back(Pair { first, second: command });
        }
        (fuse, before) => {
            before
                .into_iter()
                .for_each(|first| subsystem.refuse(first.command, Status::ABORTED_MISSING_FUSED));
            match fuse {
                FIRST => subsystem.held_mut().fused.firsts.push(First { command, head: queue.head }),
                SECOND => subsystem.refuse(command, Status::ABORTED_MISSING_FUSED),
                _ => subsystem.refuse(command, Status::INVALID_FIELD),
            }
        }
    }
}

/// Continues pairs and held commands, and returns the number of commands that wait no longer. Part of a turn
/// of each controller while there is work.
#[cold]
pub(crate) fn advance(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    space: &Space,
    now_ns: u64,
) -> usize {
    let mut work = match subsystem.held().abandoned.is_empty() {
        true => 0,
        false => abandoned::advance(controller, subsystem, space, now_ns),
    };
    firsts::refuse_stranded(controller, subsystem);
    if subsystem.held().fused.claim.is_none() {
        let number = controller.number();
        let (HeldCommands { fused, .. }, slab) = subsystem.held_and_slab();
        let is_own = |command: &mut Command| slab.slot(command).origin.controller == number;
        // A host can have as many held commands as it may have in flight: the others go on with the next
        // turns.
        let own: Vec<Command> = fused.held.extract_if(.., is_own).take(BATCH_MAX as usize).collect();
        work += own.len();
        check_again(controller, subsystem, own, space, now_ns);
        if subsystem.held().fused.held.is_empty() {
            claim(controller, subsystem, space);
        }
    }
    start_pair(subsystem, now_ns);
    subsystem.held_mut().note_busy();
    if subsystem.held().fused.claim.is_none()
        && !(subsystem.held().fused.held.is_empty() && subsystem.held().fused.pairs.is_empty())
    {
        // The rest is for the next turn, or for other controllers, whose tasks may be asleep.
        subsystem.announce(Notice::Resumed);
    }
    work
}

/// Starts held commands again.
pub(crate) fn check_again(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    held: Vec<Command>,
    space: &Space,
    now_ns: u64,
) {
    for command in held {
        let entry = *subsystem.slab().entry(&command);
        let slot = subsystem.slab_mut().slot_mut(&command);
        (slot.origin.opcode, slot.status) = (entry.opcode, Status::SUCCESS);
        if slot.origin.carried {
            client_dma::restart(controller, subsystem, command, space, now_ns);
            continue;
        }
        let Controller { features, client_dma, .. } = &mut *controller;
        Intake { subsystem, space, features, client_dma, now_ns }.begin(command, &entry);
    }
}

/// Gives the next pair its blocks if it is of this controller. Commands that were held before come first.
fn claim(controller: &Controller, subsystem: &mut Subsystem, space: &Space) {
    // A host can have hundreds that fail, each with lists to walk: the others are for the next turns.
    for _ in 0..BATCH_MAX {
        let (HeldCommands { fused, .. }, slab) = subsystem.held_and_slab();
        let is_own = |pair: &&Pair| slab.slot(&pair.first).origin.controller == controller.number();
        if fused.pairs.front().filter(is_own).is_none() {
            return;
        }
        let Some(pair) = fused.pairs.pop_front() else { return };
        // The pair waits for abandoned commands as for all others under way.
        let nsid = slab.entry(&pair.first).nsid;
        let held_back = subsystem.get_mut(nsid).map(|namespace| namespace.hold_back(Vec::new()));
        let checked = prepare(controller, subsystem, &pair, space);
        if let (Some(namespace), Some(held_back)) = (subsystem.get_mut(nsid), held_back) {
            namespace.hold_back(held_back);
        }
        match checked {
            Ok((nsid, bytes)) => {
                let namespace = subsystem.get_mut(nsid);
                namespace.into_iter().for_each(|namespace| namespace.claim(Some(bytes.clone())));
                let number = subsystem.slab().number(&pair.first);
                mark_commands_ahead(subsystem, nsid, &bytes);
                subsystem.held_mut().fused.claim =
                    Some(Claim { nsid, bytes, number, step: Step::Waiting(pair) });
                return;
            }
            Err((first, second)) => {
                // Memory that only the client reaches is not fetched for pairs.
                let _ = space.take_missing();
                subsystem.refuse(pair.first, first);
                subsystem.refuse(pair.second, second);
            }
        }
    }
}

/// Prepares the Compare and the Write of a pair. An error has the status of each of the two.
fn prepare(
    controller: &Controller,
    subsystem: &mut Subsystem,
    pair: &Pair,
    space: &Space,
) -> Result<(u32, Range<u64>), (Status, Status)> {
    let (first, second) = (*subsystem.slab().entry(&pair.first), *subsystem.slab().entry(&pair.second));
    let both = |status| (status, status);
    check_entries(&first, &second).map_err(both)?;
    let nsid = first.nsid;
    if subsystem.active(controller.number(), nsid).is_none() {
        return Err(both(Subsystem::status_of_inactive(nsid)));
    }
    check_access(subsystem, number_of(subsystem, pair), nsid)?;
    let (Some(namespace), slab, staging) = subsystem.beside(nsid) else {
        return Err(both(Subsystem::status_of_inactive(nsid)));
    };
    if u64::from(first.blocks()) << namespace.block_shift() > largest(namespace) {
        return Err(both(Status::ATOMIC_WRITE_UNIT_EXCEEDED));
    }
    let number = slab.number(&pair.first);
    let slot = slab.slot_mut(&pair.first);
    slot.origin.namespace = (nsid - 1) as u8;
    compare::check(slot, number, staging, namespace, &first, space)
        .map_err(|status| (status, Status::ABORTED_FAILED_FUSED))?;
    let slot = slab.slot_mut(&pair.second);
    slot.origin.namespace = (nsid - 1) as u8;
    if let Err(status) = transfer(Operation::Write, Access::Read, slot, namespace, &second, space) {
        compare::forget_memory(slab.slot_mut(&pair.first));
        return Err((Status::ABORTED_FAILED_FUSED, status));
    }
    slot.request.fua |= !controller.features.write_cache_enabled();
    Ok((nsid, slot.request.offset..slot.request.end()))
}

/// Returns the number of a pair's controller.
fn number_of(subsystem: &Subsystem, pair: &Pair) -> u8 {
    subsystem.slab().slot(&pair.first).origin.controller
}

/// Starts the Compare when no other command works on its blocks.
fn start_pair(subsystem: &mut Subsystem, now_ns: u64) {
    if !is_ready(subsystem) {
        return;
    }
    let Some(Claim { nsid, bytes, number, step: Step::Waiting(pair) }) =
        subsystem.held_mut().fused.claim.take()
    else {
        return;
    };
    // The namespace may have been reserved meanwhile, or its path closed. No other work has waited for the
    // pair yet.
    if let Err((first, second)) = check_access(subsystem, number_of(subsystem, &pair), nsid) {
        compare::forget_memory(subsystem.slab_mut().slot_mut(&pair.first));
        subsystem.refuse(pair.first, first);
        subsystem.refuse(pair.second, second);
        return release(subsystem, nsid);
    }
    let Pair { first, second } = pair;
    // From now on both count as under way.
    subsystem.slab_mut().slot_mut(&first).origin.opcode = FUSED;
    subsystem.slab_mut().slot_mut(&second).origin.opcode = FUSED;
    subsystem.held_mut().fused.claim = Some(Claim { nsid, bytes, number, step: Step::Comparing(second) });
    subsystem.submit(nsid, first, now_ns);
}

/// Returns whether a waiting pair can start.
fn is_ready(subsystem: &Subsystem) -> bool {
    let Some(Claim { step: Step::Waiting(_), .. }) = &subsystem.held().fused.claim else { return false };
    !subsystem.slab().live().any(|slot| slot.origin.ahead && !has(slot))
}

/// Notes the commands under way that a pair for these blocks must wait for. Later commands are held, or do
/// not concern it.
fn mark_commands_ahead(subsystem: &mut Subsystem, nsid: u32, bytes: &Range<u64>) {
    let is_in_the_way = |slot: &Slot| {
        let Origin { sq, namespace, opcode, raw, .. } = slot.origin;
        let overlaps = slot.request.offset < bytes.end && bytes.start < slot.request.end();
        let concerned = match opcode {
            WAITS | opcode::FLUSH => false,
            // Such a command may itself wait for this pair.
            _ if Group::of_io(opcode) == Group::Free => false,
            opcode::COPY => true,
            _ if u32::from(namespace) + 1 != nsid => false,
            opcode::READ | opcode::WRITE | opcode::WRITE_ZEROES | opcode::WRITE_UNCORRECTABLE if !raw => {
                overlaps
            }
            _ => true,
        };
        !slot.is_child() && sq != 0 && sq != Origin::INTERNAL_SQ && slot.origin.is_host() && concerned
    };
    for slot in subsystem.slab_mut().live_mut() {
        slot.origin.ahead = is_in_the_way(slot);
    }
}

/// Returns whether a turn of this controller would continue something.
pub(crate) fn can_advance(controller: &Controller, subsystem: &Subsystem) -> bool {
    let fused = &subsystem.held().fused;
    let is_own = |command: &Command| subsystem.slab().slot(command).origin.controller == controller.number();
    let waits = fused.held.iter().any(is_own) || fused.pairs.front().is_some_and(|pair| is_own(&pair.first));
    is_ready(subsystem)
        || fused.claim.is_none() && waits
        || fused.firsts.iter().any(|first| firsts::is_stranded(controller, subsystem, first))
}

/// Continues the claim after a command of its pair is back from the layers.
pub(crate) fn next(controller: &mut Controller, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    let number = subsystem.slab().number(&command);
    let status = subsystem.slab().slot(&command).status;
    let Some(mut claim) = subsystem.held_mut().fused.claim.take_if(|claim| claim.number == number) else {
        // A host sent this opcode itself.
        return controller.finish(subsystem, command, status, 0);
    };
    let Step::Comparing(second) = claim.step else {
        release(subsystem, claim.nsid);
        return controller.finish(subsystem, command, status, 0);
    };
    let (slab, staging) = subsystem.slab_and_staging();
    let slot = slab.slot_mut(&command);
    let status = compare::step(slot, number, staging).err().unwrap_or(Status::SUCCESS);
    compare::forget_memory(slot);
    controller.finish(subsystem, command, status, 0);
    if !status.is_success() {
        release(subsystem, claim.nsid);
        return controller.finish(subsystem, second, Status::ABORTED_FAILED_FUSED, 0);
    }
    (claim.number, claim.step) = (subsystem.slab().number(&second), Step::Writing);
    let nsid = claim.nsid;
    subsystem.held_mut().fused.claim = Some(claim);
    subsystem.submit(nsid, second, now_ns);
}

fn release(subsystem: &mut Subsystem, nsid: u32) {
    subsystem.get_mut(nsid).into_iter().for_each(|namespace| namespace.claim(None));
}

/// Ends the commands that wait here of a controller whose queues are gone, or of one queue. A running pair
/// goes on.
pub(crate) fn forget(subsystem: &mut Subsystem, number: u8, queue: Option<u16>) {
    if !subsystem.has_held_work() {
        return;
    }
    let (HeldCommands { fused, .. }, slab) = subsystem.held_and_slab();
    let is_own = |command: &Command| {
        let origin = slab.slot(command).origin;
        origin.controller == number && queue.is_none_or(|id| id == origin.sq)
    };
    let mut ended: Vec<Command> = fused.held.extract_if(.., |command| is_own(command)).collect();
    ended.extend(fused.firsts.extract_if(.., |first| is_own(&first.command)).map(|first| first.command));
    let (own, others) = std::mem::take(&mut fused.pairs).into_iter().partition(|pair| is_own(&pair.first));
    fused.pairs = others;
    let own: VecDeque<Pair> = own;
    ended.extend(own.into_iter().flat_map(|Pair { first, second }| [first, second]));
    let waits = |claim: &mut Claim| matches!(&claim.step, Step::Waiting(pair) if is_own(&pair.first));
    if let Some(Claim { nsid, step: Step::Waiting(Pair { first, second }), .. }) = fused.claim.take_if(waits)
    {
        compare::forget_memory(subsystem.slab_mut().slot_mut(&first));
        ended.extend([first, second]);
        release(subsystem, nsid);
    }
    ended.into_iter().for_each(|command| subsystem.refuse(command, Status::ABORTED_SQ_DELETION));
}
