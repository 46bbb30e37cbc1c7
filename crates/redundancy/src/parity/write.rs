//! Changes on their way: the new cells, the journal, and the members.

use super::array::{Access, End, Parity, Step};
use super::code::Cells;
use super::ops::Kind;
use super::plan::Way;
use super::ring::format::{self, Entry};
use super::ring::{BATCH_MAX, ENTRIES_MAX};
use super::state::UNSYNCED;
use super::{NOTES_BYTES, OpId};
use crate::{BLOCK, Members};
use crc32c::crc32c_append;
use std::collections::VecDeque;

/// Attempts to write a batch before its operations fail.
const TRIES: u32 = 3;

/// Cells of an operation in a batch: bytes `from` on of its memory go to byte `to` of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPart {
    pub op: OpId,
    pub from: usize,
    pub to: usize,
    pub length: usize,
}

/// Changes that wait for the journal, and the batch in flight.
#[derive(Debug, Default)]
pub(super) struct Batches {
    waiting: VecDeque<OpId>,
    issued: Vec<OpId>,
    entries: Vec<Entry>,
    parts: Vec<BatchPart>,
    head: Vec<u8>,
    failures: u32,
}

impl Batches {
    /// Returns whether the journal cannot be written.
    pub(super) fn are_broken(&self) -> bool {
        self.failures >= TRIES
    }
}

impl Parity {
    /// Computes the new cells of a change.
    pub(super) fn compute_write(&mut self, id: OpId, cells: &mut Cells<'_>, host: &[u8]) {
        let geometry = self.geometry();
        let op = &self.ops.list[id as usize];
        let (columns, way, zeroes) = (op.rect.columns.clone(), op.plan.way, self.is_zeroes(op.command));
        let missing = self.missing_of(id);
        let parities = ((1u32 << geometry.parities) - 1) << geometry.columns();
        let kept = parities & !missing;
        if way == Way::Recover {
            cells.recover(missing);
        }
        for column in columns.clone() {
            if way == Way::Modify {
                cells.fold(column, kept);
            }
            match (zeroes, host.get(self.host_range(id, column))) {
                (true, _) => cells.cell(column).fill(0),
                (false, Some(data)) => cells.cell(column).copy_from_slice(data),
                (false, None) => return self.finish_op(id, End::WriteFailed),
            }
            if way == Way::Modify {
                cells.fold(column, kept);
            }
        }
        if way != Way::Modify {
            cells.encode();
        }
        let computed = if way == Way::Modify { kept } else { parities };
        self.choose_cells(id, columns.fold(computed, |roles, column| roles | 1 << column), parities);
        let op = &mut self.ops.list[id as usize];
        op.checksum = (0..geometry.members)
            .filter(|role| op.cells >> role & 1 == 1)
            .fold(0, |checksum, role| crc32c_append(checksum, cells.cell(role)));
        self.batches.waiting.push_back(id);
    }

    /// Chooses the cells to write among those `computed`, and notes the members that miss a change.
    fn choose_cells(&mut self, id: OpId, computed: u32, parities: u32) {
        let (geometry, stripe) = (self.geometry(), self.stripe_of(id));
        // Parities that are not computed yet are no member's loss. They are not computed after a replay, either.
        let is_synced = self.is_synced(&self.ops.list[id as usize].rect.rows);
        let (parities, mut absent) = if is_synced { (parities, Members::NONE) } else { (0, UNSYNCED) };
        let op = &mut self.ops.list[id as usize];
        let mut cells = 0;
        for role in (0..geometry.members).filter(|role| (computed | parities) >> role & 1 == 1) {
            let member = geometry.member(stripe, role);
            if computed >> role & 1 == 1 && self.member_state.joined.contains(member) {
                cells |= 1 << role;
            } else {
                absent = absent.with(Members::one(member));
            }
        }
        (op.cells, op.absent) = (cells, absent);
    }

    /// Begins a write of zeros to whole rows of all members.
    pub(super) fn start_zeroes(&mut self, id: OpId) {
        let absent = self.state.members.without(self.member_state.joined);
        let op = &mut self.ops.list[id as usize];
        (op.cells, op.absent) = (u32::MAX, absent);
        self.batches.waiting.push_back(id);
    }

