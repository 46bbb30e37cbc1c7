//! Requests of the function's own, and checkpoints: flushes of the data after which slots are free again.

use super::format::{self, BLOCK, Superblock};
use super::{Atomic, DATA, LOG, Phase};
use crate::services::service::send;
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_uif::{Data, Done, Io, Part};

/// Nanoseconds after which the entries of a log are retired, and after which a failure is tried again.
const TICK_NS: u64 = 1_000_000_000;

/// Request that is sent when there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Write of the entry of a command.
    Entry(u32),
    /// Write of its data to its place.
    Place(u32),
    /// Flush and superblock of a checkpoint.
    Flush,
    Store,
    /// Next request of a recovery.
    Recover,
}

impl Job {
    fn token(self) -> u64 {
        match self {
            Self::Entry(id) => 1 << 32 | u64::from(id),
            Self::Place(id) => 2 << 32 | u64::from(id),
            Self::Flush => 3 << 32,
            Self::Store => 4 << 32,
            Self::Recover => 5 << 32,
        }
    }

    fn of_token(token: u64) -> Self {
        let id = token as u32;
        match token >> 32 {
            1 => Self::Entry(id),
            2 => Self::Place(id),
            3 => Self::Flush,
            4 => Self::Store,
            _ => Self::Recover,
        }
    }
}

/// State of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checkpoint {
    Idle,
    /// The data is being flushed, with the number of the flush.
    Flushing(u64),
    /// The superblock is being written, with this watermark.
    Storing(u64),
}

pub(super) fn request(operation: Operation, offset: u64, length: u64, fua: bool) -> Request {
    Request { operation, fua, deallocate: false, offset, length }
}

impl Atomic {
    /// Sends the requests that wait for room.
    pub(super) fn send_waiting(&mut self, io: &mut Io<'_>) {
        while io.has_room()
            && let Some(job) = self.unsent.pop_front()
        {
            let sent = match job {
                Job::Entry(id) => self.send_entry(id, io),
                Job::Place(id) => self.send_place(id, io),
                Job::Flush => {
                    io.request(DATA, request(Operation::Flush, 0, 0, false), Data::None, job.token()).is_ok()
                }
                Job::Store => self.send_store(io),
                Job::Recover => self.send_recovery(job.token(), io),
            };
            if !sent {
                self.request_done(
                    Done { token: job.token(), status: Status::INTERNAL_ERROR, buffer: None },
                    io,
                );
            }
        }
    }

    fn send_entry(&mut self, id: u32, io: &mut Io<'_>) -> bool {
        let op = &self.ops.list[id as usize];
        let length = format::entry_bytes(op.entry.length);
        let part = op.buffer.as_ref().and_then(|buffer| Part::of(buffer, 0, length));
        let at = self.geometry.slot_at(op.entry.slot);
        let write = request(Operation::Write, at, length as u64, true);
        part.is_some_and(|part| io.request(LOG, write, Data::Part(part), Job::Entry(id).token()).is_ok())
    }

    fn send_place(&mut self, id: u32, io: &mut Io<'_>) -> bool {
        let op = &self.ops.list[id as usize];
        let length = op.entry.length as usize;
        let part = op.buffer.as_ref().and_then(|buffer| Part::of(buffer, BLOCK, length));
        let write = request(Operation::Write, op.entry.offset, length as u64, false);
        part.is_some_and(|part| io.request(DATA, write, Data::Part(part), Job::Place(id).token()).is_ok())
    }

    fn send_store(&mut self, io: &mut Io<'_>) -> bool {
        let Checkpoint::Storing(watermark) = self.checkpoint else { return false };
        self.write_superblock(watermark, Job::Store.token(), io)
    }

    /// Writes the copy of the superblock that is not the newest.
    pub(super) fn write_superblock(&mut self, watermark: u64, token: u64, io: &mut Io<'_>) -> bool {
        let superblock = Superblock { geometry: self.geometry, watermark, storage: self.data.id };
        self.storing_id = self.data.id;
        let Some(buffer) = io.buffer(BLOCK) else { return false };
        format::write_superblock(io.bytes(&buffer), &superblock);
        let at = if self.newest_copy == 0 { BLOCK as u64 } else { 0 };
        let write = request(Operation::Write, at, BLOCK as u64, true);
        send(io, LOG, write, Data::Own(buffer), token)
    }

