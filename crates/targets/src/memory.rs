//! The memory target: a drive in the daemon's own memory, gone when the daemon is.

use crate::pages::Pages;
use sluice_command::{
    Aborted, Characteristics, Command, Deallocated, Lane, Layer, Operation, Request, Slot, Storage,
    TURN_BYTES, Ticket,
};
use sluice_memory::Arena;
use sluice_nvme::Status;
use sluice_reactor::{Io, TaskId};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;

/// Bytes asked for ahead of each copy. What follows the hardware finds by itself.
const PREFETCH: usize = 512;

/// Bytes made zeros as soon as they are asked for: as many as the largest write moves.
const ZEROED_AT_ONCE: u64 = 1 << 20;

/// Bytes of the parts in which more is made zeros, one in each turn: a millisecond or two where the
/// machine has huge pages. A host that discards a whole drive must not hold up the others.
const PART: u64 = 64 << 20;

/// A drive in memory.
#[derive(Debug)]
pub struct Memory {
    arena: Arena,
    /// Another with each start.
    storage: Storage,
    /// Commands of this batch. They are copied together in [`flush`](Layer::flush), so that the cache
    /// misses of all of them are under way at once.
    batch: Vec<Command>,
    /// Parked commands with more to zero than is done in one go, the oldest first.
    zeroing: VecDeque<Zeroing>,
    /// None if writes take pages themselves.
    pages: Option<Pages>,
    /// Commands that waited for pages go on with the next turn.
    goes_on: bool,
}

/// A Write Zeroes or a Deallocate on its way.
#[derive(Debug)]
struct Zeroing {
    ticket: Ticket,
    /// What is left of its range, bytes.
    offset: u64,
    length: u64,
}

impl Memory {
    /// `size` bytes of zeros; pages are taken from the system when they are first written.
    ///
    /// # Errors
    /// The address space or the limit on it is used up.
    pub fn new(size: u64) -> io::Result<Self> {
        let length = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            arena: Arena::new(length)?,
            storage: Storage::named(&RandomState::new().hash_one("memory").to_le_bytes()),
            batch: Vec::with_capacity(64),
            zeroing: VecDeque::new(),
            pages: None,
            goes_on: false,
        })
    }

    /// Writes take no pages from the system, which takes long: the reactor's kernel does, and they wait. `token_prefix` is
    /// what the tokens of this layer have beside the 32 bits of a ticket.
    #[must_use]
    pub fn with_pages_from(mut self, io: Io, task: TaskId, token_prefix: u64) -> Self {
        self.pages = Some(Pages::new(io, task, token_prefix));
        self
    }

    /// Carries out a command; none if that would take too long.
    fn run(&self, slot: &Slot) -> Option<Status> {
        let request = &slot.request;
        if self.wants_pages(request) {
            return None;
        }
        let moved = match request.operation {
            Operation::Read => self.arena.read_into(request.offset, &slot.data),
            Operation::Write => self.arena.write_from(request.offset, &slot.data),
            Operation::WriteZeroes | Operation::Deallocate => {
                if request.length > ZEROED_AT_ONCE {
                    return None;
                }
                self.arena.zero(request.offset, request.length as usize)
            }
            Operation::Flush => Ok(()),
        };
        Some(moved.map_or(Status::LBA_OUT_OF_RANGE, |()| Status::SUCCESS))
    }

    /// True if a command has to wait for pages that it writes to.
    #[inline]
    fn wants_pages(&self, request: &Request) -> bool {
        let Some(pages) = &self.pages else { return false };
        let writes = match request.operation {
            Operation::Write => true,
            Operation::WriteZeroes | Operation::Deallocate => request.length <= ZEROED_AT_ONCE,
            Operation::Read | Operation::Flush => false,
        };
        writes && !pages.are_taken(request.offset, request.length)
    }

    /// Asks for the beginning of what a read moves.
    #[inline]
    fn prefetch(&self, slot: &Slot) {
        let request = &slot.request;
        if request.operation == Operation::Read {
            self.arena.prefetch(request.offset, PREFETCH.min(request.length as usize));
        }
    }

    /// Puts a command down: it waits for pages, or is carried out in parts.
    #[cold]
    fn put_off(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = &lane.slot(&command).request;
        let (wants_pages, Request { offset, length, .. }) = (self.wants_pages(request), *request);
        let ticket = lane.park(command);
        if let Some(pages) = self.pages.as_mut().filter(|_| wants_pages) {
            return pages.wait(&self.arena, ticket, offset, length);
        }
        self.zeroing.push_back(Zeroing { ticket, offset, length });
    }

    /// Carries out commands whose pages have come: of a page there may be a thousand.
    fn go_on(&mut self, lane: &mut Lane<'_>) {
        let mut moved = 0;
        while moved < TURN_BYTES {
            let Some(ticket) = self.pages.as_mut().and_then(|pages| pages.next_ready(&self.arena)) else {
                break;
            };
            let Some(command) = lane.unpark(ticket) else { continue };
            moved += lane.slot(&command).request.length;
            match self.run(lane.slot(&command)) {
                Some(status) => lane.finish(command, status),
                None => self.put_off(command, lane),
            }
        }
        let waits = self.pages.as_ref().is_some_and(Pages::has_waiting);
        self.goes_on = waits && moved >= TURN_BYTES;
    }

    /// The next part of the oldest command that is on its way; its status if that was the last.
    fn zero_on(&mut self) -> Option<(Ticket, Status)> {
        let zeroing = self.zeroing.front_mut()?;
        let length = zeroing.length.min(PART);
        let zeroed = self.arena.zero(zeroing.offset, length as usize);
        if let Some(pages) = &mut self.pages {
            pages.given_back(zeroing.offset, length);
        }
        zeroing.offset += length;
        zeroing.length -= length;
        let status = match zeroed {
            Ok(()) if zeroing.length > 0 => return None,
            Ok(()) => Status::SUCCESS,
            // The drive was made smaller meanwhile.
            Err(_) => Status::LBA_OUT_OF_RANGE,
        };
        self.zeroing.pop_front().map(|done| (done.ticket, status))
    }
}

