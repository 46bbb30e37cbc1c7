//! Array with its memory, and the commands that it holds.

use super::requests::Directs;
use super::{COMPUTE, status_of};
use sluice_nvme::Status;
use sluice_redundancy::parity::{BATCH_MAX, CommandId, End, OpId, Parity};
use sluice_uif::{Buffer, Held, Io};
use std::collections::VecDeque;

/// Array at work.
#[derive(Debug)]
pub(super) struct Array {
    pub(super) parity: Parity,
    pub(super) is_open: bool,
    /// Whether the array cannot be opened, or waits for an operator.
    pub(super) is_refused: bool,
    /// Layer of the log: the number of members, a spare included.
    pub(super) log: usize,
    /// Memory of batches of the journal, and of the state.
    pub(super) batch: Option<Buffer>,
    pub(super) notes: Option<Buffer>,
    /// Memory of operations, by number.
    memory: Vec<Option<Buffer>>,
    /// Operations that wait for memory, and the bytes that each needs.
    hungry: VecDeque<(OpId, usize)>,
    /// Commands that are held, by number.
    held: Vec<Option<Held>>,
    /// Operations that wait for the data of their command.
    computes: VecDeque<(OpId, u32)>,
    pub(super) directs: Directs,
    /// Requests in flight.
    pub(super) in_flight: usize,
}

impl Array {
    /// Creates an array over so many members. Returns none if there is no memory.
    pub(super) fn new(parity: Parity, log: usize, io: &mut Io<'_>) -> Option<Self> {
        let batch = io.buffer(BATCH_MAX)?;
        let Some(notes) = io.buffer(sluice_redundancy::LOG_IO_MAX) else {
            io.release(batch);
            return None;
        };
        Some(Self {
            parity,
            is_open: false,
            is_refused: false,
            log,
            batch: Some(batch),
            notes: Some(notes),
            memory: Vec::new(),
            hungry: VecDeque::new(),
            held: Vec::new(),
            computes: VecDeque::new(),
            directs: Directs::default(),
            in_flight: 0,
        })
    }

    /// Holds a command of the host.
    pub(super) fn hold(&mut self, id: u32, held: Held) {
        let index = id as usize;
        if self.held.len() <= index {
            self.held.resize(index + 1, None);
        }
        self.held[index] = Some(held);
    }

    /// Returns the handle of a command.
    pub(super) fn held_of(&self, CommandId(id): CommandId) -> Option<Held> {
        self.held.get(id as usize).copied().flatten()
    }

    /// Finishes a command.
    pub(super) fn over(&mut self, CommandId(id): CommandId, end: End, io: &mut Io<'_>) {
        if let Some(held) = self.held.get_mut(id as usize).and_then(Option::take) {
            io.finish(held, status_of(end));
        }
    }

    /// Fails all commands, and gives all memory back. No request is in flight.
    pub(super) fn close(mut self, io: &mut Io<'_>) {
        for held in self.held.drain(..).flatten() {
            io.finish(held, Status::WRITE_FAULT);
        }
        let buffers = self.memory.drain(..).flatten().chain(self.batch).chain(self.notes);
        buffers.for_each(|buffer| io.release(buffer));
    }

    /// Notes an operation that needs memory.
    pub(super) fn starve(&mut self, op: OpId, length: usize) {
        self.hungry.push_back((op, length));
    }

    /// Gives memory to the operations that wait for it, in their order.
    pub(super) fn feed(&mut self, io: &mut Io<'_>) {
        while let Some((op, length)) = self.hungry.front().copied()
            && let Some(buffer) = io.buffer(length)
        {
            self.hungry.pop_front();
            let index = op as usize;
            if self.memory.len() <= index {
                self.memory.resize_with(index + 1, || None);
            }
            self.memory[index] = Some(buffer);
            self.parity.has_memory(op);
        }
    }

    /// Returns the memory of an operation.
    pub(super) fn memory_of(&self, op: OpId) -> Option<&Buffer> {
        self.memory.get(op as usize)?.as_ref()
    }

    /// Takes the memory of an operation back.
    pub(super) fn free(&mut self, op: OpId, io: &mut Io<'_>) {
        let buffer = self.memory.get_mut(op as usize).and_then(Option::take);
        buffer.into_iter().for_each(|buffer| io.release(buffer));
    }

    /// Has a command come back with its data, for an operation.
    pub(super) fn compute_later(&mut self, op: OpId, command: CommandId, io: &mut Io<'_>) {
        match self.held_of(command) {
            Some(held) => {
                self.computes.push_back((op, command.0));
                io.resume(held, COMPUTE, Status::SUCCESS);
            }
            None => self.compute(op, &mut [], io),
        }
    }

    /// Returns the next operation that waits for the data of a command.
    pub(super) fn take_compute(&mut self, id: u32) -> Option<OpId> {
        let index = self.computes.iter().position(|(_, command)| *command == id)?;
        self.computes.remove(index).map(|(op, _)| op)
    }

    /// Has an operation compute its cells.
    pub(super) fn compute(&mut self, op: OpId, host: &mut [u8], io: &mut Io<'_>) {
        if let Some(buffer) = self.memory.get(op as usize).and_then(Option::as_ref) {
            self.parity.compute(op, io.bytes(buffer), host);
        }
    }
}
