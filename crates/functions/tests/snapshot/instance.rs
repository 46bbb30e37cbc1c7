//! A function at work over a disk: the daemon's side of it, with answers in any order.

use sluice_command::{Operation, Request};
use sluice_functions::host::entry;
use sluice_memory::{Buffers, Extent, Extents, SharedRegion};
use sluice_nvme::Status;
use sluice_sim::{Random, SimDisk};
use sluice_uif::abi::{CONTROL_BYTES, Reply, Submission, disposition, flag, kind, translation};
use sluice_uif::{Answer, Function, Session};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of the data memory of function and host.
const ARENA: usize = 8 << 20;
/// Bytes of it for the function itself, at most.
const POOL: usize = 4 << 20;

/// Bytes of that with random initial contents: the buffers that are used most.
const DIRTY: usize = 256 << 10;

/// Tag of an order; the next one is that of a start.
const ORDER: u64 = u64::MAX;
const START: u64 = u64::MAX - 1;

/// A request to the disk.
#[derive(Debug)]
struct Op {
    whose: Whose,
    request: Request,
    /// Offset of its data in the arena.
    data: usize,
    done: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Whose {
    /// Request of the function, with its tag.
    Function(u64),
    /// Command that was sent below, or past the function.
    Command(u64),
    /// Flush that returns to the function at this stage.
    Returns(u64, u8),
}

/// A finished command.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) tag: u64,
    pub(super) status: Status,
    pub(super) data: Vec<u8>,
}

/// Selection of the requests that fail.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// Probability for requests that write or flush, and for reads.
    pub(super) writes: f64,
    pub(super) reads: f64,
    /// Request for metadata that is done and reported as failed; every later flush fails without being done.
    pub(super) step: Option<u64>,
    /// Number of requests for metadata after which the next flush fails, of the host's or of the function's.
    /// The metadata that is not durable is lost, or all data.
    pub(super) lost: Option<u64>,
    pub(super) is_hosts: bool,
    pub(super) loses_all: bool,
    /// Flag that lost data can be read until the power fails.
    pub(super) is_cached: bool,
    /// Number of requests for metadata after which the disk alone loses power. The next flush fails.
    pub(super) power: Option<u64>,
}

impl Faults {
    /// Returns whether a writing request may fail.
    pub(super) fn may_be_of_writes(&self) -> bool {
        self.writes > 0.0 || self.step.is_some()
    }
}

pub(super) struct Instance {
    session: Session,
    arena: Buffers,
    extents: Extents,
    disk: SimDisk,
    random: Random,
    ops: Vec<Op>,
    commands: BTreeMap<u64, (Request, Option<Extent>)>,
    next: u64,
    now_ns: u64,
    control: Option<Extent>,
    answer: Option<Result<String, String>>,
    finished: Vec<Finished>,
    /// Flag that answers are dropped.
    gone: bool,
    pub(super) ready: Option<Status>,
    pub(super) faults: Faults,
    /// Flags of a power loss of the disk: one is reported by its next flush, the other to the model.
    has_unreported_loss: bool,
    has_lost: bool,
    /// Initial contents of a buffer.
    noise: u8,
    /// Chunks that were read, and their positions: the state of the classifier.
    cache: BTreeMap<u64, (u64, bool)>,
    chunk: u64,
    /// End of the metadata, number of requests that wrote below it, and the number at which the power fails.
    pub(super) metadata: u64,
    /// Bytes of metadata that a power cut keeps as a whole or not at all, if they are fewer than those of a
    /// sector.
    pub(super) unit: Option<u64>,
    pub(super) metadata_writes: u64,
    pub(super) cut_at: Option<u64>,
    /// Number of commands that went past the function.
    pub(super) hits: u64,
}

impl Instance {
    pub(super) fn new(function: Box<dyn Function>, disk: &SimDisk, chunk: u64, mut random: Random) -> Self {
        let region = SharedRegion::new("instance", ARENA).expect("memory");
        let noise = random.between(1, 255) as u8;
        let mut instance = Self {
            session: Session::new(function, ARENA),
            arena: Buffers::new(region),
            extents: Extents::new(ARENA - POOL),
            disk: disk.clone(),
            random,
            ops: Vec::new(),
            commands: BTreeMap::new(),
            next: 0,
            now_ns: 0,
            control: None,
            answer: None,
            finished: Vec::new(),
            gone: false,
            ready: None,
            faults: Faults::default(),
            has_unreported_loss: false,
            has_lost: false,
            noise,
            cache: BTreeMap::new(),
            chunk,
            metadata: 0,
            unit: None,
            metadata_writes: 0,
            cut_at: None,
            hits: 0,
        };
        instance.arena.bytes(ARENA - POOL, DIRTY).expect("it is in range").fill(noise);
        instance.begin();
        instance
    }

