//! Commands of hosts: in one step where that is possible, else chunk by chunk.

use super::copy::Copy;
use super::drive::{Snapshot, Work};
use super::{For, ask, token};
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_uif::{Answer, Call, Data, Held, Io, Translation};

/// Requests of jobs in flight: what is left of all is for those who finish what was begun.
const ASKED_MAX: usize = sluice_uif::abi::REQUESTS_MAX as usize - 4;

/// Chunks of one job that are looked at before others have their turn.
const LOOKS_MAX: u32 = 1 << 14;

/// A command that is worked on.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) held: Held,
    pub(super) request: Request,
    /// Where in the drive the next piece begins.
    pub(super) at: u64,
    /// Pieces on their way.
    pub(super) pieces: u32,
    /// Of the first piece that failed.
    pub(super) status: Status,
}

/// A part of a command that lies in one chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) logical: u32,
    /// Where in the chunk it begins, and its length, bytes.
    pub(super) within: u64,
    pub(super) length: u64,
}

/// What can be done for a job now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All of it is done, or will be no more.
    Over(Status),
    /// It is called when pieces are back.
    Waits,
}

impl Work {
    /// The first piece of a range.
    fn piece(&self, at: u64, end: u64) -> Piece {
        let chunk = self.layout.shape.chunk;
        let within = at % chunk;
        Piece { logical: (at / chunk) as u32, within, length: (chunk - within).min(end - at) }
    }

    /// What a classifier may know of a chunk.
    pub(super) fn news(&self, logical: u32) -> Option<Translation> {
        let shape = self.layout.shape;
        let from = u64::from(logical) * shape.chunk;
        let to = self.layout.chunk_at(self.table.lookup(logical)?);
        let writable = self.table.is_own(logical) && !self.broken;
        Some(Translation::Insert { from, length: shape.chunk.min(shape.size - from), to, writable })
    }
}

impl Snapshot {
    /// A command that is done in one step, or goes below as a whole. None for others.
    pub(super) fn at_once(&self, call: &mut Call<'_>, io: &mut Io<'_>) -> Option<Answer> {
        let work = self.work.as_ref().filter(|_| !self.is_ordered())?;
        let Request { operation, offset, length, fua, .. } = call.request;
        let piece = work.piece(offset, call.request.end());
        if piece.length != length {
            return None;
        }
        let writes = operation != Operation::Read;
        let place = work.table.lookup(piece.logical);
        match place {
            // The log may say otherwise, or not yet durably that it is nowhere.
            None if writes && (operation == Operation::Write || work.broken || fua && !work.durable) => {
                return None;
            }
            None => {
                call.data.fill(0);
                return Some(Answer::Finish(Status::SUCCESS));
            }
            Some(_) if !writes => {}
            Some(_) if !work.table.is_own(piece.logical) || work.broken || fua && !work.durable => {
                return None;
            }
            Some(_) => {}
        }
        if !self.is_busy(piece.logical) {
            work.news(piece.logical).into_iter().for_each(|news| io.translate(news));
        }
        call.request.offset = work.layout.chunk_at(place?) + piece.within;
        Some(Answer::Forward)
    }

    /// Takes a command that is done piece by piece.
    pub(super) fn take(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        if call.request.operation == Operation::Read {
            // What is nowhere is not read.
            call.data.fill(0);
        }
        let (held, request) = (call.hold(), call.request);
        let job = Job { held, request, at: request.offset, pieces: 0, status: Status::SUCCESS };
        let number = self.jobs.insert(job);
        match self.advance(number, io) {
            Progress::Over(status) => {
                self.jobs.try_remove(number);
                Answer::Finish(status)
            }
            Progress::Waits => Answer::Hold,
        }
    }

