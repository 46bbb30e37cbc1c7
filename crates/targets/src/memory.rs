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

/// Bytes prefetched ahead of each copy. The hardware prefetcher finds the following lines.
const PREFETCH: usize = 512;

/// Longest range that is zeroed at once, bytes: as many as the largest write moves.
const ZEROED_AT_ONCE: u64 = 1 << 20;

/// Bytes of one part of a longer range. One part is zeroed in each turn, which takes a millisecond or two
/// where the machine has huge pages. A host that discards a whole drive must not hold up the others.
const PART: u64 = 64 << 20;

/// A drive in memory.
#[derive(Debug)]
pub struct Memory {
    arena: Arena,
    /// Identity of the storage, which is new with each start.
    storage: Storage,
    /// Commands of this batch. [`flush`](Layer::flush) copies them together, so that the cache misses of all
    /// of them overlap.
    batch: Vec<Command>,
    /// Parked commands with more to zero than is done at once, the oldest first.
    zeroing: VecDeque<Zeroing>,
    /// Pages that writes have to wait for; none if writes fault their pages in themselves.
    pages: Option<Pages>,
    /// Set if commands that waited for pages continue in the next turn.
    resumes: bool,
}

/// A Write Zeroes or a Deallocate in progress.
#[derive(Debug)]
struct Zeroing {
    ticket: Ticket,
    /// Remaining range, bytes.
    offset: u64,
    length: u64,
}

impl Memory {
    /// Creates a drive of `size` bytes of zeros. The system provides pages when they are first written.
    ///
    /// # Errors
    /// The address space or its limit is used up.
    pub fn new(size: u64) -> io::Result<Self> {
        let length = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            arena: Arena::new(length)?,
            storage: Storage::named(&RandomState::new().hash_one("memory").to_le_bytes()),
            batch: Vec::with_capacity(64),
            zeroing: VecDeque::new(),
            pages: None,
            resumes: false,
        })
    }

    /// Makes writes wait for pages that the kernel populates through the reactor. A page fault in a write
    /// would take too long. `token_prefix` is the part of this layer's tokens above the 32 bits of a ticket.
    #[must_use]
    pub fn with_pages_from(mut self, io: Io, task: TaskId, token_prefix: u64) -> Self {
        self.pages = Some(Pages::new(io, task, token_prefix));
        self
    }

    /// Executes a command; returns none if that would take too long.
    fn run(&self, slot: &Slot) -> Option<Status> {
        let request = &slot.request;
        if self.needs_pages(request) {
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

    /// Returns whether a command has to wait for pages that it writes to.
    #[inline]
    fn needs_pages(&self, request: &Request) -> bool {
        let Some(pages) = &self.pages else { return false };
        let writes = match request.operation {
            Operation::Write => true,
            Operation::WriteZeroes | Operation::Deallocate => request.length <= ZEROED_AT_ONCE,
            Operation::Read | Operation::Flush => false,
        };
        writes && !pages.are_populated(request.offset, request.length)
    }

    /// Prefetches the beginning of the range of a read.
    #[inline]
    fn prefetch(&self, slot: &Slot) {
        let request = &slot.request;
        if request.operation == Operation::Read {
            self.arena.prefetch(request.offset, PREFETCH.min(request.length as usize));
        }
    }

    /// Parks a command that waits for pages, or that is executed in parts.
    #[cold]
    fn defer(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = &lane.slot(&command).request;
        let (needs_pages, Request { offset, length, .. }) = (self.needs_pages(request), *request);
        let ticket = lane.park(command);
        if let Some(pages) = self.pages.as_mut().filter(|_| needs_pages) {
            return pages.wait(&self.arena, ticket, offset, length);
        }
        self.zeroing.push_back(Zeroing { ticket, offset, length });
    }

    /// Executes commands whose pages are populated. A thousand of them may wait for the same page.
    fn resume_waiting(&mut self, lane: &mut Lane<'_>) {
        let mut moved = 0;
        while moved < TURN_BYTES {
            let Some(ticket) = self.pages.as_mut().and_then(|pages| pages.next_ready(&self.arena)) else {
                break;
            };
            let Some(command) = lane.unpark(ticket) else { continue };
            moved += lane.slot(&command).request.length;
            match self.run(lane.slot(&command)) {
                Some(status) => lane.finish(command, status),
                None => self.defer(command, lane),
            }
        }
        let waits = self.pages.as_ref().is_some_and(Pages::has_waiting);
        self.resumes = waits && moved >= TURN_BYTES;
    }

    /// Zeroes the next part of the oldest command; returns its status after the last part.
    fn zero_next(&mut self) -> Option<(Ticket, Status)> {
        let zeroing = self.zeroing.front_mut()?;
        let length = zeroing.length.min(PART);
        let zeroed = self.arena.zero(zeroing.offset, length as usize);
        if let Some(pages) = &mut self.pages {
            pages.released(zeroing.offset, length);
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
        // The first command of a batch is copied at once. A prefetch of its lines now would only delay that.
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
                None => self.defer(command, lane),
            }
        }
        self.batch = batch;
    }

    fn event(&mut self, _ticket: Ticket, _result: i32, lane: &mut Lane<'_>) {
        let Some(pages) = &mut self.pages else { return };
        pages.populated();
        self.resume_waiting(lane);
    }

    fn deadline_ns(&self) -> Option<u64> {
        // Remaining zeroing and copying continues in the next turn.
        (self.resumes || !self.zeroing.is_empty()).then_some(0)
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        if self.resumes {
            self.resume_waiting(lane);
        }
        let Some((ticket, status)) = self.zero_next() else { return };
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
            pages.released(size, u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests;
