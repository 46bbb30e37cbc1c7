//! Write Uncorrectable (NVM Command Set 3.2.7): blocks that cannot be read until they are written again.
//!
//! Which those are is remembered before the host is told, so that it holds over a restart of the daemon: that they are
//! marked, and that they are not any more. So a write over a marked block waits for the disk with the daemon's state, and
//! is made durable itself. Where nothing is marked no command knows of any of this: see [`Namespace::check`].

use crate::io;
use crate::{Controller, Keep, Namespace, Subsystem};
use sluice_command::{Command, Operation, Slot};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};
use std::collections::VecDeque;
use std::ops::Range;

/// Marked ranges of a namespace.
pub const MARKS_MAX: usize = 512;

/// Marked ranges of a namespace, in bytes: in order, and with something between any two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks(Vec<Range<u64>>);

impl Marks {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn overlap(&self, range: &Range<u64>) -> bool {
        let at = self.0.partition_point(|mark| mark.end <= range.start);
        self.0.get(at).is_some_and(|mark| mark.start < range.end)
    }

    fn add(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        self.0.retain(|mark| {
            let joins = mark.start <= end && start <= mark.end;
            if joins {
                (start, end) = (start.min(mark.start), end.max(mark.end));
            }
            !joins
        });
        let at = self.0.partition_point(|mark| mark.end < start);
        self.0.insert(at, start..end);
    }

    fn remove(&mut self, range: &Range<u64>) {
        let left = |mark: Range<u64>| {
            let (before, after) =
                (mark.start..mark.end.min(range.start), mark.start.max(range.end)..mark.end);
            [before, after].into_iter().filter(|part| part.start < part.end)
        };
        self.0 = std::mem::take(&mut self.0).into_iter().flat_map(left).collect();
    }
}

/// What changes marks, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Marking {
    waiting: VecDeque<Step>,
    kept: Option<Kept>,
}

#[derive(Debug)]
enum Step {
    /// Its end sets or takes away marks.
    Command(Command),
    /// The namespace has no blocks from this byte on, or has new ones there.
    Cut { nsid: u32, end: u64 },
}

/// Commands whose outcome is being remembered, all at once: how often that can be is [limited](crate::keep).
#[derive(Debug)]
struct Kept {
    commands: Vec<Command>,
    nsid: u32,
    /// Marks of the namespace if that cannot be, and if it was.
    before: Marks,
    after: Marks,
}

