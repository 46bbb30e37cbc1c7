//! Set whose members are the layers below a function, from 0 on; the layer after them is its log.

use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_redundancy::{Members, Mirror, Step, WriteId};
use sluice_uif::{Buffer, Data, Done, Io};

/// Step that concerns the function.
#[derive(Debug)]
pub(crate) enum Event {
    /// The log was read.
    Ready(Result<(), String>),
    /// A write goes to these members now.
    Go { write: u32, to: Members },
    /// A write that waited for the log has ended.
    Over { write: u32, good: bool },
}

/// Purposes of requests, in the high half of a token. Values from 16 on belong to the function.
const LOG_READ: u64 = 1;
const LOG_WRITE: u64 = 2;
/// Flush; the low half of the token is the member.
const FLUSH: u64 = 3;
const COPY_READ: u64 = 4;
const COPY_WRITE: u64 = 5;
const COMPARE: u64 = 6;

/// Set with its requests in flight, apart from the writes of the host.
#[derive(Debug)]
pub(crate) struct Mirrored {
    pub(crate) mirror: Mirror,
    log: usize,
    /// Range that is copied or compared.
    chunk: Request,
    left: Members,
    failed: Members,
    /// Data that the other members are compared with.
    first: Option<Buffer>,
}

impl Mirrored {
    /// Creates the set, with so many members.
    pub(crate) fn new(mirror: Mirror, members: usize) -> Self {
        let (left, failed) = (Members::NONE, Members::NONE);
        Self { mirror, log: members, chunk: Request::default(), left, failed, first: None }
    }

    /// Sends the requests of the set's steps to the layers, as long as there is room. Returns the next step
    /// that concerns the function.
    pub(crate) fn next(&mut self, io: &mut Io<'_>) -> Option<Event> {
        while io.has_room() {
            match self.mirror.next(io.now_ns())? {
                Step::Ready(outcome) => return Some(Event::Ready(outcome)),
                Step::Go { write: WriteId(write), to } => return Some(Event::Go { write, to }),
                Step::Over { write: WriteId(write), good } => return Some(Event::Over { write, good }),
                step => self.begin(step, io),
            }
        }
        None
    }

    fn begin(&mut self, step: Step, io: &mut Io<'_>) {
        match step {
            Step::ReadLog { offset, length } => {
                self.read(self.log, reading(offset, length as u64), LOG_READ, io);
            }
            Step::WriteLog { offset } => self.write_log(offset, io),
            Step::Flush { member } => {
                let flush = Request { operation: Operation::Flush, ..Request::default() };
                self.send(member, flush, Data::None, FLUSH << 32 | member as u64, io);
            }
            Step::Copy { from, to, offset, length } => {
                (self.chunk, self.left, self.failed) = (reading(offset, length), to, Members::NONE);
                self.read(from, self.chunk, COPY_READ, io);
            }
            Step::Compare { members, offset, length } => {
                (self.chunk, self.left) = (reading(offset, length), members);
                self.compare_next(io);
            }
            Step::Ready(_) | Step::Go { .. } | Step::Over { .. } => {}
        }
    }

    fn read(&mut self, layer: usize, request: Request, what: u64, io: &mut Io<'_>) {
        let data = io.buffer(request.length as usize).map_or(Data::None, Data::Own);
        self.send(layer, request, data, what << 32, io);
    }

    fn write_log(&mut self, offset: u64, io: &mut Io<'_>) {
        let length = self.mirror.log_bytes().len();
        let data = io.buffer(length).map_or(Data::None, |buffer| {
            io.bytes(&buffer).copy_from_slice(self.mirror.log_bytes());
            Data::Own(buffer)
        });
        let request = Request { operation: Operation::Write, fua: true, ..reading(offset, length as u64) };
        self.send(self.log, request, data, LOG_WRITE << 32, io);
    }

