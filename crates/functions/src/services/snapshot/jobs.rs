//! Commands of hosts: in one step where that is possible, otherwise chunk by chunk.

use super::copy::Copy;
use super::drive::{Snapshot, Work};
use super::{Requester, send, token};
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_uif::{Answer, Call, Data, Held, Io, Translation};

/// Most requests of jobs in flight; the rest of the limit is for work that was begun.
const IN_FLIGHT_MAX: usize = sluice_uif::abi::REQUESTS_MAX as usize - 4;

/// Chunks of one job that are visited before others have their turn.
const LOOKS_MAX: u32 = 1 << 14;

/// Command in progress.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) held: Held,
    pub(super) request: Request,
    /// Offset in the drive of the next extent.
    pub(super) at: u64,
    /// Extents in flight.
    pub(super) extents: u32,
    /// Status of the first extent that failed.
    pub(super) status: Status,
}

/// Part of a command that lies in one chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) logical: u32,
    /// Offset in the chunk, and length, in bytes.
    pub(super) within: u64,
    pub(super) length: u64,
}

/// Progress of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The job is done, or cannot be continued.
    Done(Status),
    /// The job goes on when extents are back.
    Waits,
}

impl Work {
    /// Returns the first extent of a range.
    fn extent(&self, at: u64, end: u64) -> Extent {
        let chunk = self.layout.shape.chunk;
        let within = at % chunk;
        Extent { logical: (at / chunk) as u32, within, length: (chunk - within).min(end - at) }
    }

    /// Returns the translation of a chunk for the classifier.
    pub(super) fn translation(&self, logical: u32) -> Option<Translation> {
        let shape = self.layout.shape;
        let from = u64::from(logical) * shape.chunk;
        let to = self.layout.chunk_at(self.table.lookup(logical)?);
        let writable = self.table.is_own(logical) && !self.writer.is_stale();
        Some(Translation::Insert { from, length: shape.chunk.min(shape.size - from), to, writable })
    }
}

impl Snapshot {
    /// Handles a command that is done in one step, or goes below as a whole. Returns none for others.
    pub(super) fn at_once(&self, call: &mut Call<'_>, io: &mut Io<'_>) -> Option<Answer> {
        let work = self.work.as_ref().filter(|_| !self.is_ordered())?;
        let Request { operation, offset, length, fua, .. } = call.request;
        let extent = work.extent(offset, call.request.end());
        if extent.length != length {
            return None;
        }
        let writes = operation != Operation::Read;
        let place = work.table.lookup(extent.logical);
        let waits = || work.writer.is_stale() || fua && !work.durable;
        match place {
            // The log may have a chunk for it, or not durably that it has none.
            None if writes && (operation == Operation::Write || waits()) => return None,
            None => {
                call.data.fill(0);
                return Some(Answer::Finish(Status::SUCCESS));
            }
            Some(_) if !writes => {}
            Some(_) if !work.table.is_own(extent.logical) || waits() => return None,
            Some(_) => {}
        }
        if !self.is_busy(extent.logical) {
            work.translation(extent.logical).into_iter().for_each(|translation| io.translate(translation));
        }
        call.request.offset = work.layout.chunk_at(place?) + extent.within;
        Some(Answer::Forward)
    }

    /// Takes a command that is done extent by extent.
    pub(super) fn take(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        if call.request.operation == Operation::Read {
            // Unmapped chunks are not read.
            call.data.fill(0);
        }
        let (held, request) = (call.hold(), call.request);
        let job = Job { held, request, at: request.offset, extents: 0, status: Status::SUCCESS };
        let number = self.jobs.insert(job);
        match self.advance(number, io) {
            Progress::Done(status) => {
                self.jobs.try_remove(number);
                Answer::Finish(status)
            }
            Progress::Waits => Answer::Hold,
        }
    }