impl Drop for Marking {
    fn drop(&mut self) {
        let kept = self.kept.take().into_iter().flat_map(|kept| kept.commands);
        let waiting = self.waiting.drain(..).filter_map(|step| match step {
            Step::Command(command) => Some(command),
            Step::Cut { .. } => None,
        });
        kept.chain(waiting).for_each(std::mem::forget);
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

/// A write of marked blocks takes the marks away when it is done.
#[cold]
pub(crate) fn note_write(slot: &mut Slot, namespace: &Namespace) {
    if namespace.is_marked(&bytes(slot)) {
        slot.origin.opcode = opcode::WRITE_UNCORRECTABLE;
        // Nothing that was there before the mark comes back with a power cut.
        slot.request.fua = true;
    }
}

fn bytes(slot: &Slot) -> Range<u64> {
    slot.request.offset..slot.request.end()
}

/// A Copy has written all of this.
pub(crate) fn copied(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    command: Command,
    to: Range<u64>,
    now_ns: u64,
) {
    let nsid = subsystem.slab.entry(&command).nsid;
    if !subsystem.get(nsid).is_some_and(|namespace| namespace.is_marked(&to)) {
        return controller.finish(subsystem, command, Status::SUCCESS, 0);
    }
    let slot = subsystem.slab.slot_mut(&command);
    (slot.request.offset, slot.request.length) = (to.start, to.end - to.start);
    next(controller, subsystem, command, now_ns);
}

/// What changes marks has come to its end.
pub(crate) fn next(controller: &mut Controller, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    let status = subsystem.slab.slot(&command).status;
    if !status.is_success() {
        return controller.finish(subsystem, command, status, 0);
    }
    subsystem.marking.waiting.push_back(Step::Command(command));
    advance(subsystem, now_ns);
}

/// A namespace ends elsewhere: what was marked behind `end` bytes is no block of it any more, or none that was marked.
pub(crate) fn resized(subsystem: &mut Subsystem, nsid: u32, end: u64) {
    subsystem.marking.waiting.push_back(Step::Cut { nsid, end });
    advance(subsystem, 0);
}

/// Goes on with those that wait, if nothing is being remembered.
fn advance(subsystem: &mut Subsystem, now_ns: u64) {
    while subsystem.marking.kept.is_none()
        && let Some(first) = subsystem.marking.waiting.front()
    {
        let nsid = match first {
            Step::Command(command) => subsystem.slab.entry(command).nsid,
            Step::Cut { nsid, .. } => *nsid,
        };
        begin(subsystem, nsid, now_ns);
    }
}

/// Has remembered what all that waits for this namespace makes of its marks.
fn begin(subsystem: &mut Subsystem, nsid: u32, now_ns: u64) {
    let before = subsystem.get(nsid).map_or(Marks::default(), |namespace| namespace.marks().clone());
    let (mut during, mut after, mut commands) = (before.clone(), before.clone(), Vec::new());
    for step in std::mem::take(&mut subsystem.marking.waiting) {
        let command = match step {
            Step::Cut { nsid: of, end } if of == nsid => {
                after.remove(&(end..u64::MAX));
                continue;
            }
            Step::Command(command) if subsystem.slab.entry(&command).nsid == nsid => command,
            step => {
                subsystem.marking.waiting.push_back(step);
                continue;
            }
        };
        let (marks, range) = (is_mark(subsystem, &command), bytes(subsystem.slab.slot(&command)));
        let mut next = after.clone();
        match marks {
            true => next.add(range.clone()),
            false => next.remove(&range),
        }
        if subsystem.get(nsid).is_none() {
            finish(subsystem, command, Status::INVALID_NAMESPACE);
        } else if next.0.len() > after.0.len() && next.0.len() > MARKS_MAX {
            // A write within a range would leave two: its blocks stay marked, which is to say that it failed.
            finish(subsystem, command, if marks { Status::CAPACITY_EXCEEDED } else { Status::WRITE_FAULT });
        } else {
            // While both could be so after a loss of power, what was marked is: a write that is done meanwhile waits, too.
            if marks {
                during.add(range);
            }
            after = next;
            commands.push(command);
        }
    }
    if after == before {
        return commands.into_iter().for_each(|command| finish(subsystem, command, Status::SUCCESS));
    }
    let ranges = after.0.iter().map(|mark| [mark.start, mark.end]).collect();
    set(subsystem, nsid, during);
    subsystem.marking.kept = Some(Kept { commands, nsid, before, after });
    subsystem.keep(Keep::Uncorrectable { nsid, ranges }, now_ns);
}

/// It sets marks; others take them away.
fn is_mark(subsystem: &Subsystem, command: &Command) -> bool {
    subsystem.slab.entry(command).opcode == opcode::WRITE_UNCORRECTABLE
}

fn set(subsystem: &mut Subsystem, nsid: u32, marks: Marks) {
    subsystem.get_mut(nsid).into_iter().for_each(|namespace| namespace.mark(marks.clone()));
}

fn finish(subsystem: &mut Subsystem, command: Command, status: Status) {
    let marks = is_mark(subsystem, &command);
    let slot = subsystem.slab.slot_mut(&command);
    slot.status = status;
    // Its last step, as of any write.
    slot.origin.opcode = opcode::WRITE;
    if marks {
        slot.request.length = 0;
    }
    subsystem.done.push(command);
}

/// The marks are remembered, or could not be.
pub(crate) fn kept(subsystem: &mut Subsystem, well: bool, now_ns: u64) {
    let Some(Kept { commands, nsid, before, after }) = subsystem.marking.kept.take() else { return };
    set(subsystem, nsid, if well { after } else { before });
    let status = if well { Status::SUCCESS } else { Status::INTERNAL_ERROR };
    commands.into_iter().for_each(|command| finish(subsystem, command, status));
    advance(subsystem, now_ns);
}

impl Subsystem {
    /// Before its first turn: blocks that were marked under the daemon before this one, bytes.
    pub fn resume_uncorrectable(&mut self, nsid: u32, ranges: &[[u64; 2]]) {
        let mut marks = Marks::default();
        ranges.iter().filter(|[start, end]| start < end).for_each(|[start, end]| marks.add(*start..*end));
        set(self, nsid, marks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list of blocks, with numbers that a fixed rule makes.
    #[test]
    fn marks_are_what_was_marked_and_not_written_since() {
        let (mut marks, mut model, mut state) = (Marks::default(), [false; 64], 1u64);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            let start = random(64);
            let end = start + random(64 - start) + 1;
            let marked = random(2) == 0;
            match marked {
                true => marks.add(start..end),
                false => marks.remove(&(start..end)),
            }
            model[start as usize..end as usize].fill(marked);
            for block in 0..64 {
                assert_eq!(marks.overlap(&(block..block + 1)), model[block as usize], "{marks:?}");
            }
            assert!(marks.0.windows(2).all(|two| two[0].end < two[1].start), "{marks:?}");
            assert!(marks.0.iter().all(|mark| mark.start < mark.end), "{marks:?}");
        }
    }
}
