//! Recovery of a controller whose process has died.

use crate::engine::intake::Intake;
use crate::engine::{admin, complete};
use crate::model::{Controller, Subsystem};
use crate::state::kept::is_repeatable;
use crate::state::queue::{CompletionQueue, SubmissionQueue};
use crate::state::record::{CannotHandOver, ControllerRecord};
use sluice_command::Command;
use sluice_command::handover::{CommandRecord, Commands, QueueRecord, Queues};
use sluice_memory::{SharedRegion, Space};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};
use std::sync::atomic::Ordering::Acquire;
use zerocopy::transmute;

/// State that a dead process has left of a controller, besides the last record of it.
#[derive(Debug)]
pub struct Remains {
    pub queues: Box<Queues>,
    /// Commands of all controllers of the drive.
    pub commands: Box<Commands>,
    /// Results of admin commands whose effects are in the record. The host may have them or not.
    pub results: Vec<CompletionEntry>,
}

impl Controller {
    /// Continues the controller of a process that has died, as [`take_over`](Self::take_over) does for one that
    /// has handed over. The commands that were in flight wait until they are [repeated](Self::repeat).
    ///
    /// # Errors
    /// The record does not fit. The controller must not get a turn.
    pub fn recover(
        &mut self,
        subsystem: &mut Subsystem,
        mut record: ControllerRecord,
        doorbells: SharedRegion,
        remains: Remains,
        space: &Space,
        now_ns: u64,
    ) -> Result<(), CannotHandOver> {
        let Remains { queues, commands, results } = remains;
        // The requests are among the commands in flight.
        record.requests.clear();
        for it in record.sqs.iter_mut().filter(|it| it.id != 0) {
            let left = queues.sqs.get(usize::from(it.id)).filter(|left| is_same(left, it.address, it.size));
            it.head = left.map(|left| left.index).filter(|head| *head < it.size).unwrap_or(it.head);
        }
        for it in record.cqs.iter_mut().filter(|it| it.id != 0) {
            let left = queues.cqs.get(usize::from(it.id)).filter(|left| is_same(left, it.address, it.size));
            let left = left.map(|left| (left.index & !(1 << 31), left.index >> 31 == 1));
            (it.tail, it.phase) = left.filter(|(tail, _)| *tail < it.size).unwrap_or((it.tail, it.phase));
        }
        self.take_over(subsystem, record, doorbells, space, now_ns)?;
        let is_its = |it: &&CommandRecord| it.live == 1 && u64::from(it.controller) == queues.controller;
        let mut live: Vec<&CommandRecord> = commands.commands.iter().filter(is_its).collect();
        let Self { sqs, cqs, doorbells, .. } = self;
        for cq in cqs.iter_mut().skip(1).flatten() {
            let done = posted(cq);
            live.retain(|it| !done.contains(&(it.sq, it.entry.cid)));
            let head = doorbells.cq_head(cq.id);
            cq.head = if head < cq.size { head } else { cq.tail };
        }
        for sq in sqs.iter_mut().flatten() {
            let tail = doorbells.sq_tail(sq.id);
            match sq.id {
                // Its head is that of the record, and entries behind it are taken again.
                0 => {
                    live.retain(|it| it.sq != 0 || !entries(sq, tail).any(|entry| entry.cid == it.entry.cid))
                }
                _ => pass_taken(sq, tail, &live),
            }
            doorbells.put_event_index_behind(sq.id, sq.head);
        }
        // In flight from now on, so that they are not lost if this process dies, too.
        let repeats = live.iter().filter_map(|it| self.admit_again(subsystem, it)).collect();
        self.take_remains(repeats, results);
        // The host may have these entries, which do not change by being written again.
        self.release_results();
        let queues: Vec<u16> = self.sqs.iter().flatten().map(|sq| sq.id).collect();
        queues.into_iter().for_each(|id| self.note_head(id));
        let queues: Vec<u16> = self.cqs.iter().flatten().map(|cq| cq.id).collect();
        queues.into_iter().for_each(|id| self.note_tail(id));
        Ok(())
    }

    /// Takes a slot for a command that was in flight. Its queues may be gone.
    fn admit_again(&mut self, subsystem: &mut Subsystem, it: &CommandRecord) -> Option<Command> {
        let sq = self.sqs.get_mut(usize::from(it.sq))?.as_mut()?;
        let cq = self.cqs[usize::from(sq.cq)].as_mut()?;
        let command = subsystem.slab_mut().admit(&it.entry, sq.origin(&it.entry))?;
        sq.in_flight += 1;
        cq.reserve(1);
        Some(command)
    }

    /// Repeats the commands that were in flight when their process died, before the client's messages are handled:
    /// one may unmap their memory. A command that may not be executed twice fails with Internal Error: its outcome is unknown.
    pub fn repeat(&mut self, subsystem: &mut Subsystem, space: &Space, now_ns: u64) {
        subsystem.begin_moving();
        for command in self.take_repeats() {
            let (entry, id) = (*subsystem.entry(&command), subsystem.slab().slot(&command).origin.sq);
            if !is_repeatable(id, &entry) {
                complete::refuse(self, subsystem, command, Status::INTERNAL_ERROR);
            } else if id == 0 {
                admin::begin(self, subsystem, command, &entry, space, now_ns);
            } else {
                let Self { features, client_dma, .. } = self;
                Intake { subsystem, space, features, client_dma, now_ns }.begin(command, &entry);
            }
        }
        self.run_completions(subsystem, now_ns);
    }
}

fn is_same(left: &QueueRecord, address: u64, size: u32) -> bool {
    left.address == address && left.size == size
}

/// Moves the tail of a queue behind the entries that were posted and not noted. Returns their commands, each with its
/// submission queue. Older entries have the other phase.
fn posted(cq: &mut CompletionQueue) -> Vec<(u16, u16)> {
    let mut found = Vec::new();
    for _ in 0..cq.size {
        let (tail, phase) = (cq.tail, cq.position() >> 31);
        let at = tail as usize * CompletionEntry::SIZE;
        let last = cq.memory.load_u32(at + 12, Acquire);
        if last >> 16 & 1 != phase {
            break;
        }
        let queues = cq.memory.load_u32(at + 8, Acquire);
        found.push(((queues >> 16) as u16, last as u16));
        let (next, phase) = if tail + 1 == cq.size { (0, phase == 0) } else { (tail + 1, phase == 1) };
        cq.resume_at(next, phase);
    }
    found
}

/// Returns the entries of a queue from its head to its tail.
fn entries(sq: &SubmissionQueue, tail: u32) -> impl Iterator<Item = SubmissionEntry> {
    let count = if tail < sq.size { sq.waiting(tail) } else { 0 };
    (0..count).map(|after| entry(sq, after))
}

fn entry(sq: &SubmissionQueue, after: u32) -> SubmissionEntry {
    let index = (sq.head + after) % sq.size;
    transmute!(sq.memory.read_entry(index as usize * SubmissionEntry::SIZE))
}

/// Moves the head of a queue behind the entries that were taken and not noted: those of commands in flight.
fn pass_taken(sq: &mut SubmissionQueue, tail: u32, live: &[&CommandRecord]) {
    let is_live = |entry: &SubmissionEntry| live.iter().any(|it| it.sq == sq.id && it.entry == *entry);
    let taken = entries(sq, tail).take_while(is_live).count() as u32;
    sq.head = (sq.head + taken) % sq.size;
}
