//! Write Uncorrectable (NVM Command Set 3.2.7): blocks that cannot be read until they are written again.
//!
//! Each change of these ranges is persisted before the host's command completes, so that it survives a
//! restart of the daemon. So a write over such a block waits for the disk with the daemon's state, and is
//! durable itself. A namespace without such ranges pays nothing: see [`Namespace::check`](crate::Namespace).

use crate::model::Subsystem;
use crate::state::persist::PersistentRecord;
use crate::state::uncorrectable::{Persisting, Step, UNCORRECTABLE_RANGES_MAX, UncorrectableRanges, bytes};
use sluice_command::Command;
use sluice_nvme::Status;
use sluice_nvme::opcode::io as opcode;

/// Changes the ranges for a command whose last step in the layers is done.
pub(crate) fn change(subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    subsystem.jobs_mut().uncorrectable.waiting.push_back(Step::Command(command));
    advance(subsystem, now_ns);
}

/// Removes the ranges behind `end`: the namespace was resized, and there are no blocks behind it, or new
/// ones.
pub(crate) fn resized(subsystem: &mut Subsystem, nsid: u32, end: u64) {
    subsystem.jobs_mut().uncorrectable.waiting.push_back(Step::Truncate { nsid, end });
    advance(subsystem, 0);
}

/// Starts the next change, if none is being persisted.
fn advance(subsystem: &mut Subsystem, now_ns: u64) {
    while subsystem.jobs().uncorrectable.persisting.is_none()
        && let Some(first) = subsystem.jobs().uncorrectable.waiting.front()
    {
        let nsid = match first {
            Step::Command(command) => subsystem.entry(command).nsid,
            Step::Truncate { nsid, .. } => *nsid,
        };
        begin(subsystem, nsid, now_ns);
    }
}

/// Persists all waiting changes of this namespace.
fn begin(subsystem: &mut Subsystem, nsid: u32, now_ns: u64) {
    let before = subsystem
        .get(nsid)
        .map_or(UncorrectableRanges::default(), |namespace| namespace.uncorrectable().clone());
    let (mut during, mut after, mut commands) = (before.clone(), before.clone(), Vec::new());
    for step in std::mem::take(&mut subsystem.jobs_mut().uncorrectable.waiting) {
        let command = match step {
            Step::Truncate { nsid: of, end } if of == nsid => {
                after.remove(&(end..u64::MAX));
                continue;
            }
            Step::Command(command) if subsystem.entry(&command).nsid == nsid => command,
            step => {
                subsystem.jobs_mut().uncorrectable.waiting.push_back(step);
                continue;
            }
        };
        let (adds, range) = (adds_ranges(subsystem, &command), bytes(subsystem.slot(&command)));
        let mut next = after.clone();
        match adds {
            true => next.add(range.clone()),
            false => next.remove(&range),
        }
        if subsystem.get(nsid).is_none() {
            finish(subsystem, command, Status::INVALID_NAMESPACE);
        } else if next.0.len() > after.0.len() && next.0.len() > UNCORRECTABLE_RANGES_MAX {
            // A write inside a range would split it in two. The write fails, and so its blocks may stay
            // uncorrectable.
            finish(subsystem, command, if adds { Status::CAPACITY_EXCEEDED } else { Status::WRITE_FAULT });
        } else {
            // Both states are possible after a loss of power, so the blocks already count as uncorrectable. A
            // write that ends meanwhile waits, too.
            if adds {
                during.add(range);
            }
            after = next;
            commands.push(command);
        }
    }
    if after == before {
        return commands.into_iter().for_each(|command| finish(subsystem, command, Status::SUCCESS));
    }
    let ranges = after.0.iter().map(|existing| [existing.start, existing.end]).collect();
    set(subsystem, nsid, during);
    subsystem.jobs_mut().uncorrectable.persisting = Some(Persisting { commands, nsid, before, after });
    subsystem.persist(PersistentRecord::Uncorrectable { nsid, ranges }, now_ns);
}

/// Returns whether a command adds ranges; all others remove them.
fn adds_ranges(subsystem: &Subsystem, command: &Command) -> bool {
    subsystem.entry(command).opcode == opcode::WRITE_UNCORRECTABLE
}

fn set(subsystem: &mut Subsystem, nsid: u32, ranges: UncorrectableRanges) {
    subsystem.get_mut(nsid).into_iter().for_each(|namespace| namespace.set_uncorrectable(ranges.clone()));
}

fn finish(subsystem: &mut Subsystem, command: Command, status: Status) {
    let adds = adds_ranges(subsystem, &command);
    subsystem.decide_with(command, status, |slot| {
        // The last step is that of any write.
        slot.origin.opcode = opcode::WRITE;
        if adds {
            slot.request.length = 0;
        }
    });
}

/// Finishes commands whose ranges were persisted, or were not.
pub(crate) fn persisted(subsystem: &mut Subsystem, well: bool, now_ns: u64) {
    let Some(Persisting { commands, nsid, before, after }) =
        subsystem.jobs_mut().uncorrectable.persisting.take()
    else {
        return;
    };
    set(subsystem, nsid, if well { after } else { before });
    let status = if well { Status::SUCCESS } else { Status::INTERNAL_ERROR };
    commands.into_iter().for_each(|command| finish(subsystem, command, status));
    advance(subsystem, now_ns);
}

impl Subsystem {
    /// Restores ranges, in bytes, before the first turn.
    pub fn resume_uncorrectable(&mut self, nsid: u32, ranges: &[[u64; 2]]) {
        let mut uncorrectable = UncorrectableRanges::default();
        ranges
            .iter()
            .filter(|[start, end]| start < end)
            .for_each(|[start, end]| uncorrectable.add(*start..*end));
        set(self, nsid, uncorrectable);
    }
}
