//! Write Uncorrectable (NVM Command Set 3.2.7): blocks that cannot be read until they are written again.
//!
//! Each change of these ranges is persisted before the host's command completes, so that it survives a
//! restart of the daemon. So a write over such a block waits for the disk with the daemon's state, and is
//! durable itself. A namespace without such ranges pays nothing: see [`Namespace::check`].

use crate::io;
use crate::{Controller, Namespace, PersistentRecord, Subsystem};
use sluice_command::{Command, Operation, Slot};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};
use std::collections::VecDeque;
use std::ops::Range;

/// Uncorrectable ranges of a namespace.
pub const UNCORRECTABLE_RANGES_MAX: usize = 512;

/// Uncorrectable ranges of a namespace, in bytes, ordered and with a gap between any two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UncorrectableRanges(Vec<Range<u64>>);

impl UncorrectableRanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn overlap(&self, range: &Range<u64>) -> bool {
        let at = self.0.partition_point(|existing| existing.end <= range.start);
        self.0.get(at).is_some_and(|existing| existing.start < range.end)
    }

    fn add(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        self.0.retain(|existing| {
            let joins = existing.start <= end && start <= existing.end;
            if joins {
                (start, end) = (start.min(existing.start), end.max(existing.end));
            }
            !joins
        });
        let at = self.0.partition_point(|existing| existing.end < start);
        self.0.insert(at, start..end);
    }

    fn remove(&mut self, range: &Range<u64>) {
        let left = |existing: Range<u64>| {
            let (before, after) =
                (existing.start..existing.end.min(range.start), existing.start.max(range.end)..existing.end);
            [before, after].into_iter().filter(|part| part.start < part.end)
        };
        self.0 = std::mem::take(&mut self.0).into_iter().flat_map(left).collect();
    }
}

/// Changes of uncorrectable ranges, one after the other.
#[derive(Debug, Default)]
pub(crate) struct UncorrectableUpdates {
    waiting: VecDeque<Step>,
    persisting: Option<Persisting>,
}

#[derive(Debug)]
enum Step {
    /// Command whose end adds or removes ranges.
    Command(Command),
    /// End of the namespace, or of its old blocks, at this byte.
    Truncate { nsid: u32, end: u64 },
}

/// Commands whose change is being persisted. They share one record, since the [rate is
/// limited](crate::persist).
#[derive(Debug)]
struct Persisting {
    commands: Vec<Command>,
    nsid: u32,
    /// Ranges of the namespace if persisting fails, and if it succeeds.
    before: UncorrectableRanges,
    after: UncorrectableRanges,
}

impl Drop for UncorrectableUpdates {
    fn drop(&mut self) {
        let persisting = self.persisting.take().into_iter().flat_map(|persisting| persisting.commands);
        let waiting = self.waiting.drain(..).filter_map(|step| match step {
            Step::Command(command) => Some(command),
            Step::Truncate { .. } => None,
        });
        persisting.chain(waiting).for_each(std::mem::forget);
    }
}

