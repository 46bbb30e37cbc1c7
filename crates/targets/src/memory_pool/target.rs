//! The target of a drive in a pool of memory.

use super::EXTENT;
use sluice_command::{
    Aborted, Characteristics, Command, Controllers, Deallocated, Lane, Layer, Operation, Request, Slot,
    Storage, TURN_BYTES, Ticket,
};
use sluice_memory::{Arena, SegmentList, Space};
use sluice_nvme::Status;
use sluice_reactor::{FileSlot, Io, TaskId};
use sluice_shared::Port;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Number under which the notifier's events arrive; no ticket has it.
const NOTIFIED: Ticket = Ticket(u32::MAX - 1);

/// Work of a clearing in one turn, bytes. An extent that is not zeroed counts as [`VISIT`].
const CLEARED_AT_ONCE: u64 = 1 << 20;
const VISIT: u64 = 256;

/// Time without allocations after which a drive gives its credit back, ns.
const IDLE_NS: u64 = 1_000_000_000;

/// A user's end of a pool, on its way to a reactor.
#[derive(Debug)]
pub struct PoolPort {
    pub(super) port: Port,
    pub(super) arena: Arc<Arena>,
}

impl PoolPort {
    /// Makes the drive take no extents in advance, so that each write that allocates is a request to the pool.
    #[must_use]
    pub fn without_credit(self) -> Self {
        Self { port: self.port.without_credit(), ..self }
    }

    /// Creates a drive of `size` bytes of zeros, which may be more than the pool has. Called on the reactor.
    /// `token_prefix` is the part of this layer's tokens above the 32 bits of a ticket.
    ///
    /// # Errors
    /// The reactor has no place for the notifier.
    pub fn build(self, size: u64, task: TaskId, io: &Io, token_prefix: u64) -> io::Result<PooledMemory> {
        let extents = usize::try_from(size.div_ceil(EXTENT)).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut map = Vec::new();
        map.try_reserve_exact(extents).map_err(|_| io::ErrorKind::OutOfMemory)?;
        map.resize(extents, 0);
        let notifier = io.register_file(self.port.as_fd().try_clone_to_owned()?)?;
        io.watch(&notifier, task, token_prefix | u64::from(NOTIFIED.0));
        Ok(PooledMemory {
            arena: self.arena,
            port: self.port,
            map,
            size,
            batch: Vec::with_capacity(64),
            waiting: VecDeque::new(),
            requested: None,
            clearing: VecDeque::new(),
            leaving: Vec::new(),
            part: SegmentList::new(),
            storage: Storage::named(&RandomState::new().hash_one("memory-pool").to_le_bytes()),
            allocates: false,
            idle_at: None,
            _notifier: notifier,
        })
    }
}

/// A drive in a pool of memory.
#[derive(Debug)]
pub struct PooledMemory {
    arena: Arc<Arena>,
    port: Port,
    /// Extent of the pool, plus one, for each extent of the drive; zero without memory.
    map: Vec<u32>,
    size: u64,
    /// Commands of this batch.
    batch: Vec<Command>,
    /// Parked writes that wait for extents, the oldest first.
    waiting: VecDeque<Ticket>,
    /// The write for which extents were requested.
    requested: Option<Ticket>,
    /// Parked commands with more to clear than is done at once, the oldest first.
    clearing: VecDeque<Clearing>,
    /// Extents that were cut off, and that the port has no room for yet.
    leaving: Vec<u32>,
    /// Scratch, kept for its memory.
    part: SegmentList,
    /// Identity of the storage, which is new with each start.
    storage: Storage,
    /// A write has taken an extent in this turn.
    allocates: bool,
    /// Time at which the credit is given back.
    idle_at: Option<u64>,
    /// Watched, so that the pool wakes the drive.
    _notifier: FileSlot,
}

/// A Write Zeroes or a Deallocate in progress.
#[derive(Clone, Copy, Debug)]
struct Clearing {
    ticket: Ticket,
    /// Remaining range, bytes.
    offset: u64,
    end: u64,
    /// Whole extents are given back, and not zeroed.
    deallocates: bool,
}

/// Reason for which a command is not executed yet.
enum Unready {
    NeedsExtents,
    HasMore(Clearing),
}

