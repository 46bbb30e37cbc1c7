//! Function of a drive with versions: its state, and the order of its metadata writes.

use super::copy::Copy;
use super::jobs::{Job, Progress};
use super::sweep::sweeper;
use super::{BACK, Requester, of_token, request, send, token};
use crate::store::layout::{Layout, Shape};
use crate::store::load::{Found, Load, Loaded};
use crate::store::metadata_op::{CHANGES_MAX, Entry, Format, MetadataOp, Write};
use crate::store::table::Table;
use slab::Slab;
use sluice_command::Operation;
use sluice_jobs::{Order, Scheduler};
use sluice_metadata::engine::{IO_MAX, Step, Writer};
use sluice_nvme::Status;
use sluice_uif::{
    Answer, Buffer, Call, Control, Data, Done, Function, Held, Interest, Io, Properties, Translation,
};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

/// Bytes of memory for copies and metadata.
const POOL: u32 = 2 << 20;

/// Drive with versions.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) shape: Shape,
    /// Salt for a store that it makes.
    salt: u64,
    /// Bytes of the store.
    store: u64,
    /// Loaded store. None until it is loaded, and if it cannot be.
    pub(super) work: Option<Work>,
    /// Reason why the store cannot be used.
    pub(super) refusal: Option<String>,
    /// Whether the store is to be loaded as soon as no request is in flight.
    pub(super) must_load: bool,
    pub(super) op: Option<MetadataOp>,
    /// Buffer of the metadata operations; none while the store has it.
    buffer: Option<Buffer>,
    pub(super) jobs: Slab<Job>,
    pub(super) copies: Slab<Copy>,
    /// Copies whose data is written, and copies whose log entry is being written.
    pub(super) ready: Vec<usize>,
    committing: Vec<usize>,
    /// Jobs that could not go on, and jobs that wait for the log to be durable.
    pub(super) stalled: VecDeque<usize>,
    pub(super) syncing: Vec<usize>,
    /// Order of an operator, to begin as soon as no other metadata operation runs.
    pub(super) order: Option<Entry>,
    /// Whether a write or flush waits for the log to be repaired.
    pub(super) repair: bool,
    /// Flushes of hosts that wait for that.
    pub(super) flushes: Vec<Held>,
    /// Whether a flush of the function's own was lost, and with it writes of hosts: their next Flush fails.
    pub(super) unflushed: bool,
    /// Stage of flushes that have arrived since then.
    pub(super) back: u8,
    /// Whether an operator has ordered to leave out blocks of the log behind the last durable point, and
    /// waits for the answer.
    pub(super) leaves_out: bool,
    /// Whether a flush of a host was lost during the metadata operation.
    pub(super) spoiled: bool,
    /// Requests of jobs and copies in flight.
    pub(super) in_flight: usize,
    pub(super) counts: Counts,
    /// Deletion of versions in steps, and the time at which the function is woken.
    pub(super) sweeper: Scheduler<1>,
    pub(super) alarm_ns: Option<u64>,
}

/// Loaded store at work.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) layout: Layout,
    pub(super) table: Table,
    /// Writer of the log. It is stale if the end of the log is uncertain, or if readers of old versions were
    /// not notified of a deletion. No write is made, and no chunk reused, before a checkpoint is.
    pub(super) writer: Writer,
    /// Whether all of the log is durable, and readers of old versions are notified.
    pub(super) durable: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) copies: u64,
    pub(super) refused: u64,
    commits: u64,
    checkpoints: u64,
    /// Failed steps of the metadata.
    failures: u64,
    warned: bool,
}