    /// Does what can be done for a job.
    pub(super) fn advance(&mut self, number: usize, io: &mut Io<'_>) -> Progress {
        for _ in 0..LOOKS_MAX {
            let Some(job) = self.jobs.get_mut(number) else { return Progress::Waits };
            let (request, at, status) = (job.request, job.at, job.status);
            let Some(work) = self.work.as_ref().filter(|_| at < request.end() && status.is_success()) else {
                return self.conclude(number);
            };
            let piece = work.piece(at, request.end());
            if !self.advance_piece(number, piece, io) {
                self.stalled.push_back(number);
                return Progress::Waits;
            }
            if let Some(job) = self.jobs.get_mut(number) {
                job.at += piece.length;
            }
        }
        // Others first.
        self.stalled.push_back(number);
        io.wake_at(Some(io.now_ns()));
        Progress::Waits
    }

    /// Begins with a piece; false if that has to wait.
    fn advance_piece(&mut self, number: usize, piece: Piece, io: &mut Io<'_>) -> bool {
        if self.is_ordered() {
            return false;
        }
        let (Some(work), Some(job)) = (&self.work, self.jobs.get_mut(number)) else { return true };
        let (operation, place) = (job.request.operation, work.table.lookup(piece.logical));
        let writes = operation != Operation::Read;
        if place.is_none() && operation != Operation::Write && !(writes && work.broken) {
            return true;
        }
        let is_own = work.table.is_own(piece.logical);
        let whole = piece.length == work.layout.shape.chunk;
        if operation == Operation::Deallocate && !is_own && !whole {
            // It keeps what it has: that is not worth a chunk.
            return true;
        }
        if writes && work.broken {
            self.mend = true;
            return false;
        }
        if self.asked >= ASKED_MAX || writes && self.is_busy(piece.logical) {
            return false;
        }
        match place {
            Some(physical) if is_own || !writes => self.pass(number, piece, physical, io),
            _ if operation != Operation::Write && whole => self.copy(Copy::unmap(number, piece), io),
            _ => {
                let from = self.jobs.get_mut(number).map_or(0, |job| job.at - job.request.offset);
                self.copy(Copy::new(number, piece, from, operation == Operation::WriteZeroes, place), io)
            }
        }
    }

    /// Does a piece where its chunk is.
    fn pass(&mut self, number: usize, piece: Piece, physical: u32, io: &mut Io<'_>) -> bool {
        let (Some(work), Some(job)) = (&self.work, self.jobs.get_mut(number)) else { return true };
        let offset = work.layout.chunk_at(physical) + piece.within;
        let request = Request { offset, length: piece.length, ..job.request };
        let data = match request.has_data() {
            true => Data::Of(job.held, (job.at - job.request.offset) as usize),
            false => Data::None,
        };
        let asked = ask(io, request, data, token(For::Job, number));
        job.pieces += u32::from(asked);
        self.asked += usize::from(asked);
        asked
    }

    /// A piece is done, wherever it was done.
    pub(super) fn piece_done(&mut self, number: usize, status: Status, io: &mut Io<'_>) {
        let Some(job) = self.jobs.get_mut(number) else { return };
        job.pieces -= 1;
        if job.status.is_success() {
            job.status = status;
        }
        if job.pieces > 0 || self.stalled.contains(&number) {
            return;
        }
        if let Progress::Over(status) = self.advance(number, io) {
            self.finish(number, status, io);
        }
    }

    /// A job begins with no more pieces. It is over when none uses its data.
    fn conclude(&mut self, number: usize) -> Progress {
        let Some(job) = self.jobs.get_mut(number).filter(|job| job.pieces == 0) else {
            return Progress::Waits;
        };
        if !job.status.is_success() {
            return Progress::Over(job.status);
        }
        let Some(work) = &self.work else { return Progress::Over(Status::NAMESPACE_NOT_READY) };
        if job.request.fua && job.request.operation.modifies() && !work.durable {
            self.syncing.push(number);
            return Progress::Waits;
        }
        Progress::Over(Status::SUCCESS)
    }

    pub(super) fn finish(&mut self, number: usize, status: Status, io: &mut Io<'_>) {
        if let Some(job) = self.jobs.try_remove(number) {
            io.finish(job.held, status);
        }
    }
}