    /// Takes a request back.
    pub(super) fn request_done(&mut self, done: Done, io: &mut Io<'_>) {
        let job = Job::of_token(done.token);
        if job == Job::Recover {
            return self.recovery_done(done, io);
        }
        done.buffer.into_iter().for_each(|buffer| io.release(buffer));
        match job {
            Job::Entry(id) => self.entry_written(id, done.status, io),
            Job::Place(id) => self.place_written(id, done.status, io),
            Job::Flush => self.checkpoint_flushed(done.status, io),
            Job::Store | Job::Recover => self.checkpoint_stored(done.status, io),
        }
    }

    /// Begins a checkpoint if one is needed, and would free a slot.
    pub(super) fn begin_checkpoint(&mut self, io: &mut Io<'_>) {
        let now_ns = io.now_ns();
        if self.log.used() == 0 {
            self.tick_ns = None;
        } else if self.tick_ns.is_none() {
            self.tick_ns = Some(now_ns.saturating_add(TICK_NS));
        }
        if self.refused_until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
            self.refused_until_ns = None;
        }
        if self.refused_until_ns.is_some() {
            return self.fail_for_checkpoint(io);
        }
        let is_due = self.tick_ns.is_some_and(|tick_ns| tick_ns <= now_ns);
        let is_other = self.stored_id != self.data.id;
        let is_needed = is_due || is_other || self.log.is_filling() || self.needs_checkpoint();
        if is_due {
            self.tick_ns = Some(now_ns.saturating_add(TICK_NS));
        }
        if self.checkpoint != Checkpoint::Idle || !is_needed {
            return;
        }
        if is_other && self.log.used() == 0 {
            self.log.skip();
        }
        if !self.log.can_advance() {
            return;
        }
        self.counts.checkpoints += 1;
        self.checkpoint = Checkpoint::Flushing(self.log.begin_flush());
        self.unsent.push_back(Job::Flush);
    }

    fn checkpoint_flushed(&mut self, status: Status, io: &mut Io<'_>) {
        let Checkpoint::Flushing(begun) = self.checkpoint else { return };
        self.checkpoint = Checkpoint::Idle;
        if !status.is_success() {
            self.note_loss();
            return self.recover(io);
        }
        self.log.end_flush(begun);
        if self.is_open() {
            self.checkpoint = Checkpoint::Storing(self.log.durable_before());
            self.unsent.push_back(Job::Store);
        }
    }

    fn checkpoint_stored(&mut self, status: Status, io: &mut Io<'_>) {
        let Checkpoint::Storing(watermark) = self.checkpoint else { return };
        self.checkpoint = Checkpoint::Idle;
        if !status.is_success() {
            tracing::warn!("atomic cannot write its log: {status:?}");
            self.refused_until_ns = Some(io.now_ns().saturating_add(TICK_NS));
            return;
        }
        self.superblock_written();
        self.log.retire(watermark);
    }

    /// Notes that the copy of the superblock is the newest now.
    pub(super) fn superblock_written(&mut self) {
        self.newest_copy = 1 - self.newest_copy;
        self.stored_id = self.storing_id;
    }

    /// Sets the time at which the function is called.
    pub(super) fn set_alarm(&mut self, io: &mut Io<'_>) {
        let at_ns = match self.phase {
            Phase::Failed { again_ns } => Some(again_ns),
            Phase::Open if self.checkpoint == Checkpoint::Idle => {
                [self.tick_ns, self.refused_until_ns].into_iter().flatten().min()
            }
            _ => None,
        };
        io.wake_at(at_ns);
    }

    pub(super) fn retry_ns(io: &Io<'_>) -> u64 {
        io.now_ns().saturating_add(TICK_NS)
    }
}