impl Snapshot {
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            salt: RandomState::new().hash_one(shape.size),
            store: 0,
            work: None,
            refusal: None,
            must_load: false,
            op: None,
            buffer: None,
            jobs: Slab::new(),
            copies: Slab::new(),
            ready: Vec::new(),
            committing: Vec::new(),
            stalled: VecDeque::new(),
            syncing: Vec::new(),
            order: None,
            repair: false,
            flushes: Vec::new(),
            unflushed: false,
            back: BACK,
            leaves_out: false,
            spoiled: false,
            in_flight: 0,
            counts: Counts::default(),
            sweeper: sweeper(shape),
            alarm_ns: None,
        }
    }

    /// Handles another size of the store.
    fn resized(&mut self, io: &mut Io<'_>) {
        let Some(work) = &mut self.work else { return };
        match Layout::plan(self.shape, work.layout.salt, work.layout.made_with, self.store) {
            Ok(layout) if layout.physical >= work.layout.physical => {
                work.table.grow(layout.physical);
                work.layout = layout;
                io.ready(Status::SUCCESS);
            }
            Ok(_) => self.refuse("the store has become smaller".to_owned(), io),
            Err(message) => self.refuse(message, io),
        }
    }

    fn refuse(&mut self, message: String, io: &mut Io<'_>) {
        tracing::error!("snapshot: {message}");
        if self.is_ordered() || std::mem::take(&mut self.leaves_out) {
            io.answer(Err(message.clone()));
        }
        (self.work, self.refusal, self.order) = (None, Some(message), None);
        io.ready(Status::NAMESPACE_NOT_READY);
        // Requests in flight to the store come back, and their copies end then.
        let written = std::mem::take(&mut self.ready).into_iter().chain(std::mem::take(&mut self.committing));
        for number in written.collect::<Vec<_>>() {
            self.give_up(number, Status::NAMESPACE_NOT_READY, io);
        }
        self.synced(Status::NAMESPACE_NOT_READY, io);
        self.repaired(Status::NAMESPACE_NOT_READY, io);
    }

    fn load(&mut self, io: &mut Io<'_>) {
        if self.must_load && self.op.is_none() && self.in_flight == 0 {
            self.must_load = false;
            let load = Load::up_to(self.shape, self.store, self.leaves_out);
            self.run(MetadataOp::Load(Box::new(load)), io);
        }
    }

    /// Begins with a loaded store.
    fn begin(&mut self, loaded: Loaded, io: &mut Io<'_>) {
        let Loaded { layout, table, writer, left_out, .. } = loaded;
        if table.visited() > 0 {
            self.sweeper.note_done(0, table.visited() * self.shape.chunk);
        }
        self.work = Some(Work { layout, table, writer, durable: false });
        // The cache may have entries that the function before this one was about to change.
        io.translate(Translation::Forget { from: 0, length: self.shape.size });
        if std::mem::take(&mut self.leaves_out) {
            // The checkpoint voids the left-out blocks, and the next Flush of hosts fails.
            (self.repair, self.unflushed) = (left_out.is_some(), left_out.is_some());
            io.answer(Ok(left_out.describe(self.shape.chunk)));
        }
        io.ready(Status::SUCCESS);
    }

    /// Executes the next step of the metadata operation.
    fn step(&mut self, io: &mut Io<'_>) {
        let (Some(op), Some(buffer)) = (&mut self.op, &self.buffer) else { return };
        let bytes = io.bytes(buffer);
        let step = match (op, &mut self.work) {
            (MetadataOp::Load(load), _) => load.next(bytes),
            (MetadataOp::Format(format), _) => Ok(format.next(bytes)),
            (MetadataOp::Write(write), Some(work)) => {
                Ok(write.next(&work.layout, &mut work.writer, &work.table, bytes))
            }
            (MetadataOp::Sync(begun), _) => {
                Ok(if std::mem::replace(begun, true) { Step::Done } else { Step::Flush })
            }
            (_, None) => Ok(Step::Done),
        };
        let (asked, has_data) = match step {
            Err(message) => {
                self.op = None;
                return self.refuse(message, io);
            }
            Ok(Step::Done) => return self.op_done(io),
            Ok(Step::Flush) => (request(Operation::Flush, 0, 0), false),
            Ok(Step::Read { at, length }) => (request(Operation::Read, at, length as u64), true),
            Ok(Step::Write { at, length }) => (request(Operation::Write, at, length as u64), true),
        };
        let data = match self.buffer.take_if(|_| has_data) {
            Some(buffer) => Data::Own(buffer),
            None => Data::None,
        };
        send(io, asked, data, token(Requester::Metadata, 0));
    }

    /// Handles the end of the metadata operation.
    fn op_done(&mut self, io: &mut Io<'_>) {
        match (self.op.take(), &mut self.work) {
            (Some(MetadataOp::Load(load)), _) => match load.found() {
                Found::Store(loaded) => self.begin(*loaded, io),
                Found::Empty => match Layout::plan(self.shape, self.salt, self.store, self.store) {
                    Ok(layout) => self.run(MetadataOp::Format(Format { layout, stage: 0 }), io),
                    Err(message) => self.refuse(message, io),
                },
            },
            (Some(MetadataOp::Format(Format { layout, .. })), _) => self.begin(Loaded::made(layout), io),
            (Some(MetadataOp::Write(Write { entry: Some(entry), .. })), Some(work)) => {
                // A deletion's notice to the readers of old versions comes after its last flush.
                work.durable = matches!(entry, Entry::Create(_) | Entry::Rollback(_));
                self.counts.commits += 1;
                self.committed(&entry, io);
            }
            (Some(MetadataOp::Write(_)), Some(work)) => {
                (work.durable, self.repair) = (true, false);
                self.counts.checkpoints += 1;
                self.repaired(Status::SUCCESS, io);
            }
            (Some(MetadataOp::Sync(_)), Some(work)) => {
                work.durable = true;
                self.synced(Status::SUCCESS, io);
            }
            _ => {}
        }
    }

    /// Applies an entry that the log has.
    fn committed(&mut self, entry: &Entry, io: &mut Io<'_>) {
        let Some(work) = &mut self.work else { return };
        let done = match entry {
            Entry::Delete(name) => work.table.forget_version(name),
            entry => entry.apply(&mut work.table),
        };
        if matches!(entry, Entry::Delete(_)) && done.is_ok() {
            self.begin_sweep();
        }
        // Again, because the drive may have gone on meanwhile.
        self.announce(entry, io);
        if matches!(entry, Entry::Changes(_)) {
            for number in std::mem::take(&mut self.committing) {
                self.copied(number, io);
            }
        } else {
            io.answer(done.map(|()| "done".to_owned()));
        }
        self.warn();
    }

    /// Warns early that the store will be full.
    fn warn(&mut self) {
        let Some((all, free)) = self.work.as_ref().map(|work| work.table.room()) else { return };
        let low = free * 5 < all;
        if low && !self.counts.warned {
            tracing::warn!(
                chunks = all,
                free,
                "snapshot: the store is full by more than 80 %: make it larger"
            );
        }
        self.counts.warned = low;
    }

    fn synced(&mut self, status: Status, io: &mut Io<'_>) {
        for number in std::mem::take(&mut self.syncing) {
            self.finish(number, status, io);
        }
    }

    /// Handles a failed step of the metadata operation.
    fn failed(&mut self, status: Status, io: &mut Io<'_>) {
        self.counts.failures += 1;
        let message = format!("the store failed: {status:?}");
        match self.op.take() {
            Some(MetadataOp::Load(load)) if load.writes() => self.run(MetadataOp::Load(load.unwritten()), io),
            Some(MetadataOp::Load(_) | MetadataOp::Format(_)) => self.refuse(message, io),
            Some(MetadataOp::Write(write)) => {
                let Some(work) = &mut self.work else { return };
                match write.failed(&mut work.writer) {
                    (None, _) => self.checkpoint_failed(status, io),
                    (Some(entry), is_durable) => self.append_failed(&entry, is_durable, status, io),
                }
            }
            Some(MetadataOp::Sync(_)) => self.synced(status, io),
            None => {}
        }
    }

    fn append_failed(&mut self, entry: &Entry, is_durable: bool, status: Status, io: &mut Io<'_>) {
        self.repair |= self.work.as_ref().is_some_and(|work| work.writer.is_stale());
        if is_durable {
            // Only the readers of old versions were not notified.
            return self.committed(entry, io);
        }
        for number in std::mem::take(&mut self.committing) {
            self.give_up(number, status, io);
        }
        if !matches!(entry, Entry::Changes(_)) {
            io.answer(Err(format!("the store failed: {status:?}")));
        }
    }

    /// Fails the commands that waited for a checkpoint; the next that needs one tries again.
    fn checkpoint_failed(&mut self, status: Status, io: &mut Io<'_>) {
        self.repair = false;
        for number in std::mem::take(&mut self.ready) {
            self.give_up(number, status, io);
        }
        for number in std::mem::take(&mut self.stalled) {
            if let Some(job) = self.jobs.get_mut(number).filter(|job| job.request.operation.modifies()) {
                job.status = status;
            }
            self.stalled.push_back(number);
        }
        if self.order.take().is_some() {
            io.answer(Err(format!("the store failed: {status:?}")));
        }
        self.synced(status, io);
        self.repaired(status, io);
    }

    /// Continues jobs that waited and can go on.
    pub(super) fn go_on(&mut self, io: &mut Io<'_>) {
        for _ in 0..self.stalled.len() {
            let Some(number) = self.stalled.pop_front() else { break };
            if let Progress::Done(status) = self.advance(number, io) {
                self.finish(number, status, io);
            }
        }
        self.load(io);
        self.start_next_op(io);
        self.sweep(io);
    }

    /// Begins the next metadata operation, if none runs.
    pub(super) fn start_next_op(&mut self, io: &mut Io<'_>) {
        let (None, Some(work)) = (&self.op, &mut self.work) else { return };
        let wanted = !self.ready.is_empty() || self.order.is_some();
        let repairs = work.writer.is_stale() && (self.repair || !self.syncing.is_empty());
        let write = if repairs || wanted && !work.writer.has_room() {
            Write::checkpoint(&work.table, &mut work.writer)
        } else if let Some(entry) = self.order.take() {
            Write::append(entry, &mut work.writer)
        } else if !self.ready.is_empty() {
            let count = self.ready.len().min(CHANGES_MAX);
            self.committing = self.ready.drain(..count).collect();
            let copies = self.committing.iter().filter_map(|number| self.copies.get(*number));
            Write::append(Entry::Changes(copies.map(Copy::change).collect()), &mut work.writer)
        } else if !self.syncing.is_empty() {
            return self.run(MetadataOp::Sync(false), io);
        } else {
            return;
        };
        self.run(MetadataOp::Write(write), io);
    }

    fn run(&mut self, op: MetadataOp, io: &mut Io<'_>) {
        self.op = Some(op);
        self.step(io);
    }
}