impl Layer for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics {
            deallocated: Deallocated::Zeroes,
            storage: Storage { is_new: true, ..self.storage },
            ..Characteristics::target(self.arena.len() as u64, 512)
        }
    }

    #[inline]
    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        // The first of a batch is copied at once, and asking for its lines now would only stand in the
        // way of that.
        if !self.batch.is_empty() {
            self.prefetch(lane.slot(&command));
        }
        self.batch.push(command);
    }

    fn flush(&mut self, lane: &mut Lane<'_>) {
        let mut batch = std::mem::take(&mut self.batch);
        for command in batch.drain(..) {
            match self.run(lane.slot(&command)) {
                Some(status) => lane.finish(command, status),
                None => self.put_off(command, lane),
            }
        }
        self.batch = batch;
    }

    fn event(&mut self, _ticket: Ticket, _result: i32, lane: &mut Lane<'_>) {
        let Some(pages) = &mut self.pages else { return };
        pages.came();
        self.go_on(lane);
    }

    fn deadline_ns(&self) -> Option<u64> {
        // What is left to zero, or to move, goes on with the next turn.
        (self.goes_on || !self.zeroing.is_empty()).then_some(0)
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        if self.goes_on {
            self.go_on(lane);
        }
        let Some((ticket, status)) = self.zero_on() else { return };
        if let Some(command) = lane.unpark(ticket) {
            lane.finish(command, status);
        }
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.zeroing.retain(|it| {
            let command = if lane.is_aborted(which, it.ticket) { lane.unpark(it.ticket) } else { None };
            let stays = command.is_none();
            command.into_iter().for_each(|command| lane.finish(command, why));
            stays
        });
    }

    fn resized(&mut self, size: u64) {
        if let Err(error) = self.arena.resize(size as usize) {
            tracing::error!(%error, size, "memory target keeps its old size");
        }
        if let Some(pages) = &mut self.pages {
            pages.given_back(size, u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests;
