//! Commands on their way, from the lock of their bytes to their end.

use super::format::{self, Entry};
use super::requests::Job;
use super::{Atomic, BACK, FILL, GO, Phase};
use sluice_nvme::Status;
use sluice_uif::{Answer, Buffer, Call, Held, Io};
use std::collections::VecDeque;
use std::ops::Range;

/// Maximum number of waiting commands that one pass looks at.
const LOOKS: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Read,
    Write,
    /// Write Zeroes or Deallocate.
    Zero,
    Flush,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not in use.
    #[default]
    Over,
    /// The command waits for others on its bytes, or for the log.
    Waiting,
    /// Data is to be copied into the entry.
    Fill,
    /// The entry is being written.
    Entry,
    /// Data is being written to its place.
    Place,
    /// The command itself is below.
    Below,
    /// The entry is durable, and a recovery writes it to its place.
    Recover,
}

#[derive(Debug, Default)]
pub(super) struct Op {
    kind: Kind,
    bytes: Range<u64>,
    /// Number of losses that were known when the command came.
    losses: u64,
    pub(super) held: Option<Held>,
    pub(super) stage: Stage,
    pub(super) entry: Entry,
    pub(super) buffer: Option<Buffer>,
}

#[derive(Debug, Default)]
pub(super) struct Ops {
    pub(super) list: Vec<Op>,
    free: Vec<u32>,
    waiting: VecDeque<u32>,
    pub(super) active: Vec<u32>,
}

/// Way of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Way to the data's layer without an entry.
    Straight,
    Logged,
    /// Way to the data's layer, once no entry on its bytes is live.
    Retire,
}

impl Ops {
    pub(super) fn open(&mut self, kind: Kind, bytes: Range<u64>, losses: u64, held: Held) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.list.push(Op::default());
            (self.list.len() - 1) as u32
        });
        let op = &mut self.list[id as usize];
        (op.kind, op.bytes, op.held, op.stage) = (kind, bytes, Some(held), Stage::Waiting);
        op.losses = losses;
        id
    }

    /// Returns whether two commands must not be under way together.
    fn conflict(&self, one: u32, other: u32) -> bool {
        let (one, other) = (&self.list[one as usize], &self.list[other as usize]);
        let are_reads = one.kind == Kind::Read && other.kind == Kind::Read;
        !are_reads && one.bytes.start < other.bytes.end && other.bytes.start < one.bytes.end
    }

    /// Returns whether a command has to wait for another one, of the first `ahead` waiting ones too.
    fn is_blocked(&self, id: u32, ahead: usize) -> bool {
        let earlier = self.waiting.iter().take(ahead);
        self.active.iter().chain(earlier).any(|other| self.conflict(id, *other))
    }

    fn close(&mut self, id: u32) {
        self.list[id as usize].stage = Stage::Over;
        self.list[id as usize].held = None;
        self.active.retain(|other| *other != id);
        self.free.push(id);
    }

    /// Has an active command wait again, in front of all others.
    fn wait_again(&mut self, id: u32) {
        self.list[id as usize].stage = Stage::Waiting;
        self.active.retain(|other| *other != id);
        self.waiting.push_front(id);
    }

    /// Returns whether requests or commands are below.
    pub(super) fn are_under_way(&self) -> bool {
        let waits = |id: &u32| self.list[*id as usize].stage == Stage::Recover;
        !self.active.iter().all(waits)
    }
}

impl Atomic {
    fn op(&mut self, id: u32) -> &mut Op {
        &mut self.ops.list[id as usize]
    }

    fn way(&self, id: u32) -> Way {
        let Op { kind, bytes, .. } = &self.ops.list[id as usize];
        let (length, unit) = (bytes.end - bytes.start, u64::from(self.data.atomic.max(1)));
        let is_whole = bytes.start / unit == (bytes.end.max(1) - 1) / unit;
        match kind {
            Kind::Read | Kind::Flush => Way::Straight,
            Kind::Write if !is_whole && length <= self.limit => Way::Logged,
            _ if !self.log.overlaps(bytes) => Way::Straight,
            Kind::Write if length <= self.limit => Way::Logged,
            _ => Way::Retire,
        }
    }