impl Function for Snapshot {
    fn properties(&self) -> Properties {
        Properties { block_size: 512, pool: POOL, size: self.shape.size, ..Properties::NONE }
            .with(Operation::Read, Interest::Before)
            .with(Operation::Write, Interest::Before)
            .with(Operation::WriteZeroes, Interest::Before)
            .with(Operation::Deallocate, Interest::Before)
            .with(Operation::Flush, Interest::Before)
    }

    fn start(&mut self, io: &mut Io<'_>) {
        let store = io.layers().first().copied().unwrap_or_default();
        self.store = store.size;
        if self.work.is_some() {
            self.resized(io);
            return self.go_on(io);
        }
        if self.op.is_none() {
            self.buffer = self.buffer.take().or_else(|| io.buffer(IO_MAX));
        }
        self.must_load = !matches!(self.op, Some(MetadataOp::Load(_) | MetadataOp::Format(_)));
        self.load(io);
    }

    fn submit(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        if self.work.is_none() {
            return Answer::Finish(Status::NAMESPACE_NOT_READY);
        }
        if call.request.operation == Operation::Flush {
            return self.flush(call, io);
        }
        if let Some(answer) = self.at_once(call, io) {
            return answer;
        }
        let answer = self.take(call, io);
        self.start_next_op(io);
        answer
    }