/// Returns the parts of a range that lie in one extent each: the extent of the drive, the offset in the extent, and
/// the length.
fn parts(offset: u64, end: u64) -> impl Iterator<Item = (usize, u64, u64)> {
    let mut at = offset;
    std::iter::from_fn(move || {
        let (extent, inside) = (at / EXTENT, at % EXTENT);
        let length = (EXTENT - inside).min(end.checked_sub(at).filter(|left| *left > 0)?);
        at += length;
        Some((extent as usize, inside, length))
    })
}

impl PooledMemory {
    /// Returns the offset in the pool of an extent of the drive; none if the drive has no memory there.
    #[inline]
    fn place(&self, extent: usize) -> Option<u64> {
        self.map[extent].checked_sub(1).map(|number| u64::from(number) * EXTENT)
    }

    /// Returns the number of extents that a write has to take first.
    #[inline]
    fn missing(&self, request: &Request) -> usize {
        if request.operation != Operation::Write || request.length == 0 {
            return 0;
        }
        let (first, last) = (request.offset / EXTENT, (request.end() - 1) / EXTENT);
        self.map[first as usize..=last as usize].iter().filter(|place| **place == 0).count()
    }

    /// Executes a command.
    fn run(&mut self, slot: &Slot) -> Result<Status, Unready> {
        let request = &slot.request;
        if request.end() > self.size {
            // The drive was made smaller meanwhile.
            return Ok(Status::LBA_OUT_OF_RANGE);
        }
        let moved = match request.operation {
            Operation::Read => self.read(request, &slot.data),
            Operation::Write => {
                let missing = self.missing(request);
                if missing > 0 && (missing > self.port.credit() || !self.waiting.is_empty()) {
                    return Err(Unready::NeedsExtents);
                }
                self.write(request, &slot.data, missing)
            }
            Operation::WriteZeroes | Operation::Deallocate => return self.begin_clearing(request),
            Operation::Flush => Some(()),
        };
        Ok(moved.map_or(Status::INTERNAL_ERROR, |()| Status::SUCCESS))
    }

    fn read(&mut self, request: &Request, data: &SegmentList) -> Option<()> {
        let mut done = 0;
        for (extent, inside, length) in parts(request.offset, request.end()) {
            match self.place(extent) {
                None => data.fill(done, length as usize, 0),
                Some(place) if length == request.length => self.arena.read_into(place + inside, data).ok()?,
                Some(place) => {
                    data.slice(done, length as usize, &mut self.part).ok()?;
                    self.arena.read_into(place + inside, &self.part).ok()?;
                }
            }
            done += length as usize;
        }
        Some(())
    }

    /// Writes, and takes missing extents from the credit.
    fn write(&mut self, request: &Request, data: &SegmentList, missing: usize) -> Option<()> {
        let mut done = 0;
        for (extent, inside, length) in parts(request.offset, request.end()) {
            let place = match self.place(extent) {
                Some(place) => place,
                // Bit buckets leave bytes as they are.
                None => self.take_extent(extent, length == EXTENT && !data.has_bit_bucket())?,
            };
            if length == request.length {
                self.arena.write_from(place + inside, data).ok()?;
            } else {
                data.slice(done, length as usize, &mut self.part).ok()?;
                self.arena.write_from(place + inside, &self.part).ok()?;
            }
            done += length as usize;
        }
        if missing > 0 {
            self.allocates = true;
            self.port.refill();
        }
        Some(())
    }

    /// Takes an extent from the credit. The data of its last user is erased, unless a write covers all of it.
    fn take_extent(&mut self, extent: usize, is_covered: bool) -> Option<u64> {
        let unit = self.port.take()?;
        let place = unit * EXTENT;
        if !is_covered {
            self.arena.zero(place, EXTENT as usize).ok()?;
        }
        self.map[extent] = unit as u32 + 1;
        Some(place)
    }

    fn begin_clearing(&mut self, request: &Request) -> Result<Status, Unready> {
        let deallocates = request.operation == Operation::Deallocate || request.deallocate;
        let (offset, end) = (request.offset, request.end());
        let mut clearing = Clearing { ticket: NOTIFIED, offset, end, deallocates };
        if self.clear(&mut clearing) { Ok(Status::SUCCESS) } else { Err(Unready::HasMore(clearing)) }
    }