    /// Begins a command that was just submitted.
    pub(super) fn begin(&mut self, id: u32, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let ahead = self.ops.waiting.len();
        let can_begin = self.is_open() && ahead < LOOKS && !self.ops.is_blocked(id, ahead);
        match self.way(id) {
            Way::Straight if can_begin => {
                self.ops.active.push(id);
                return self.go(id, call);
            }
            // Writes that wait for memory come first, so that long ones get some.
            Way::Logged if ahead == 0 && can_begin && self.reserve(id, io) => {
                self.ops.active.push(id);
                return self.fill(id, call, io);
            }
            way => {
                self.counts.waits += u64::from(way != Way::Straight);
                self.ops.waiting.push_back(id);
            }
        }
        Answer::Hold
    }

    /// Begins the waiting commands that can.
    pub(super) fn admit(&mut self, io: &mut Io<'_>) {
        let (mut index, mut looks, mut is_full) = (0, 0, false);
        while index < self.ops.waiting.len() && looks < LOOKS {
            looks += 1;
            let id = self.ops.waiting[index];
            let Some(held) = self.ops.list[id as usize].held else { break };
            let way = self.way(id);
            let is_stuck = way == Way::Retire || way == Way::Logged && is_full;
            if is_stuck || self.ops.is_blocked(id, index) {
                index += 1;
                continue;
            }
            if way == Way::Logged && !self.reserve(id, io) {
                is_full = true;
                index += 1;
                continue;
            }
            let stage = if way == Way::Logged { FILL } else { GO };
            self.ops.waiting.remove(index);
            self.ops.active.push(id);
            self.op(id).stage = if stage == GO { Stage::Below } else { Stage::Fill };
            io.resume(held, stage, Status::SUCCESS);
        }
    }

    /// Returns whether a waiting command needs a checkpoint.
    pub(super) fn needs_checkpoint(&self) -> bool {
        self.ops.waiting.iter().take(LOOKS).any(|id| self.is_for_checkpoint(*id))
    }

    fn is_for_checkpoint(&self, id: u32) -> bool {
        match self.way(id) {
            Way::Straight => false,
            Way::Logged => !self.log.has_slot(),
            Way::Retire => true,
        }
    }

    /// Fails the waiting commands that need a checkpoint, after one has failed.
    pub(super) fn fail_for_checkpoint(&mut self, io: &mut Io<'_>) {
        for _ in 0..self.ops.waiting.len() {
            let Some(id) = self.ops.waiting.pop_front() else { break };
            match self.is_for_checkpoint(id) {
                true => self.finish(id, Status::WRITE_FAULT, io),
                false => self.ops.waiting.push_back(id),
            }
        }
    }

    /// Takes a slot and memory for the entry of a write.
    fn reserve(&mut self, id: u32, io: &mut Io<'_>) -> bool {
        let bytes = self.ops.list[id as usize].bytes.clone();
        if !self.log.has_slot() {
            return false;
        }
        let length = format::entry_bytes((bytes.end - bytes.start) as u32);
        let Some(buffer) = io.buffer(length) else { return false };
        let Some(entry) = self.log.take(&bytes) else {
            io.release(buffer);
            return false;
        };
        let op = self.op(id);
        (op.entry, op.buffer, op.stage) = (entry, Some(buffer), Stage::Fill);
        true
    }

    /// Copies the data of a write into its entry, and sends that to the log.
    pub(super) fn fill(&mut self, id: u32, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let (is_open, log_id) = (self.is_open(), self.geometry.id);
        let op = &mut self.ops.list[id as usize];
        op.held = Some(call.hold());
        let entry = op.entry;
        let length = entry.length as usize;
        let (Some(buffer), Some(data)) = (op.buffer.take(), call.data.get(..length)) else {
            return Answer::Finish(Status::INTERNAL_ERROR);
        };
        if !is_open {
            // The slots begin anew with the recovery.
            io.release(buffer);
            self.ops.wait_again(id);
            return Answer::Hold;
        }
        let bytes = io.bytes(&buffer);
        bytes[format::BLOCK..format::BLOCK + length].copy_from_slice(data);
        format::seal(bytes, log_id, &entry);
        (op.buffer, op.stage) = (Some(buffer), Stage::Entry);
        self.counts.logged += 1;
        self.unsent.push_back(Job::Entry(id));
        Answer::Hold
    }