/// Checks a Write Uncorrectable. Nothing goes to the layers.
#[cold]
pub(crate) fn check(slot: &mut Slot, namespace: &Namespace, entry: &SubmissionEntry) -> Result<(), Status> {
    if namespace.is_read_only() {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    slot.request = io::range(Operation::Write, namespace, entry)?;
    Ok(())
}

/// Turns a write of uncorrectable blocks into one that removes the ranges when it is done.
#[cold]
pub(crate) fn note_write(slot: &mut Slot, namespace: &Namespace) {
    if namespace.is_uncorrectable(&bytes(slot)) {
        slot.origin.opcode = opcode::WRITE_UNCORRECTABLE;
        // Otherwise a power cut could bring back data from before the Write Uncorrectable.
        slot.request.fua = true;
    }
}

fn bytes(slot: &Slot) -> Range<u64> {
    slot.request.offset..slot.request.end()
}

/// Ends a Copy that has written all of this range.
pub(crate) fn copied(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    to: Range<u64>,
    now_ns: u64,
) {
    let nsid = subsystem.slab.entry(&command).nsid;
    if !subsystem.get(nsid).is_some_and(|namespace| namespace.is_uncorrectable(&to)) {
        return controller.finish(subsystem, command, Status::SUCCESS, 0);
    }
    let slot = subsystem.slab.slot_mut(&command);
    (slot.request.offset, slot.request.length) = (to.start, to.end - to.start);
    next(controller, subsystem, command, now_ns);
}

/// Continues a command that changes ranges after its last step in the layers.
pub(crate) fn next(controller: &mut Controller, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    let status = subsystem.slab.slot(&command).status;
    if !status.is_success() {
        return controller.finish(subsystem, command, status, 0);
    }
    subsystem.uncorrectable.waiting.push_back(Step::Command(command));
    advance(subsystem, now_ns);
}

/// Removes the ranges behind `end`: the namespace was resized, and there are no blocks behind it, or new
/// ones.
pub(crate) fn resized(subsystem: &mut Subsystem, nsid: u32, end: u64) {
    subsystem.uncorrectable.waiting.push_back(Step::Truncate { nsid, end });
    advance(subsystem, 0);
}

/// Starts the next change, if none is being persisted.
fn advance(subsystem: &mut Subsystem, now_ns: u64) {
    while subsystem.uncorrectable.persisting.is_none()
        && let Some(first) = subsystem.uncorrectable.waiting.front()
    {
        let nsid = match first {
            Step::Command(command) => subsystem.slab.entry(command).nsid,
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
    for step in std::mem::take(&mut subsystem.uncorrectable.waiting) {
        let command = match step {
            Step::Truncate { nsid: of, end } if of == nsid => {
                after.remove(&(end..u64::MAX));
                continue;
            }
            Step::Command(command) if subsystem.slab.entry(&command).nsid == nsid => command,
            step => {
                subsystem.uncorrectable.waiting.push_back(step);
                continue;
            }
        };
        let (adds, range) = (adds_ranges(subsystem, &command), bytes(subsystem.slab.slot(&command)));
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
    subsystem.uncorrectable.persisting = Some(Persisting { commands, nsid, before, after });
    subsystem.persist(PersistentRecord::Uncorrectable { nsid, ranges }, now_ns);
}

/// Returns whether a command adds ranges; all others remove them.
fn adds_ranges(subsystem: &Subsystem, command: &Command) -> bool {
    subsystem.slab.entry(command).opcode == opcode::WRITE_UNCORRECTABLE
}

fn set(subsystem: &mut Subsystem, nsid: u32, ranges: UncorrectableRanges) {
    subsystem.get_mut(nsid).into_iter().for_each(|namespace| namespace.set_uncorrectable(ranges.clone()));
}

fn finish(subsystem: &mut Subsystem, command: Command, status: Status) {
    let adds = adds_ranges(subsystem, &command);
    let slot = subsystem.slab.slot_mut(&command);
    slot.status = status;
    // The last step is that of any write.
    slot.origin.opcode = opcode::WRITE;
    if adds {
        slot.request.length = 0;
    }
    subsystem.done.push(command);
}

/// Finishes commands whose ranges were persisted, or were not.
pub(crate) fn persisted(subsystem: &mut Subsystem, well: bool, now_ns: u64) {
    let Some(Persisting { commands, nsid, before, after }) = subsystem.uncorrectable.persisting.take() else {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a list of blocks, for reproducible pseudo-random numbers.
    #[test]
    fn ranges_follow_a_model_of_blocks() {
        let (mut ranges, mut model, mut state) = (UncorrectableRanges::default(), [false; 64], 1u64);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            let start = random(64);
            let end = start + random(64 - start) + 1;
            let marked = random(2) == 0;
            match marked {
                true => ranges.add(start..end),
                false => ranges.remove(&(start..end)),
            }
            model[start as usize..end as usize].fill(marked);
            for block in 0..64 {
                assert_eq!(ranges.overlap(&(block..block + 1)), model[block as usize], "{ranges:?}");
            }
            assert!(ranges.0.windows(2).all(|two| two[0].end < two[1].start), "{ranges:?}");
            assert!(ranges.0.iter().all(|existing| existing.start < existing.end), "{ranges:?}");
        }
    }
}
