//! Copy on write: a chunk of the drive that is unmapped, or that a version has, gets a chunk of its own.

use super::drive::Snapshot;
use super::jobs::Extent;
use super::{Requester, request, send, token};
use crate::store::metadata_op::Change;
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_uif::{Buffer, Data, Done, Io, Translation};

/// Most copies at a time; each one that reads takes a buffer of the pool.
pub(super) const COPIES_MAX: usize = 64;

/// Copy of a chunk in progress.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) job: usize,
    extent: Extent,
    /// Offset of the extent's data in the command's.
    from: u64,
    /// Whether the extent is zeros.
    zeroes: bool,
    /// Chunk of the store before, and chunk after; none for zeros.
    source: Option<u32>,
    target: Option<u32>,
    stage: Stage,
    /// Whether writes of the copy may be lost.
    gone: bool,
    buffer: Option<Buffer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begin,
    /// Reading the old content of the chunk.
    Read,
    /// Writing that, or zeros, to the new chunk.
    Fill,
    /// Writing the extent over it.
    Data,
    /// Waiting for the log.
    Ready,
}

impl Copy {
    pub(super) fn new(job: usize, extent: Extent, from: u64, zeroes: bool, source: Option<u32>) -> Self {
        Self {
            job,
            extent,
            from,
            zeroes,
            source,
            target: None,
            stage: Stage::Begin,
            gone: false,
            buffer: None,
        }
    }

    /// Creates the copy of a chunk that a version has, and that is zeros from now on.
    pub(super) fn unmap(job: usize, extent: Extent) -> Self {
        Self { stage: Stage::Ready, ..Self::new(job, extent, 0, true, None) }
    }

    /// Notes that a flush was lost.
    pub(super) fn may_be_gone(&mut self) {
        self.gone = matches!(self.stage, Stage::Fill | Stage::Data);
    }

    pub(super) fn logical(&self) -> u32 {
        self.extent.logical
    }

    pub(super) fn change(&self) -> Change {
        (self.extent.logical, self.target)
    }
}

impl Snapshot {
    /// Returns whether a copy of a chunk of the drive is in progress.
    pub(super) fn is_busy(&self, logical: u32) -> bool {
        self.copies.iter().any(|(_, copy)| copy.logical() == logical)
    }

    /// Begins a copy. Returns false if it has to wait.
    pub(super) fn copy(&mut self, mut copy: Copy, io: &mut Io<'_>) -> bool {
        let sweeps = self.may_sweep(io);
        let (Some(work), Some(job)) = (&mut self.work, self.jobs.get_mut(copy.job)) else { return true };
        let chunk = work.layout.shape.chunk;
        if self.copies.len() == COPIES_MAX {
            return false;
        }
        if copy.stage == Stage::Begin {
            let whole = copy.extent.length == chunk;
            if !whole && copy.source.is_some() {
                let Some(buffer) = io.buffer(chunk as usize) else { return false };
                copy.buffer = Some(buffer);
            }
            copy.target = if sweeps { work.table.allocate_or_sweep() } else { work.table.allocate() };
            if copy.target.is_none() {
                copy.buffer.into_iter().for_each(|buffer| io.release(buffer));
                if work.table.unswept() > 0 {
                    if sweeps {
                        self.wake_at(io.now_ns(), io);
                    }
                    return false;
                }
                job.status = Status::CAPACITY_EXCEEDED;
                self.counts.refused += 1;
                return true;
            }
            copy.stage = match copy.source {
                _ if whole => Stage::Data,
                Some(_) => Stage::Read,
                None => Stage::Fill,
            };
        }
        job.extents += 1;
        self.counts.copies += 1;
        let is_ready = copy.stage == Stage::Ready;
        let number = self.copies.insert(copy);
        match is_ready {
            true => self.ready.push(number),
            false => self.send_copy_request(number, io),
        }
        true
    }

    /// Sends the request of a copy's stage.
    fn send_copy_request(&mut self, number: usize, io: &mut Io<'_>) {
        let (Some(work), Some(copy)) = (&self.work, self.copies.get_mut(number)) else { return };
        let (chunk, Extent { within, length, .. }) = (work.layout.shape.chunk, copy.extent);
        let at = |physical: Option<u32>| physical.map_or(0, |physical| work.layout.chunk_at(physical));
        let (source, target) = (at(copy.source), at(copy.target));
        let zeroes = |at, length| Request { deallocate: true, ..request(Operation::WriteZeroes, at, length) };
        let (asked, data) = match (copy.stage, copy.buffer.take()) {
            (Stage::Read, Some(buffer)) => (request(Operation::Read, source, chunk), Data::Own(buffer)),
            (Stage::Fill, Some(buffer)) => (request(Operation::Write, target, chunk), Data::Own(buffer)),
            (Stage::Fill, None) => (zeroes(target, chunk), Data::None),
            _ if copy.zeroes => (zeroes(target + within, length), Data::None),
            _ => {
                let Some(job) = self.jobs.get_mut(copy.job) else { return };
                (request(Operation::Write, target + within, length), Data::Of(job.held, copy.from as usize))
            }
        };
        self.in_flight += usize::from(send(io, asked, data, token(Requester::Copy, number)));
    }

    /// Handles the end of a copy's request.
    pub(super) fn copy_done(&mut self, number: usize, done: Done, io: &mut Io<'_>) {
        let Some(copy) = self.copies.get_mut(number) else { return };
        copy.buffer = done.buffer;
        let status = match copy.gone {
            _ if self.work.is_none() => Status::NAMESPACE_NOT_READY,
            true => Status::WRITE_FAULT,
            false => done.status,
        };
        if !status.is_success() {
            return self.give_up(number, status, io);
        }
        copy.stage = match copy.stage {
            Stage::Begin | Stage::Read => Stage::Fill,
            Stage::Fill => Stage::Data,
            Stage::Data | Stage::Ready => Stage::Ready,
        };
        if copy.stage != Stage::Fill {
            copy.buffer.take().into_iter().for_each(|buffer| io.release(buffer));
        }
        match copy.stage {
            Stage::Ready => self.ready.push(number),
            _ => self.send_copy_request(number, io),
        }
    }

    /// Ends a copy that failed.
    pub(super) fn give_up(&mut self, number: usize, status: Status, io: &mut Io<'_>) {
        let Some(copy) = self.copies.try_remove(number) else { return };
        copy.buffer.into_iter().for_each(|buffer| io.release(buffer));
        if let (Some(work), Some(target)) = (&mut self.work, copy.target) {
            work.table.release(target);
        }
        self.extent_done(copy.job, status, io);
    }

    /// Ends a copy: the log has the new chunk, and so has the table.
    pub(super) fn copied(&mut self, number: usize, io: &mut Io<'_>) {
        let (Some(copy), Some(work)) = (self.copies.try_remove(number), &self.work) else { return };
        let chunk = work.layout.shape.chunk;
        let from = u64::from(copy.logical()) * chunk;
        let length = chunk.min(work.layout.shape.size - from);
        io.translate(work.translation(copy.logical()).unwrap_or(Translation::Forget { from, length }));
        self.extent_done(copy.job, Status::SUCCESS, io);
    }
}