    /// Sends a request to a layer. A request that cannot be sent ends at once with an error.
    fn send(&mut self, layer: usize, request: Request, data: Data, token: u64, io: &mut Io<'_>) {
        if let Err(data) = io.request(layer as u8, request, data, token) {
            let buffer = if let Data::Own(buffer) = data { Some(buffer) } else { None };
            self.done(Done { token, status: Status::INTERNAL_ERROR, buffer }, io);
        }
    }

    /// Takes a request of the set back.
    pub(crate) fn done(&mut self, done: Done, io: &mut Io<'_>) {
        let good = done.status.is_success();
        if done.status.same_code(Status::WRITES_LOST)
            && let Some(member) = self.member_of(done.token)
        {
            self.mirror.has_lost_writes(member);
        }
        match done.token >> 32 {
            LOG_READ => {
                let bytes = done.buffer.as_ref().filter(|_| good).map(|buffer| &*io.bytes(buffer));
                self.mirror.log_read(bytes);
            }
            LOG_WRITE => self.mirror.log_written(good, io.now_ns()),
            FLUSH => self.mirror.flushed(done.token as u32 as usize, good),
            COPY_READ if !good => {
                let source = Members::one(self.mirror.status().source);
                self.mirror.copied(source, io.now_ns());
            }
            COPY_READ => return self.copy_next(done.buffer, io),
            COPY_WRITE => {
                if let Some(member) = self.left.lowest() {
                    self.left = self.left.without(Members::one(member));
                    self.failed = self.failed.with(if good { Members::NONE } else { Members::one(member) });
                }
                return self.copy_next(done.buffer, io);
            }
            _ => return self.compare(good, done.buffer, io),
        }
        done.buffer.into_iter().for_each(|buffer| io.release(buffer));
    }

    /// Returns the member of a request of the set; none if the request went to the log.
    fn member_of(&self, token: u64) -> Option<usize> {
        match token >> 32 {
            FLUSH => Some(token as u32 as usize),
            COPY_READ => Some(self.mirror.status().source),
            COPY_WRITE | COMPARE => self.left.lowest(),
            _ => None,
        }
    }

    /// Writes the chunk to the next member, from the same buffer.
    fn copy_next(&mut self, buffer: Option<Buffer>, io: &mut Io<'_>) {
        match (self.left.lowest(), buffer) {
            (Some(member), Some(buffer)) => {
                let write = Request { operation: Operation::Write, ..self.chunk };
                self.send(member, write, Data::Own(buffer), COPY_WRITE << 32, io);
            }
            (_, buffer) => {
                buffer.into_iter().for_each(|buffer| io.release(buffer));
                self.mirror.copied(self.failed.with(self.left), io.now_ns());
            }
        }
    }

    fn compare_next(&mut self, io: &mut Io<'_>) {
        match self.left.lowest() {
            Some(member) => self.read(member, self.chunk, COMPARE, io),
            None => self.end_compare(Some(true), io),
        }
    }

    /// Compares the data that was read from a member.
    fn compare(&mut self, good: bool, buffer: Option<Buffer>, io: &mut Io<'_>) {
        self.left = self.left.without(self.left.lowest().map_or(Members::NONE, Members::one));
        let Some(buffer) = buffer else { return self.end_compare(None, io) };
        let Some(first) = self.first.as_ref().filter(|_| good) else {
            let first = self.first.replace(buffer);
            first.into_iter().for_each(|buffer| io.release(buffer));
            return if good { self.compare_next(io) } else { self.end_compare(None, io) };
        };
        let wanted = io.bytes(first).to_vec();
        let equal = wanted == io.bytes(&buffer);
        io.release(buffer);
        if equal { self.compare_next(io) } else { self.end_compare(Some(false), io) }
    }

    fn end_compare(&mut self, equal: Option<bool>, io: &mut Io<'_>) {
        self.first.take().into_iter().for_each(|buffer| io.release(buffer));
        self.mirror.compared(equal, io.now_ns());
    }
}

fn reading(offset: u64, length: u64) -> Request {
    Request { operation: Operation::Read, offset, length, ..Request::default() }
}
