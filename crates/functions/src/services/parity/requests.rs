//! Requests of the array to the layers below, and their results.

use super::array::Array;
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use sluice_redundancy::parity::{Access, CommandId, Fault, Step};
use sluice_uif::{Buffer, Data, Done, Io, Part};
use std::ops::Range;

/// Purposes of requests, in the highest byte of a token.
const LOG_READ: u64 = 1;
const LOG_WRITE: u64 = 2;
const BATCH_READ: u64 = 3;
const BATCH_WRITE: u64 = 4;
const RESTORE: u64 = 5;
/// Cell of an operation: its role is in the next byte, its operation in the low half.
const CELL: u64 = 6;
const DIRECT: u64 = 7;
const FLUSH: u64 = 8;

fn token(purpose: u64, role: usize, number: u32) -> u64 {
    purpose << 56 | (role as u64) << 48 | u64::from(number)
}

/// Reads into the data of commands, by number.
#[derive(Debug, Default)]
pub(super) struct Directs {
    list: Vec<(CommandId, usize, Range<u64>)>,
    free: Vec<u32>,
}

impl Directs {
    fn open(&mut self, command: CommandId, member: usize, range: Range<u64>) -> u32 {
        let Some(number) = self.free.pop() else {
            self.list.push((command, member, range));
            return (self.list.len() - 1) as u32;
        };
        self.list[number as usize] = (command, member, range);
        number
    }

    fn close(&mut self, number: u32) -> Option<(CommandId, usize, Range<u64>)> {
        let direct = self.list.get(number as usize).cloned()?;
        self.free.push(number);
        Some(direct)
    }
}

/// Converts the status of a layer.
pub(super) fn outcome(status: Status) -> Result<(), Fault> {
    match () {
        () if status.is_success() => Ok(()),
        () if status.is_of_host() => Err(Fault::GivenUp),
        () if status.same_code(Status::WRITES_LOST) => Err(Fault::LostWrites),
        () if status.same_code(Status::UNRECOVERED_READ_ERROR) => Err(Fault::Media),
        () => Err(Fault::Device),
    }
}

fn request(operation: Operation, offset: u64, length: u64, fua: bool) -> Request {
    Request { operation, fua, deallocate: false, offset, length }
}

/// Returns a part of a buffer as data.
fn part(buffer: Option<&Buffer>, from: usize, length: u64) -> Data {
    let part = buffer.and_then(|buffer| Part::of(buffer, from, length as usize));
    part.map_or(Data::None, Data::Part)
}

impl Array {
    /// Begins a step of the array.
    pub(super) fn begin(&mut self, step: Step, io: &mut Io<'_>) {
        match step {
            Step::ReadLog { offset, length } => self.access_log(Operation::Read, offset, length, io),
            Step::WriteLog { offset } => {
                let bytes = self.parity.log_bytes();
                if let Some(buffer) = &self.notes {
                    io.bytes(buffer)[..bytes.len()].copy_from_slice(bytes);
                }
                self.access_log(Operation::Write, offset, bytes.len(), io);
            }
            Step::ReadBatch { offset, length } => {
                let data = part(self.batch.as_ref(), 0, length as u64);
                let read = request(Operation::Read, offset, length as u64, false);
                self.send(self.log, read, data, token(BATCH_READ, 0, length as u32), io);
            }
            Step::WriteBatch { offset, length } => self.write_batch(offset, length, io),
            Step::Restore { member, offset, length, at } => {
                let operation = if at.is_some() { Operation::Write } else { Operation::WriteZeroes };
                let data = at.map_or(Data::None, |at| part(self.batch.as_ref(), at, length));
                let write = request(operation, offset, length, false);
                self.send(member, write, data, token(RESTORE, 0, member as u32), io);
            }
            Step::Memory { op, length } => self.starve(op, length),
            Step::Cell { op, role, member, offset, length, at, access } => {
                let data = part(self.memory_of(op), at, length);
                let access = match access {
                    Access::Read => request(Operation::Read, offset, length, false),
                    Access::Write { fua } => request(Operation::Write, offset, length, fua),
                };
                self.send(member, access, data, token(CELL, role, op), io);
            }
            Step::Zero { op, role, member, offset, length, fua } => {
                let write = request(Operation::WriteZeroes, offset, length, fua);
                self.send(member, write, Data::None, token(CELL, role, op), io);
            }
            Step::Free { op } => self.free(op, io),
            Step::Direct { command, member, offset, length, at } => {
                let data = self.held_of(command).map_or(Data::None, |held| Data::Of(held, at as usize));
                let number = self.directs.open(command, member, at..at + length);
                let read = request(Operation::Read, offset, length, false);
                self.send(member, read, data, token(DIRECT, 0, number), io);
            }
            Step::Flush { member } => {
                let flush = request(Operation::Flush, 0, 0, false);
                self.send(member, flush, Data::None, token(FLUSH, 0, member as u32), io);
            }
            Step::Ready(_) | Step::Over { .. } | Step::Halt(_) | Step::Compute { .. } => {}
        }
    }

