//! Old version as a drive of its own, beside the drive that it is a version of.
//!
//! A version's chunks are never written again, so its map is loaded once. Only a deletion could free its
//! chunks, and the number of deletions changes in the store before any of them is reused. That number is read
//! after every read. If it has changed, the version is looked up again, and reads fail once it is deleted.

use super::{Requester, of_token, request, send, token};
use crate::store::block::{BLOCK, Kind, open};
use crate::store::layout::{DELETIONS, Layout, Shape};
use crate::store::load::{Found, Load, Loaded};
use crate::store::{StoreStatus, json};
use slab::Slab;
use sluice_command::Operation;
use sluice_metadata::engine::{IO_MAX, Step};
use sluice_nvme::Status;
use sluice_uif::{Answer, Buffer, Call, Control, Data, Done, Function, Held, Interest, Io, Properties};
use std::collections::VecDeque;

/// Most requests of jobs in flight.
const IN_FLIGHT_MAX: usize = sluice_uif::abi::REQUESTS_MAX as usize - 2;

/// Attempts to load an inconsistent store, which its drive may be writing, and the pause between two.
const TRIES: u32 = 50;
const PAUSE_NS: u64 = 20_000_000;

/// Status of reads of a deleted version.
const GONE: Status = Status::UNRECOVERED_READ_ERROR;

/// Version that is read.
#[derive(Debug)]
pub struct View {
    shape: Shape,
    name: String,
    store: u64,
    map: Option<Map>,
    /// Reason why the version cannot be read.
    refusal: Option<String>,
    /// Load in progress.
    load: Option<Load>,
    tries: u32,
    /// Whether the next attempt to load is still to come.
    pausing: bool,
    buffer: Option<Buffer>,
    jobs: Slab<Job>,
    in_flight: usize,
    waiting: VecDeque<usize>,
    /// Jobs that were read, and end when the version is confirmed to exist; and jobs that wait for the
    /// present check.
    read: Vec<usize>,
    checked: Vec<usize>,
}

/// Map of a version.
#[derive(Debug)]
struct Map {
    layout: Layout,
    /// Epoch of the version: another version may get its name.
    epoch: u32,
    deletions: u64,
    /// Chunk of the store plus one, or zero, by chunk of the drive.
    chunks: Vec<u32>,
}

#[derive(Debug)]
struct Job {
    held: Held,
    offset: u64,
    at: u64,
    end: u64,
    extents: u32,
    status: Status,
}

impl View {
    pub fn new(shape: Shape, name: &str) -> Self {
        Self {
            shape,
            name: name.to_owned(),
            store: 0,
            map: None,
            refusal: None,
            load: None,
            tries: 0,
            pausing: false,
            buffer: None,
            jobs: Slab::new(),
            in_flight: 0,
            waiting: VecDeque::new(),
            read: Vec::new(),
            checked: Vec::new(),
        }
    }

    fn begin_load(&mut self, io: &mut Io<'_>) {
        (self.load, self.pausing) = (Some(Load::to_read(self.shape, self.store)), false);
        self.step(io);
    }

    fn step(&mut self, io: &mut Io<'_>) {
        let (Some(load), Some(buffer)) = (&mut self.load, &self.buffer) else { return };
        match load.next(io.bytes(buffer)) {
            Ok(Step::Read { at, length }) => {
                let data = self.buffer.take().map_or(Data::None, Data::Own);
                send(io, request(Operation::Read, at, length as u64), data, token(Requester::Metadata, 0));
            }
            Ok(_) => {
                let found = self.load.take().map(Load::found);
                // The versions of a consistent store are valid.
                self.tries = TRIES;
                let map = match found {
                    Some(Found::Store(loaded)) => self.map_of(&loaded),
                    _ => Err("the store is empty".to_owned()),
                };
                self.loaded(map, io);
            }
            Err(message) => self.loaded(Err(message), io),
        }
    }

    fn map_of(&self, loaded: &Loaded) -> Result<Map, String> {
        let epoch = loaded.table.version(&self.name)?.epoch;
        let (layout, deletions) = (loaded.layout, loaded.deletions);
        Ok(Map { layout, epoch, deletions, chunks: loaded.table.map_of(epoch) })
    }

    /// Handles the end of a load.
    fn loaded(&mut self, found: Result<Map, String>, io: &mut Io<'_>) {
        self.load = None;
        let first = self.map.is_none();
        let is_same = |map: &Map| self.map.as_ref().is_none_or(|known| known.epoch == map.epoch);
        match found {
            Ok(map) if is_same(&map) => {
                (self.map, self.refusal, self.tries) = (Some(map), None, 0);
                if first {
                    io.ready(Status::SUCCESS);
                }
                self.check(io);
            }
            Err(_) if self.tries < TRIES => {
                (self.tries, self.pausing) = (self.tries + 1, true);
                io.wake_at(Some(io.now_ns() + PAUSE_NS));
            }
            found => {
                let message = found.err().unwrap_or_else(|| "the version was deleted".to_owned());
                tracing::error!(version = self.name, "snapshot: {message}");
                (self.map, self.refusal) = (None, Some(message));
                if first {
                    io.ready(Status::NAMESPACE_NOT_READY);
                }
                self.go_on(io);
            }
        }
    }