    /// Returns true once after the disk has lost power.
    pub(super) fn has_lost_power(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    fn begin(&mut self) {
        let size = self.disk.lock().config().size;
        self.resize(size);
    }

    /// Reports the size of the store to the function.
    pub(super) fn resize(&mut self, size: u64) {
        let below = Submission { kind: kind::BELOW, offset: size, length: 512, ..Submission::default() };
        self.give(&below);
        self.give(&Submission { kind: kind::START, tag: START, ..Submission::default() });
    }

    /// Replaces the function of the drive: requests of the old one are done first, and the classifier's state
    /// stays.
    pub(super) fn replace(&mut self, function: Box<dyn Function>) -> Vec<u64> {
        self.gone = true;
        while !self.ops.is_empty() {
            self.work(0);
        }
        self.gone = false;
        let lost: Vec<u64> = self.commands.keys().copied().collect();
        for (_, (_, extent)) in std::mem::take(&mut self.commands) {
            extent.into_iter().for_each(|extent| self.extents.give(extent));
        }
        self.control.take().into_iter().for_each(|extent| self.extents.give(extent));
        (self.session, self.ready) = (Session::new(function, ARENA), None);
        self.begin();
        lost
    }

    /// Sets the bytes of the disk's front that count as metadata.
    pub(super) fn count_below(&mut self, metadata: u64) {
        self.metadata = metadata;
    }

    fn give(&mut self, entry: &Submission) {
        self.session.take(entry, &mut self.arena, self.now_ns);
        self.execute();
    }

    fn execute(&mut self) {
        let replies: Vec<Reply> = self.session.replies(usize::MAX).collect();
        for reply in replies {
            match reply.disposition {
                disposition::READY => self.ready = Some(Status(reply.status)),
                disposition::REQUEST => {
                    let request = sent(&reply);
                    let (whose, data) = (Whose::Function(reply.tag), reply.data_offset as usize);
                    self.ops.push(Op { whose, request, data, done: 0 });
                }
                disposition::TRANSLATE => self.translate(&reply),
                _ if reply.tag == ORDER => self.ordered(&reply),
                _ => self.command(&reply),
            }
        }
    }

    fn translate(&mut self, reply: &Reply) {
        let chunks = reply.offset / self.chunk..(reply.offset + reply.length).div_ceil(self.chunk);
        match reply.operation {
            translation::INSERT => {
                assert_eq!(chunks.end - chunks.start, 1, "a chunk at a time");
                self.cache.insert(chunks.start, (reply.cookie[0], reply.cookie[1] == 1));
            }
            translation::FORGET => self.cache.retain(|chunk, _| !chunks.contains(chunk)),
            _ => self.cache.range_mut(chunks).for_each(|(_, (_, writable))| *writable = false),
        }
    }

    fn command(&mut self, reply: &Reply) {
        let answer = entry::answer(reply).expect("an answer that makes sense");
        let tag = reply.tag;
        match answer {
            (Answer::Finish(status), _) => self.finish(tag, status),
            (Answer::Forward, request) => {
                let (_, extent) = &self.commands[&tag];
                let data = extent.as_ref().map_or(0, Extent::offset);
                self.ops.push(Op { whose: Whose::Command(tag), request, data, done: 0 });
            }
            (Answer::ForwardAndReturn(stage), request) => {
                assert_eq!(request.operation, Operation::Flush);
                self.ops.push(Op { whose: Whose::Returns(tag, stage), request, data: 0, done: 0 });
            }
            other => panic!("{other:?}"),
        }
    }

    fn finish(&mut self, tag: u64, status: Status) {
        let (request, extent) = self.commands.remove(&tag).expect("it is under way");
        let mut data = Vec::new();
        if let Some(extent) = extent {
            let place = extent.offset()..extent.offset() + request.length as usize;
            let uses = |op: &Op| op.request.has_data() && place.contains(&op.data);
            assert!(!self.ops.iter().any(uses), "nobody uses the data of a command that is over");
            let bytes = self.arena.bytes(extent.offset(), request.length as usize).expect("it is in range");
            data.extend_from_slice(bytes);
            bytes.fill(self.noise);
            self.extents.give(extent);
        }
        self.finished.push(Finished { tag, status, data });
    }

    fn ordered(&mut self, reply: &Reply) {
        let extent = self.control.take().expect("there was an order");
        let data = self.arena.bytes(extent.offset(), reply.length as usize).expect("it is in range").to_vec();
        self.extents.give(extent);
        let message = String::from_utf8(data).expect("message");
        self.answer = Some(if Status(reply.status).is_success() { Ok(message) } else { Err(message) });
    }

    /// Submits a command, past the function if the classifier has its position.
    pub(super) fn submit(&mut self, request: Request, data: &[u8]) -> u64 {
        self.next += 1;
        let (tag, mut entry) = (self.next, entry::about(&request));
        let extent = request.has_data().then(|| {
            let extent = self.extents.take(request.length as usize).expect("there is room");
            let bytes = self.arena.bytes(extent.offset(), data.len()).expect("it is in range");
            match request.operation {
                Operation::Read => bytes.fill(self.noise),
                _ => bytes.copy_from_slice(data),
            }
            extent
        });
        let place = extent.as_ref().map_or(0, Extent::offset);
        self.commands.insert(tag, (request, extent));
        if let Some(below) = self.way_past(&request) {
            self.hits += 1;
            self.ops.push(Op { whose: Whose::Command(tag), request: below, data: place, done: 0 });
            return tag;
        }
        entry.tag = tag;
        if request.has_data() {
            (entry.data_offset, entry.data_length) = (place as u32, request.length as u32);
        }
        self.give(&entry);
        tag
    }

    /// Returns the classifier's decision.
    fn way_past(&self, request: &Request) -> Option<Request> {
        let (to, writable) = *self.cache.get(&(request.offset / self.chunk))?;
        let within = request.offset % self.chunk;
        let fits = within + request.length <= self.chunk;
        let may = match request.operation {
            Operation::Read => true,
            Operation::Write => writable && !request.fua,
            _ => false,
        };
        (fits && may).then_some(Request { offset: to + within, ..*request })
    }

    /// Sends an order to the function; `quiet` is true if the drive is.
    pub(super) fn send_order(&mut self, text: &str, quiet: bool) {
        let extent = self.extents.take(CONTROL_BYTES).expect("there is room");
        let bytes = self.arena.bytes(extent.offset(), text.len()).expect("it is in range");
        bytes.copy_from_slice(text.as_bytes());
        let entry = Submission {
            tag: ORDER,
            kind: kind::CONTROL,
            flags: u8::from(quiet) * flag::QUIET,
            data_offset: extent.offset() as u32,
            data_length: text.len() as u32,
            ..Submission::default()
        };
        self.control = Some(extent);
        self.give(&entry);
    }

    /// Sends an order and waits; returns none if the power failed meanwhile.
    pub(super) fn order(&mut self, text: &str, quiet: bool) -> Option<Result<String, String>> {
        self.send_order(text, quiet);
        while self.answer.is_none() {
            if !self.step() {
                return None;
            }
        }
        self.take_answer()
    }

    /// Returns the answer to an order.
    pub(super) fn take_answer(&mut self) -> Option<Result<String, String>> {
        self.answer.take()
    }

    /// Performs a random step. Returns false if the power failed.
    pub(super) fn step(&mut self) -> bool {
        if self.cut_at.is_some_and(|at| self.metadata_writes >= at) {
            return false;
        }
        if self.ops.is_empty() {
            if let Some(alarm_ns) = self.session.alarm_ns() {
                self.now_ns = self.now_ns.max(alarm_ns);
                self.session.expire(&mut self.arena, self.now_ns);
                self.execute();
            }
            return true;
        }
        let index = self.random.below(self.ops.len() as u64) as usize;
        self.work(index);
        true
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.commands.is_empty() && self.control.is_none() && self.ready.is_some()
    }

    pub(super) fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// Cuts the power of the disk alone: requests under way begin again.
    fn lose_power(&mut self) {
        self.faults.power = None;
        self.disk.lock().power_cut();
        self.ops.iter_mut().for_each(|op| op.done = 0);
        (self.has_unreported_loss, self.has_lost) = (true, true);
    }

    /// Moves the next part of a request.
    fn work(&mut self, index: usize) {
        if self.faults.power.is_some_and(|at| self.metadata_writes >= at) {
            self.lose_power();
        }
        let op = &mut self.ops[index];
        let writes = op.request.operation != Operation::Read;
        let chance = if writes { self.faults.writes } else { self.faults.reads };
        let mut fault = chance > 0.0 && self.random.chance(chance);
        let status = if writes { Status::WRITE_FAULT } else { Status::UNRECOVERED_READ_ERROR };
        let flushes = op.request.operation == Operation::Flush;
        if flushes && std::mem::take(&mut self.has_unreported_loss) {
            return self.answer(index, status);
        }
        if flushes && self.faults.step.is_some_and(|step| self.metadata_writes >= step) {
            return self.answer(index, status);
        }
        let is_hosts = matches!(op.whose, Whose::Returns(..));
        if flushes
            && is_hosts == self.faults.is_hosts
            && self.faults.lost.is_some_and(|lost| self.metadata_writes >= lost)
        {
            self.faults.lost = None;
            let mut disk = self.disk.lock();
            let all = 0..if self.faults.loses_all { disk.config().size } else { self.metadata };
            match self.faults.is_cached {
                true => disk.forget(all),
                false => disk.lose(all),
            }
            drop(disk);
            return self.answer(index, status);
        }
        // Some requests fail when a part of them was done, or all.
        if fault && self.random.one_in(2) {
            return self.answer(index, status);
        }
        let range = op.data..op.data + op.request.length as usize;
        let data = if op.request.has_data() { self.arena.bytes(range.start, range.len()) } else { None };
        let data = data.map_or(&mut [] as &mut [u8], |data| data);
        let unit = self.unit.filter(|_| op.request.offset < self.metadata);
        if move_extent(op, &self.disk, data, unit) {
            if op.request.operation != Operation::Read && touches(&op.request, 0..self.metadata) {
                self.metadata_writes += 1;
                fault |= self.faults.step == Some(self.metadata_writes);
            }
            self.answer(index, if fault { status } else { Status::SUCCESS });
        }
    }

    fn answer(&mut self, index: usize, status: Status) {
        let op = self.ops.swap_remove(index);
        match op.whose {
            Whose::Command(tag) => self.finish(tag, status),
            Whose::Returns(..) if self.gone => {}
            Whose::Returns(tag, stage) => {
                let flush = entry::about(&op.request);
                self.give(&Submission { kind: kind::RETURNED, tag, stage, status: status.0, ..flush });
            }
            Whose::Function(_) if self.gone => {}
            Whose::Function(tag) => {
                let done = Submission { kind: kind::DONE, tag, status: status.0, ..Submission::default() };
                self.give(&done);
            }
        }
    }
}

/// Returns the request that a reply sends below.
fn sent(reply: &Reply) -> Request {
    entry::request(reply).expect("a request that makes sense")
}

fn touches(request: &Request, range: Range<u64>) -> bool {
    request.operation == Operation::Flush || request.offset < range.end
}

/// Moves a part of a request; returns whether that was the last. Each `unit` of it survives a power cut by itself.
fn move_extent(op: &mut Op, disk: &SimDisk, data: &mut [u8], unit: Option<u64>) -> bool {
    let mut disk = disk.lock();
    let request = op.request;
    assert!(request.end() <= disk.config().size && request.length.is_multiple_of(512), "{request:?}");
    if request.operation == Operation::Flush {
        disk.flush();
        return true;
    }
    let length = disk.config().next_extent(request.length, op.done);
    let (at, from) = (request.offset + op.done, op.done as usize);
    let data = data.get_mut(from..from + length as usize);
    match request.operation {
        Operation::Read => disk.read(at, data.expect("as long as it says")),
        Operation::Write => {
            let unit = unit.unwrap_or(length);
            let units = data.expect("as long as it says").chunks(unit as usize);
            (at..).step_by(unit as usize).zip(units).for_each(|(at, data)| disk.write(at, data));
        }
        _ => disk.write(at, &vec![0; length as usize]),
    }
    op.done += length;
    let is_last = op.done == request.length;
    if is_last && request.operation.modifies() && (request.fua || !disk.config().volatile_cache) {
        disk.persist(request.offset..request.end());
    }
    is_last
}