    fn access_log(&mut self, operation: Operation, offset: u64, length: usize, io: &mut Io<'_>) {
        let writes = operation == Operation::Write;
        let data = part(self.notes.as_ref(), 0, length as u64);
        let purpose = if writes { LOG_WRITE } else { LOG_READ };
        let access = request(operation, offset, length as u64, writes);
        self.send(self.log, access, data, token(purpose, 0, length as u32), io);
    }

    /// Writes a batch of the journal, which is put together from the memory of operations.
    fn write_batch(&mut self, offset: u64, length: usize, io: &mut Io<'_>) {
        let head = self.parity.batch_head();
        if let Some(batch) = &self.batch {
            io.bytes(batch)[..head.len()].copy_from_slice(head);
            for it in self.parity.batch_parts() {
                let from = self.memory_of(it.op).and_then(|from| Part::of(from, it.from, it.length));
                let to = Part::of(batch, it.to, it.length);
                from.zip(to).into_iter().for_each(|(from, to)| io.copy(from, to));
            }
        }
        let data = part(self.batch.as_ref(), 0, length as u64);
        let write = request(Operation::Write, offset, length as u64, true);
        self.send(self.log, write, data, token(BATCH_WRITE, 0, 0), io);
    }

    /// Sends a request to a layer. A request that cannot be sent ends at once with an error.
    fn send(&mut self, layer: usize, request: Request, data: Data, token: u64, io: &mut Io<'_>) {
        self.in_flight += 1;
        if io.request(layer as u8, request, data, token).is_err() {
            self.done(&Done { token, status: Status::INTERNAL_ERROR, buffer: None }, io);
        }
    }

    /// Takes a request of the array back.
    pub(super) fn done(&mut self, done: &Done, io: &mut Io<'_>) {
        self.in_flight -= 1;
        let outcome = outcome(done.status);
        let number = done.token as u32;
        let role = (done.token >> 48 & 0xff) as usize;
        match done.token >> 56 {
            LOG_READ => {
                let buffer = self.notes.as_ref().filter(|_| outcome.is_ok());
                let bytes = buffer.and_then(|buffer| io.bytes(buffer).get(..number as usize));
                self.parity.log_read(bytes);
            }
            LOG_WRITE => self.parity.log_written(outcome.is_ok(), io.now_ns()),
            BATCH_READ => {
                let buffer = self.batch.as_ref().filter(|_| outcome.is_ok());
                let bytes = buffer.and_then(|buffer| io.bytes(buffer).get(..number as usize));
                self.parity.batch_read(bytes);
            }
            BATCH_WRITE => self.parity.batch_written(outcome.is_ok()),
            RESTORE => self.parity.restored(number as usize, outcome),
            CELL => self.parity.cell_done(number, role, outcome),
            DIRECT => {
                if let Some((command, member, range)) = self.directs.close(number) {
                    self.parity.direct_done(command, member, range, outcome);
                }
            }
            _ => self.parity.flushed(number as usize, outcome),
        }
    }
}