    /// Does as much of a job as is possible now.
    pub(super) fn advance(&mut self, number: usize, io: &mut Io<'_>) -> Progress {
        for _ in 0..LOOKS_MAX {
            let Some(job) = self.jobs.get_mut(number) else { return Progress::Waits };
            let (request, at, status) = (job.request, job.at, job.status);
            let Some(work) = self.work.as_ref().filter(|_| at < request.end() && status.is_success()) else {
                return self.conclude(number);
            };
            let extent = work.extent(at, request.end());
            if !self.advance_extent(number, extent, io) {
                self.stalled.push_back(number);
                return Progress::Waits;
            }
            if let Some(job) = self.jobs.get_mut(number) {
                job.at += extent.length;
            }
        }
        // Other jobs first.
        self.stalled.push_back(number);
        self.wake_at(io.now_ns(), io);
        Progress::Waits
    }

    /// Begins an extent. Returns false if it has to wait.
    fn advance_extent(&mut self, number: usize, extent: Extent, io: &mut Io<'_>) -> bool {
        if self.is_ordered() {
            return false;
        }
        let (Some(work), Some(job)) = (&self.work, self.jobs.get_mut(number)) else { return true };
        let (operation, place) = (job.request.operation, work.table.lookup(extent.logical));
        let writes = operation != Operation::Read;
        if place.is_none() && operation != Operation::Write && !(writes && work.writer.is_stale()) {
            return true;
        }
        let is_own = work.table.is_own(extent.logical);
        let whole = extent.length == work.layout.shape.chunk;
        if operation == Operation::Deallocate && !is_own && !whole {
            // It keeps its content: the saving is not worth a chunk.
            return true;
        }
        if writes && work.writer.is_stale() {
            self.repair = true;
            return false;
        }
        if writes && work.table.may_become_own(extent.logical) {
            self.sweep_for_write(io);
            return false;
        }
        if self.in_flight >= IN_FLIGHT_MAX || writes && self.is_busy(extent.logical) {
            return false;
        }
        match place {
            Some(physical) if is_own || !writes => self.pass(number, extent, physical, io),
            _ if operation != Operation::Write && whole => self.copy(Copy::unmap(number, extent), io),
            _ => {
                let from = self.jobs.get_mut(number).map_or(0, |job| job.at - job.request.offset);
                self.copy(Copy::new(number, extent, from, operation == Operation::WriteZeroes, place), io)
            }
        }
    }

    /// Executes an extent in its present chunk.
    fn pass(&mut self, number: usize, extent: Extent, physical: u32, io: &mut Io<'_>) -> bool {
        let (Some(work), Some(job)) = (&self.work, self.jobs.get_mut(number)) else { return true };
        let offset = work.layout.chunk_at(physical) + extent.within;
        let request = Request { offset, length: extent.length, ..job.request };
        let data = match request.has_data() {
            true => Data::Of(job.held, (job.at - job.request.offset) as usize),
            false => Data::None,
        };
        let asked = send(io, request, data, token(Requester::Job, number));
        job.extents += u32::from(asked);
        self.in_flight += usize::from(asked);
        asked
    }

    /// Handles the end of an extent.
    pub(super) fn extent_done(&mut self, number: usize, status: Status, io: &mut Io<'_>) {
        let Some(job) = self.jobs.get_mut(number) else { return };
        job.extents -= 1;
        if job.status.is_success() {
            job.status = status;
        }
        if job.extents > 0 || self.stalled.contains(&number) {
            return;
        }
        if let Progress::Done(status) = self.advance(number, io) {
            self.finish(number, status, io);
        }
    }

    /// Begins no more extents of a job. It is done when none uses its data.
    fn conclude(&mut self, number: usize) -> Progress {
        let Some(job) = self.jobs.get_mut(number).filter(|job| job.extents == 0) else {
            return Progress::Waits;
        };
        if !job.status.is_success() {
            return Progress::Done(job.status);
        }
        let Some(work) = &self.work else { return Progress::Done(Status::NAMESPACE_NOT_READY) };
        if job.request.fua && job.request.operation.modifies() && !work.durable {
            self.syncing.push(number);
            return Progress::Waits;
        }
        Progress::Done(Status::SUCCESS)
    }

    pub(super) fn finish(&mut self, number: usize, status: Status, io: &mut Io<'_>) {
        if let Some(job) = self.jobs.try_remove(number) {
            io.finish(job.held, status);
        }
    }
}