    /// Sends a command below as it is.
    pub(super) fn go(&mut self, id: u32, call: &mut Call<'_>) -> Answer {
        let begun = self.log.begin_flush();
        let (is_open, losses) = (self.is_open(), self.losses);
        let owes = self.owes_flush || self.op(id).losses < losses;
        let op = self.op(id);
        op.held = Some(call.hold());
        if !is_open {
            self.ops.wait_again(id);
            return Answer::Hold;
        }
        let op = self.op(id);
        op.stage = Stage::Below;
        match op.kind {
            Kind::Flush if owes => {
                // A Flush that came before the loss does not cover all writes that are lost.
                self.owes_flush &= self.op(id).losses < losses;
                self.ops.close(id);
                return Answer::Finish(Status::WRITE_FAULT);
            }
            Kind::Flush => call.cookie[1] = begun,
            Kind::Write => self.counts.straight += 1,
            Kind::Read | Kind::Zero => {}
        }
        Answer::ForwardAndReturn(BACK)
    }

    /// Takes a command back from below.
    pub(super) fn back(&mut self, id: u32, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        let (status, kind) = (call.status, self.op(id).kind);
        self.op(id).held = Some(call.hold());
        let is_lost = status.same_code(Status::WRITES_LOST);
        if is_lost {
            self.note_loss();
            self.recover(io);
        }
        let answer = match kind {
            // Writes before it may have been lost meanwhile.
            Kind::Flush if status.is_success() && !self.is_open() => {
                self.ops.wait_again(id);
                return Answer::Hold;
            }
            Kind::Flush if status.is_success() => {
                self.log.end_flush(call.cookie[1]);
                status
            }
            Kind::Flush if !status.is_of_host() => {
                self.recover(io);
                if is_lost { Status::WRITE_FAULT } else { status }
            }
            // Blocks may have been read before the log was written to them again.
            Kind::Read if is_lost || status.is_success() && !self.is_open() => {
                self.ops.wait_again(id);
                return Answer::Hold;
            }
            Kind::Write | Kind::Zero if is_lost => {
                self.ops.wait_again(id);
                return Answer::Hold;
            }
            _ => status,
        };
        self.ops.close(id);
        Answer::Finish(answer)
    }

    /// Handles the end of the write of an entry.
    pub(super) fn entry_written(&mut self, id: u32, status: Status, io: &mut Io<'_>) {
        let is_open = self.is_open();
        let op = self.op(id);
        if !status.is_success() {
            // The entry may be on the log nevertheless, and counts until it is retired.
            let slot = op.entry.slot;
            self.log.placed(slot);
            return self.finish(id, Status::WRITE_FAULT, io);
        }
        if !is_open {
            return self.leave_to_recovery(id, io);
        }
        op.stage = Stage::Place;
        self.unsent.push_back(Job::Place(id));
    }

    /// Handles the end of the write of the data to its place.
    pub(super) fn place_written(&mut self, id: u32, status: Status, io: &mut Io<'_>) {
        if status.is_success() {
            let slot = self.op(id).entry.slot;
            self.log.placed(slot);
            return self.finish(id, Status::SUCCESS, io);
        }
        if status.same_code(Status::WRITES_LOST) {
            self.note_loss();
        }
        self.leave_to_recovery(id, io);
        self.recover(io);
    }

    /// Notes that writes below are lost: a Flush that comes from now on fails once.
    pub(super) fn note_loss(&mut self) {
        self.owes_flush = true;
        self.losses += 1;
    }

    fn leave_to_recovery(&mut self, id: u32, io: &mut Io<'_>) {
        let op = self.op(id);
        op.stage = Stage::Recover;
        op.buffer.take().into_iter().for_each(|buffer| io.release(buffer));
    }

    /// Begins to write the log to the places again.
    pub(super) fn recover(&mut self, io: &mut Io<'_>) {
        if self.is_open() {
            tracing::warn!("atomic writes its log again, after an error below");
            self.phase = Phase::Draining;
            self.begin_recovery_if_drained(io);
        }
    }

    /// Ends the commands that a recovery has done, or has not.
    pub(super) fn end_recovered(&mut self, status: Status, io: &mut Io<'_>) {
        for index in (0..self.ops.active.len()).rev() {
            let id = self.ops.active[index];
            if self.op(id).stage == Stage::Recover {
                self.finish(id, status, io);
            }
        }
    }

    /// Fails all commands that wait.
    pub(super) fn fail_waiting(&mut self, io: &mut Io<'_>) {
        while let Some(id) = self.ops.waiting.pop_front() {
            self.finish(id, Status::NAMESPACE_NOT_READY, io);
        }
    }

    /// Ends a command that is not below.
    fn finish(&mut self, id: u32, status: Status, io: &mut Io<'_>) {
        let op = self.op(id);
        op.buffer.take().into_iter().for_each(|buffer| io.release(buffer));
        if let Some(held) = op.held.take() {
            io.finish(held, status);
        }
        self.ops.close(id);
    }
}