    /// Clears the next part of a range; returns whether that was the last.
    fn clear(&mut self, clearing: &mut Clearing) -> bool {
        let mut work = 0;
        // A drive that was made smaller has given the rest back.
        let end = clearing.end.min(self.size);
        for (extent, inside, length) in parts(clearing.offset, end) {
            if work >= CLEARED_AT_ONCE {
                return false;
            }
            work += VISIT;
            if let Some(place) = self.place(extent) {
                if clearing.deallocates && length == EXTENT {
                    if self.port.give_back(place / EXTENT).is_err() {
                        return false;
                    }
                    self.map[extent] = 0;
                } else if self.arena.zero(place + inside, length as usize).is_ok() {
                    work += length;
                }
            }
            clearing.offset += length;
        }
        true
    }

    /// Parks a command that is not executed yet.
    #[cold]
    fn defer(&mut self, command: Command, unready: Unready, lane: &mut Lane<'_>) {
        let ticket = lane.park(command);
        match unready {
            Unready::NeedsExtents => self.waiting.push_back(ticket),
            Unready::HasMore(clearing) => self.clearing.push_back(Clearing { ticket, ..clearing }),
        }
    }

    /// Executes waiting writes in order, as far as the credit goes. `refused`: the pool has no extents for the write
    /// that they were requested for. Returns how many writes were executed.
    fn run_waiting(&mut self, refused: bool, lane: &mut Lane<'_>) -> usize {
        let (mut ran, mut moved) = (0, 0);
        let refused = if refused { self.requested.take() } else { None };
        while let Some(&ticket) = self.waiting.front() {
            let Some(slot) = lane.parked(ticket) else {
                self.waiting.pop_front();
                continue;
            };
            let missing = if slot.request.end() > self.size { 0 } else { self.missing(&slot.request) };
            let is_refused = missing > self.port.credit() && refused == Some(ticket);
            if !is_refused && (missing > self.port.credit() || moved >= TURN_BYTES) {
                break;
            }
            self.waiting.pop_front();
            let Some(command) = lane.unpark(ticket) else { continue };
            moved += lane.slot(&command).request.length;
            ran += 1;
            let status =
                if is_refused { Status::CAPACITY_EXCEEDED } else { self.run_next(lane.slot(&command)) };
            lane.finish(command, status);
        }
        self.request_for_waiting(lane);
        ran
    }

    /// Executes a write whose extents are in the credit, ahead of the others that wait.
    fn run_next(&mut self, slot: &Slot) -> Status {
        let request = &slot.request;
        if request.end() > self.size {
            return Status::LBA_OUT_OF_RANGE;
        }
        let missing = self.missing(request);
        self.write(request, &slot.data, missing).map_or(Status::INTERNAL_ERROR, |()| Status::SUCCESS)
    }

    /// Requests extents for the first write that waits.
    fn request_for_waiting(&mut self, lane: &Lane<'_>) {
        let Some(&ticket) = self.waiting.front() else { return };
        let Some(slot) = lane.parked(ticket) else { return };
        if !self.port.is_requesting() && slot.request.end() <= self.size {
            self.port.request(self.missing(&slot.request));
            self.requested = self.port.is_requesting().then_some(ticket);
        }
    }

    /// Gives extents that were cut off to the port, as far as there is room.
    fn give_leaving_back(&mut self) {
        while let Some(extent) = self.leaving.pop() {
            if self.port.give_back(extent.into()).is_err() {
                return self.leaving.push(extent);
            }
        }
    }

    /// Ends waiting and clearing commands with this status.
    fn end_parked(&mut self, ends: impl Fn(Ticket, &Lane<'_>) -> bool, why: Status, lane: &mut Lane<'_>) {
        let mut keeps = |ticket: Ticket| {
            let command = if ends(ticket, lane) { lane.unpark(ticket) } else { None };
            let stays = command.is_none();
            command.into_iter().for_each(|command| lane.finish(command, why));
            stays
        };
        self.waiting.retain(|ticket| keeps(*ticket));
        self.clearing.retain(|clearing| keeps(clearing.ticket));
    }

    fn finish_turn(&mut self, now_ns: u64) {
        let allocates = std::mem::take(&mut self.allocates);
        if self.port.finish() || allocates {
            self.idle_at = Some(now_ns + IDLE_NS);
        }
    }
}

impl Layer for PooledMemory {
    fn name(&self) -> &'static str {
        "memory-pool"
    }

