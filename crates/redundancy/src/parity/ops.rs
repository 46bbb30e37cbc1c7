//! Operations: one rectangle of rows and columns each, from their lock to their end.

use super::OpId;
use super::array::{Access, End, Fault, Parity, Step};
use super::code::Cells;
use super::commands::CommandId;
use super::geometry::Rect;
use super::plan::{self, Plan, Roles, Way};
use crate::Members;
use std::collections::VecDeque;
use std::ops::Range;

/// Maximum number of operations that are under way.
const ACTIVE_MAX: usize = 64;

/// Maximum number of waiting operations that one pass looks at.
const LOOKS: usize = 64;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Change of some columns.
    Write,
    /// Zeros in whole rows, without data.
    Zero,
    /// Recovery of one column for a read.
    Read,
    /// Recovery of cells that are stale.
    Rebuild,
    /// Comparison of all cells.
    Check,
}

#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) kind: Kind,
    pub(super) rect: Rect,
    pub(super) command: Option<u32>,
    pub(super) plan: Plan,
    /// Roles that could not be read at the time of the plan.
    missing: Roles,
    /// Roles whose content was found to be unreadable.
    avoid: Roles,
    /// Roles that are written.
    pub(super) cells: Roles,
    /// Members that do not get a change of theirs.
    pub(super) absent: Members,
    /// Requests in flight.
    left: usize,
    failed: bool,
    has_memory: bool,
    is_active: bool,
    /// Checksum of the new cells, for the journal; and the batch there.
    pub(super) checksum: u32,
    pub(super) sequence: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Ops {
    pub(super) list: Vec<Op>,
    free: Vec<u32>,
    /// Operations that wait for other operations on their rows.
    waiting: VecDeque<u32>,
    active: Vec<u32>,
    /// Whether a waiting operation may begin.
    look: bool,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Ops {
    fn is_locked(&self, rows: &Range<u64>) -> bool {
        self.active.iter().any(|id| overlap(&self.list[*id as usize].rect.rows, rows))
    }

    /// Returns the members that miss changes on their way to the journal.
    pub(super) fn missing(&self) -> Members {
        self.active.iter().fold(Members::NONE, |all, id| all.with(self.list[*id as usize].absent))
    }

    /// Returns the rows of the changes that are under way.
    pub(super) fn rows_written(&self) -> impl Iterator<Item = &Range<u64>> {
        let active = self.active.iter().map(|id| &self.list[*id as usize]);
        active.filter(|op| op.cells != 0).map(|op| &op.rect.rows)
    }

    /// Returns whether an operation is under way.
    pub(super) fn are_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Has the waiting operations looked at again.
    pub(super) fn look_again(&mut self) {
        self.look = true;
    }

    /// Returns whether no operation is under way or waits.
    pub(super) fn are_idle(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }
}

impl Parity {
    /// Queues an operation. Returns its number.
    pub(super) fn queue_op(&mut self, kind: Kind, rect: Rect, command: Option<u32>) -> OpId {
        let op = Op {
            kind,
            rect,
            command,
            plan: Plan { reads: 0, way: Way::Rebuild },
            missing: 0,
            avoid: 0,
            cells: 0,
            absent: Members::NONE,
            left: 0,
            failed: false,
            has_memory: false,
            is_active: false,
            checksum: 0,
            sequence: None,
        };
        let ops = &mut self.ops;
        let id = ops.free.pop().unwrap_or_else(|| {
            ops.list.push(op.clone());
            (ops.list.len() - 1) as u32
        });
        ops.list[id as usize] = op;
        ops.waiting.push_back(id);
        ops.look = true;
        id
    }

    /// Has an operation not read the cell of this member.
    pub(super) fn avoid(&mut self, op: OpId, member: usize) {
        let stripe = self.stripe_of(op);
        let geometry = self.geometry();
        let role = (0..geometry.members).find(|role| geometry.member(stripe, *role) == member);
        self.ops.list[op as usize].avoid |= role.map_or(0, |role| 1 << role);
    }

    pub(super) fn stripe_of(&self, op: OpId) -> u64 {
        self.ops.list[op as usize].rect.rows.start / self.geometry().chunk
    }

    /// Begins the waiting operations whose rows are free.
    pub(super) fn admit(&mut self) {
        if !self.mode.is_settled() || !std::mem::take(&mut self.ops.look) {
            return;
        }
        let mut kept: Vec<Range<u64>> = Vec::new();
        let mut index = 0;
        while index < self.ops.waiting.len().min(LOOKS) && self.ops.active.len() < ACTIVE_MAX {
            let id = self.ops.waiting[index];
            let rows = self.ops.list[id as usize].rect.rows.clone();
            if self.ops.is_locked(&rows) || kept.iter().any(|other| overlap(other, &rows)) {
                kept.push(rows);
                index += 1;
                continue;
            }
            self.ops.waiting.remove(index);
            self.ops.active.push(id);
            let op = &mut self.ops.list[id as usize];
            op.is_active = true;
            let length = op.rect.length() as usize * self.config.geometry.members;
            match op.kind {
                Kind::Zero => self.start_zeroes(id),
                _ => self.steps.push_back(Step::Memory { op: id, length }),
            }
        }
    }

    /// Ends a [`Step::Memory`].
    pub fn has_memory(&mut self, op: OpId) {
        self.ops.list[op as usize].has_memory = true;
        self.start_op(op);
    }

    /// Returns the roles of an operation that cannot be read now.
    fn missing(&self, id: OpId) -> Roles {
        let (geometry, stripe) = (self.geometry(), self.stripe_of(id));
        let op = &self.ops.list[id as usize];
        let rows = &op.rect.rows;
        let parities = ((1 << geometry.parities) - 1) << geometry.columns();
        let unsynced = if self.is_synced(rows) { 0 } else { parities };
        (0..geometry.members)
            .filter(|role| !self.is_readable(geometry.member(stripe, *role), rows))
            .fold(op.avoid | unsynced, |missing, role| missing | 1 << role)
    }

    /// Plans an operation, and begins its reads.
    fn start_op(&mut self, id: OpId) {
        let geometry = self.geometry();
        let missing = self.missing(id);
        let unsynced = !self.is_synced(&self.ops.list[id as usize].rect.rows);
        let (columns, parities) = (geometry.columns(), geometry.parities);
        let all: Roles = (1 << geometry.members) - 1;
        let op = &mut self.ops.list[id as usize];
        (op.missing, op.failed) = (missing, false);
        let mask: Roles = op.rect.columns.clone().fold(0, |mask, column| mask | 1 << column);
        let plan = match op.kind {
            // Without parities, nothing would have the data of a column that is missing.
            Kind::Write if unsynced && missing & mask != 0 => None,
            Kind::Write => plan::change(columns, parities, mask, missing, op.avoid != 0),
            Kind::Read if missing & mask == 0 && !self.config.safe_read => {
                Some(Plan { reads: mask, way: Way::Rebuild })
            }
            Kind::Read if missing == 0 => Some(Plan { reads: all, way: Way::Rebuild }),
            Kind::Read | Kind::Rebuild => {
                plan::recover(columns, parities, missing).map(|reads| Plan { reads, way: Way::Recover })
            }
            Kind::Check | Kind::Zero => (missing == 0).then_some(Plan { reads: all, way: Way::Rebuild }),
        };
        let Some(plan) = plan else {
            let is_write = op.kind == Kind::Write;
            return self.finish_op(id, if is_write { End::WriteFailed } else { End::ReadFailed });
        };
        op.plan = plan;
        let rows = op.rect.rows.clone();
        if op.kind == Kind::Write {
            self.rewind_to(&rows);
        }
        self.access(id, plan.reads, Access::Read);
        if plan.reads == 0 {
            self.request_compute(id);
        }
    }

    /// Issues an access of some cells of an operation.
    pub(super) fn access(&mut self, id: OpId, roles: Roles, access: Access) {
        let (geometry, stripe) = (self.geometry(), self.stripe_of(id));
        let op = &mut self.ops.list[id as usize];
        let (offset, length) = (op.rect.rows.start, op.rect.length());
        for role in (0..geometry.members).filter(|role| roles >> role & 1 == 1) {
            op.left += 1;
            let (member, at) = (geometry.member(stripe, role), role * length as usize);
            self.steps.push_back(Step::Cell { op: id, role, member, offset, length, at, access });
        }
    }

    fn request_compute(&mut self, id: OpId) {
        let op = &self.ops.list[id as usize];
        let is_host = op.kind == Kind::Read || op.kind == Kind::Write && !self.is_zeroes(op.command);
        let command = op.command.filter(|_| is_host).map(CommandId);
        self.steps.push_back(Step::Compute { op: id, command });
    }

    /// Ends a [`Step::Cell`] or [`Step::Zero`].
    pub fn cell_done(&mut self, id: OpId, role: usize, outcome: Result<(), Fault>) {
        if self.halted {
            return;
        }
        let member = match self.ops.list[id as usize].kind {
            // The role of a write of zeros is the member.
            Kind::Zero => role,
            _ => self.geometry().member(self.stripe_of(id), role),
        };
        let op = &mut self.ops.list[id as usize];
        op.left -= 1;
        let reads = op.cells == 0;
        if let Err(fault) = outcome {
            op.failed = true;
            if reads {
                op.avoid |= 1 << role;
                self.note_fault(member, fault);
            } else if !self.write_failed(member, fault) {
                return self.halt(format!("member {member} cannot be written, and no other parity is left"));
            }
        }
        let op = &self.ops.list[id as usize];
        if op.left > 0 {
            return;
        }
        match reads {
            // A cell of a member that was lost meanwhile may be an older one.
            true if op.failed || self.missing(id) & op.plan.reads != 0 => self.start_op(id),
            true => self.request_compute(id),
            false => self.finish_op(id, End::Good),
        }
    }

    /// Computes the new content of an operation in its memory. `host` is the data of its command: a write's
    /// is read, and a read's is filled.
    pub fn compute(&mut self, id: OpId, bytes: &mut [u8], host: &mut [u8]) {
        if self.halted {
            return;
        }
        let geometry = self.geometry();
        let op = &self.ops.list[id as usize];
        let length = op.rect.length() as usize;
        let Some(mut cells) = Cells::new(bytes, length, geometry.columns(), geometry.parities) else {
            return self.finish_op(id, End::WriteFailed);
        };
        match op.kind {
            Kind::Write => self.compute_write(id, &mut cells, host),
            Kind::Read => self.compute_read(id, &mut cells, host),
            Kind::Rebuild => {
                cells.recover(op.missing);
                self.write_rebuilt(id);
            }
            Kind::Check => {
                let is_equal = cells.check();
                self.compared(id, is_equal);
                self.finish_op(id, End::Good);
            }
            Kind::Zero => {}
        }
    }

    /// Returns the part of a command's data that is the cell of a column.
    pub(super) fn host_range(&self, id: OpId, column: usize) -> Range<usize> {
        let op = &self.ops.list[id as usize];
        let offset = self.geometry().drive_offset(op.rect.rows.start, column);
        let start = op.command.map_or(0, |command| self.commands.start(command));
        let from = offset.saturating_sub(start) as usize;
        from..from + op.rect.length() as usize
    }

    fn compute_read(&mut self, id: OpId, cells: &mut Cells<'_>, host: &mut [u8]) {
        let op = &self.ops.list[id as usize];
        let column = op.rect.columns.start;
        let mut repair = 0;
        if op.plan.way == Way::Recover {
            cells.recover(op.missing);
            repair = op.avoid;
        } else if self.config.safe_read && op.plan.reads.count_ones() as usize == self.geometry().members {
            match self.compare_read(cells) {
                Ok(wrong) => repair = wrong,
                Err(()) => return self.finish_op(id, End::ReadFailed),
            }
        }
        let range = self.host_range(id, column);
        if let Some(to) = host.get_mut(range) {
            to.copy_from_slice(cells.cell(column));
        }
        self.repair(id, repair);
    }

    /// Returns what an operation reads or reads no more, for its writes.
    pub(super) fn missing_of(&self, id: OpId) -> Roles {
        self.ops.list[id as usize].missing
    }

    /// Writes cells whose content was unreadable or wrong, on members that are whole otherwise.
    fn repair(&mut self, id: OpId, roles: Roles) {
        let (geometry, stripe) = (self.geometry(), self.stripe_of(id));
        let rows = self.ops.list[id as usize].rect.rows.clone();
        let is_whole =
            |role: &usize| roles >> role & 1 == 1 && self.is_readable(geometry.member(stripe, *role), &rows);
        let cells = (0..geometry.members).filter(is_whole).fold(0, |cells, role| cells | 1 << role);
        if cells == 0 {
            return self.finish_op(id, End::Good);
        }
        self.background.repaired += 1;
        self.ops.list[id as usize].cells = cells;
        let regions = self.state.regions_of(&rows);
        self.state.touch(regions);
        self.access(id, cells, Access::Write { fua: false });
    }

    /// Ends an operation.
    pub(super) fn finish_op(&mut self, id: OpId, end: End) {
        let op = &mut self.ops.list[id as usize];
        if !std::mem::take(&mut op.is_active) {
            return;
        }
        let (kind, command, has_memory, sequence) = (op.kind, op.command, op.has_memory, op.sequence);
        if let Some(sequence) = sequence {
            self.ring.done(sequence);
        }
        self.ops.active.retain(|other| *other != id);
        self.ops.look = true;
        if matches!(kind, Kind::Rebuild | Kind::Check) {
            self.background_done(id, end);
        }
        if has_memory {
            self.steps.push_back(Step::Free { op: id });
        }
        self.ops.free.push(id);
        if let Some(command) = command {
            self.commands.part_done(command, end);
        }
    }

    /// Counts requests of an operation that are issued elsewhere.
    pub(super) fn add_requests(&mut self, id: OpId, count: usize) {
        self.ops.list[id as usize].left += count;
    }

    /// Returns whether an operation has requests in flight.
    pub(super) fn has_requests(&self, id: OpId) -> bool {
        self.ops.list[id as usize].left > 0
    }
}