    fn returned(&mut self, call: &mut Call<'_>, io: &mut Io<'_>) -> Answer {
        self.flushed(call, io)
    }

    fn done(&mut self, done: Done, io: &mut Io<'_>) {
        let (status, (requester, number)) = (done.status, of_token(done.token));
        match requester {
            Requester::Metadata => {
                // A step without data is a flush.
                if done.buffer.is_none() && !status.is_success() {
                    self.flush_was_lost(io);
                }
                self.buffer = done.buffer.or(self.buffer.take());
                match std::mem::take(&mut self.spoiled) {
                    true => self.failed(Status::WRITE_FAULT, io),
                    false if status.is_success() => self.step(io),
                    false => self.failed(status, io),
                }
            }
            Requester::Copy => {
                self.in_flight -= 1;
                self.copy_done(number, done, io);
            }
            Requester::Job => {
                self.in_flight -= 1;
                self.extent_done(number, status, io);
            }
        }
        self.go_on(io);
    }

    fn timer(&mut self, io: &mut Io<'_>) {
        self.alarm_ns = None;
        self.go_on(io);
    }

    fn control(&mut self, text: &str, io: &mut Io<'_>) -> Control {
        match Order::parse(text) {
            Some(order) => self.order_jobs(order, io),
            None => self.execute(text, io),
        }
    }

    fn metrics(&self, count: &mut dyn FnMut(&str, u64)) {
        let Some(work) = &self.work else { return };
        let (all, free) = work.table.room();
        count("store_chunks", all);
        count("store_chunks_free", free);
        count("store_low", u64::from(free * 5 < all));
        count("chunks_mapped", work.table.mapped());
        count("versions", work.table.versions().len() as u64);
        count("copies_total", self.counts.copies);
        count("capacity_exceeded_total", self.counts.refused);
        count("commits_total", self.counts.commits);
        count("checkpoints_total", self.counts.checkpoints);
        count("metadata_failures_total", self.counts.failures);
    }
}