    fn characteristics(&self, _below: &[Characteristics]) -> Characteristics {
        Characteristics {
            deallocated: Deallocated::Zeroes,
            // An extent that was given back is erased when it is taken again, and not before.
            keeps_versions: true,
            storage: Storage { is_new: true, ..self.storage },
            ..Characteristics::target(self.size, 512)
        }
    }

    #[inline]
    fn submit(&mut self, command: Command, _lane: &mut Lane<'_>) {
        self.batch.push(command);
    }

    fn flush(&mut self, lane: &mut Lane<'_>) {
        let mut batch = std::mem::take(&mut self.batch);
        for command in batch.drain(..) {
            match self.run(lane.slot(&command)) {
                Ok(status) => lane.finish(command, status),
                Err(unready) => self.defer(command, unready, lane),
            }
        }
        self.batch = batch;
        self.request_for_waiting(lane);
        self.finish_turn(lane.now_ns());
    }

    fn event(&mut self, _ticket: Ticket, _result: i32, _lane: &mut Lane<'_>) {
        // The notifier: the turn that follows receives the answers.
    }

    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self, _controller: u8, _space: &Space, lane: &mut Lane<'_>) -> usize {
        if !self.port.has_news() && self.waiting.is_empty() && self.leaving.is_empty() {
            return 0;
        }
        let received = self.port.receive();
        let work = received.messages + self.run_waiting(received.refused, lane);
        self.give_leaving_back();
        self.finish_turn(lane.now_ns());
        work
    }

    fn deadline_ns(&self) -> Option<u64> {
        // Remaining clearing continues in the next turn.
        if self.clearing.is_empty() { self.idle_at } else { Some(0) }
    }

    fn expire(&mut self, lane: &mut Lane<'_>) {
        if self.idle_at.is_some_and(|at| at <= lane.now_ns()) {
            self.port.give_back_credit();
            self.port.finish();
            // A grant may be on its way, or the ring full.
            let has_more = self.port.is_requesting() || self.port.credit() > 0;
            self.idle_at = has_more.then(|| lane.now_ns() + IDLE_NS);
        }
        let Some(mut clearing) = self.clearing.pop_front() else { return };
        if !self.clear(&mut clearing) {
            self.clearing.push_front(clearing);
        } else if let Some(command) = lane.unpark(clearing.ticket) {
            lane.finish(command, Status::SUCCESS);
        }
        self.finish_turn(lane.now_ns());
    }

    fn end_waiting(&mut self, of: Controllers, why: Status, lane: &mut Lane<'_>) {
        self.end_parked(|ticket, lane| lane.is_of(of, ticket), why, lane);
    }

    fn abort(&mut self, which: Aborted, why: Status, lane: &mut Lane<'_>) {
        self.end_parked(|ticket, lane| lane.is_aborted(which, ticket), why, lane);
    }

    fn arm(&mut self) -> bool {
        let is_sending = !self.leaving.is_empty() || !self.waiting.is_empty() && !self.port.is_requesting();
        is_sending || self.port.arm()
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }

    fn resized(&mut self, size: u64) {
        let count = size.div_ceil(EXTENT) as usize;
        if count < self.map.len() {
            let cut = self.map.drain(count..).filter(|place| *place != 0).map(|place| place - 1);
            self.leaving.extend(cut);
        }
        if self.map.try_reserve_exact(count.saturating_sub(self.map.len())).is_err() {
            tracing::error!(
                "there is no memory for a namespace of {size} bytes in a pool: it keeps its size"
            );
            return;
        }
        self.map.resize(count, 0);
        // Bytes that are added again later are zeros.
        if size < self.size
            && !size.is_multiple_of(EXTENT)
            && let Some(place) = self.place(count - 1)
        {
            let inside = size % EXTENT;
            let zeroed = self.arena.zero(place + inside, (EXTENT - inside) as usize);
            debug_assert!(zeroed.is_ok(), "each extent is in the pool");
        }
        self.size = size;
    }
}