    /// Begins the next batch of the journal, if there is room.
    pub(super) fn begin_batch(&mut self) {
        if self.batches.waiting.is_empty() || !self.batches.issued.is_empty() || !self.ring.has_room() {
            return;
        }
        let geometry = self.geometry();
        let Self { batches, ops, state, ring, .. } = self;
        batches.entries.clear();
        batches.parts.clear();
        let mut at = BLOCK;
        while let Some(id) = batches.waiting.front().copied() {
            let op = &ops.list[id as usize];
            let length = op.rect.length() as usize;
            let entry = match op.kind {
                Kind::Zero => Entry::zeroes(op.rect.rows.clone(), op.absent.0),
                _ => Entry::new(op.rect.rows.clone(), op.cells, op.checksum, op.absent.0),
            };
            let content = entry.content_bytes() as usize;
            if at + content > BATCH_MAX || batches.entries.len() == ENTRIES_MAX {
                break;
            }
            for role in (0..geometry.members).filter(|role| entry.roles >> role & 1 == 1) {
                batches.parts.push(BatchPart { op: id, from: role * length, to: at, length });
                at += length;
            }
            // The members that miss the change are stale before it can be done.
            let regions = state.regions_of(&op.rect.rows);
            state.touch(regions.clone());
            state.make_stale(regions, op.absent);
            ring.miss(op.absent);
            batches.waiting.pop_front();
            batches.issued.push(id);
            batches.entries.push(entry);
        }
        let blocks = at.div_ceil(BLOCK);
        let place = self.ring.begin(self.batches.entries.len(), blocks as u64);
        let batches = &mut self.batches;
        batches.head.resize(BLOCK, 0);
        format::seal(&mut batches.head, self.notes.id, place.sequence, blocks as u32, &batches.entries);
        let offset = NOTES_BYTES + place.block * BLOCK as u64;
        batches.issued.iter().for_each(|id| self.ops.list[*id as usize].sequence = Some(place.sequence));
        self.steps.push_back(Step::WriteBatch { offset, length: blocks * BLOCK });
    }

    /// Returns the first block of the batch in flight.
    pub fn batch_head(&self) -> &[u8] {
        &self.batches.head
    }

    /// Returns the rest of the batch in flight. The bytes behind the last part are not read again.
    pub fn batch_parts(&self) -> &[BatchPart] {
        &self.batches.parts
    }

    /// Ends a [`Step::WriteBatch`]: `good` if it is durable.
    pub fn batch_written(&mut self, good: bool) {
        if self.halted {
            return;
        }
        self.ring.written(good);
        let mut issued = std::mem::take(&mut self.batches.issued);
        if good {
            self.batches.failures = 0;
            for id in &issued {
                self.write_members(*id);
            }
        } else {
            self.batches.failures += 1;
            issued.iter().for_each(|id| self.ops.list[*id as usize].sequence = None);
            issued.iter().rev().for_each(|id| self.batches.waiting.push_front(*id));
            if self.batches.are_broken() {
                // No cell of these changes was written.
                for id in std::mem::take(&mut self.batches.waiting) {
                    self.finish_op(id, End::WriteFailed);
                }
            }
        }
        issued.clear();
        self.batches.issued = issued;
    }

    /// Issues the writes of a change that is in the journal.
    fn write_members(&mut self, id: OpId) {
        let (geometry, stripe) = (self.geometry(), self.stripe_of(id));
        let joined = self.member_state.joined;
        let op = &self.ops.list[id as usize];
        let (rows, cells, command) = (op.rect.rows.clone(), op.cells, op.command);
        let fua = self.commands.is_fua(command);
        let (offset, length) = (rows.start, op.rect.length());
        let is_zero = op.kind == Kind::Zero;
        let absent = op.absent;
        let mut late = Members::NONE;
        let mut roles = 0;
        for role in 0..geometry.members {
            let member = if is_zero { role } else { geometry.member(stripe, role) };
            if cells >> role & 1 == 0 || is_zero && absent.contains(member) {
                continue;
            }
            if !joined.contains(member) {
                late = late.with(Members::one(member));
            } else if is_zero {
                self.add_requests(id, 1);
                self.steps.push_back(Step::Zero { op: id, role, member, offset, length, fua });
            } else {
                roles |= 1 << role;
            }
        }
        // A member that was lost since the plan misses the change.
        let regions = self.state.regions_of(&rows);
        self.state.touch(regions.clone());
        self.state.make_stale(regions, late);
        self.access(id, roles, Access::Write { fua });
        if !self.has_requests(id) {
            self.halt("no member is left to be written".to_owned());
        }
    }
}