    /// Checks whether the version still exists, for jobs that were read.
    fn check(&mut self, io: &mut Io<'_>) {
        if self.load.is_some() || self.pausing || self.buffer.is_none() {
            return;
        }
        self.checked.append(&mut self.read);
        if self.map.is_none() {
            // The version is deleted: all that was read of it is invalid.
            return self.finish_checked(GONE, io);
        }
        if !self.checked.is_empty()
            && let Some(buffer) = self.buffer.take()
        {
            let asked = request(Operation::Read, DELETIONS, BLOCK as u64);
            send(io, asked, Data::Own(buffer), token(Requester::Copy, 0));
        }
    }

    /// Handles the number of deletions that was read.
    fn check_deletions(&mut self, status: Status, io: &mut Io<'_>) {
        let (Some(map), Some(buffer)) = (&self.map, &self.buffer) else { return };
        let block = open(&io.bytes(buffer)[..BLOCK], map.layout.salt);
        let found = block.filter(|(label, _)| label.kind == Kind::Deletions).map(|(label, _)| label.sequence);
        if status.is_success() && found != Some(map.deletions) {
            return self.begin_load(io);
        }
        self.finish_checked(status, io);
        self.check(io);
    }

    fn finish_checked(&mut self, status: Status, io: &mut Io<'_>) {
        for number in std::mem::take(&mut self.checked) {
            self.finish(number, status, io);
        }
    }

    fn finish(&mut self, number: usize, status: Status, io: &mut Io<'_>) {
        if let Some(job) = self.jobs.try_remove(number) {
            io.finish(job.held, if job.status.is_success() { status } else { job.status });
        }
    }

    /// Sends as many requests of a job as there is room for. Returns true if none of the job is in flight.
    fn advance(&mut self, number: usize, io: &mut Io<'_>) -> bool {
        while let Some(job) = self.jobs.get_mut(number).filter(|job| job.at < job.end) {
            let Some(map) = &self.map else {
                (job.at, job.status) = (job.end, GONE);
                continue;
            };
            let within = job.at % self.shape.chunk;
            let length = (self.shape.chunk - within).min(job.end - job.at);
            let logical = (job.at / self.shape.chunk) as usize;
            if let Some(physical) = map.chunks.get(logical).and_then(|chunk| chunk.checked_sub(1)) {
                if self.in_flight >= IN_FLIGHT_MAX {
                    self.waiting.push_back(number);
                    return false;
                }
                let asked = request(Operation::Read, map.layout.chunk_at(physical) + within, length);
                let data = Data::Of(job.held, (job.at - job.offset) as usize);
                if !send(io, asked, data, token(Requester::Job, number)) {
                    return false;
                }
                (job.extents, self.in_flight) = (job.extents + 1, self.in_flight + 1);
            }
            job.at += length;
        }
        self.jobs.get_mut(number).is_some_and(|job| job.extents == 0)
    }

    fn go_on(&mut self, io: &mut Io<'_>) {
        for _ in 0..self.waiting.len() {
            let Some(number) = self.waiting.pop_front() else { break };
            if self.advance(number, io) {
                self.read.push(number);
            }
        }
        self.check(io);
    }
}

impl Function for View {
    fn properties(&self) -> Properties {
        Properties { block_size: 512, pool: IO_MAX as u32, size: self.shape.size, ..Properties::NONE }
            .with(Operation::Read, Interest::Before)
            .with(Operation::Write, Interest::Before)
            .with(Operation::WriteZeroes, Interest::Before)
            .with(Operation::Deallocate, Interest::Before)
    }

    fn start(&mut self, io: &mut Io<'_>) {
        self.store = io.layers().first().map_or(0, |store| store.size);
        if self.map.is_some() {
            return io.ready(Status::SUCCESS);
        }
        self.buffer = self.buffer.take().or_else(|| io.buffer(IO_MAX));
        if self.load.is_none() {
            self.begin_load(io);
        }
    }

    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        if call.request.operation != Operation::Read {
            return Answer::Finish(Status::NAMESPACE_WRITE_PROTECTED);
        }
        if self.map.is_none() {
            return Answer::Finish(GONE);
        }
        call.data.fill(0);
        let (offset, end) = (call.request.offset, call.request.end());
        let (held, status) = (call.hold(), Status::SUCCESS);
        let number = self.jobs.insert(Job { held, offset, at: offset, end, extents: 0, status });
        if self.advance(number, io) {
            // A version's zeros never change.
            self.jobs.try_remove(number);
            return Answer::Finish(Status::SUCCESS);
        }
        Answer::Hold
    }

    fn done(&mut self, done: Done, io: &mut Io<'_>) {
        let (status, (requester, number)) = (done.status, of_token(done.token));
        self.buffer = done.buffer.or(self.buffer.take());
        match requester {
            Requester::Metadata if status.is_success() => self.step(io),
            Requester::Metadata => self.loaded(Err(format!("the store failed: {status:?}")), io),
            Requester::Copy => self.check_deletions(status, io),
            Requester::Job => {
                self.in_flight -= 1;
                let Some(job) = self.jobs.get_mut(number) else { return };
                job.extents -= 1;
                job.status = if job.status.is_success() { status } else { job.status };
                if job.extents == 0 && job.at == job.end {
                    self.read.push(number);
                }
            }
        }
        self.go_on(io);
    }

    fn timer(&mut self, io: &mut Io<'_>) {
        if self.pausing {
            self.begin_load(io);
        }
    }

    fn control(&mut self, text: &str, _io: &mut Io<'_>) -> Control {
        Control::Now(match (text.trim(), &self.refusal) {
            ("status", None) => json(&StoreStatus::of_version(&self.name, self.map.is_some())),
            ("status", Some(why)) => json(&StoreStatus::refused(why.clone())),
            _ => Err("the only order for a version is status".to_owned()),
        })
    }
}
