//! Cache: memory in front of a slower layer. Writes go through.
//!
//! Data passes through memory of the daemon on its way to the cache, and never from the memory of a host into the cache
//! after the device had it: a host could have changed it. A page with several commands under way, one of them a write, is not
//! filled, since the device may execute them in any order.

mod flights;
mod index;
mod options;
mod streams;

pub use options::CacheOptions;

use crate::counter::Counter;
use flights::{FLIGHTS_MAX, Flight, Flights, PAGES_MAX};
use index::{Index, Place};
use sluice_command::{Characteristics, Command, Frame, Lane, Layer, Operation, Request};
use sluice_memory::SharedRegion;
use sluice_nvme::Status;
use std::cell::Cell;
use std::io;
use std::sync::Arc;
pub(crate) use streams::Streams;

/// Bytes of a page of the cache.
const PAGE: u64 = 4096;

/// Most pages of a change that are dropped one by one; a longer one drops all.
const DROPPED_MAX: u64 = 257;

/// Bytes that a sequence of reads has before it bypasses.
const SEQUENTIAL: u64 = 256 << 10;

/// Places in memory for pages that are being moved.
const MOVING: usize = FLIGHTS_MAX * PAGES_MAX;

/// Stages of the frames of commands.
mod stage {
    /// A child has read pages into the cache's memory.
    pub(super) const READ: u8 = 0;
    /// A child has written pages from there.
    pub(super) const WRITE: u8 = 1;
    /// The layer below has changed pages: `data` has the first one, and their number.
    pub(super) const CHANGE: u8 = 2;
    /// The layer below has changed more pages than are noted.
    pub(super) const LONG_CHANGE: u8 = 3;
    /// The layer below was flushed.
    pub(super) const FLUSH: u8 = 4;
}

/// Counters of a [`Cache`], for any thread.
#[derive(Debug, Default)]
pub struct CacheCounters {
    hits: Counter,
    misses: Counter,
    bypassed: Counter,
    writes: Counter,
}

impl CacheCounters {
    /// Returns the reads that were served from the cache, that were not, and that bypassed the cache.
    #[must_use]
    pub fn reads(&self) -> [u64; 3] {
        [&self.hits, &self.misses, &self.bypassed].map(Counter::get)
    }

    /// Returns the writes whose data is in the cache, too.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes.get()
    }
}

/// Layer that serves reads from memory.
#[derive(Debug)]
pub struct Cache {
    /// Memory of the pages; none in a cache that lets everything pass.
    memory: Option<SharedRegion>,
    index: Index,
    flights: Flights,
    streams: Streams,
    /// Changes of many pages under way. Nothing fills the cache meanwhile.
    long_changes: usize,
    /// Bytes of the layer below, as last reported, and whether they have changed.
    size: Cell<u64>,
    is_resized: Cell<bool>,
    counters: Arc<CacheCounters>,
}

/// Pages that a request touches.
#[derive(Clone, Copy, Debug)]
struct Pages {
    first: u64,
    count: u64,
}

impl Pages {
    fn of(request: &Request) -> Self {
        let first = request.offset / PAGE;
        let count = request.end().div_ceil(PAGE).saturating_sub(first);
        Self { first, count }
    }

    fn each(self) -> impl Iterator<Item = u64> {
        self.first..self.first + self.count
    }
}

impl Cache {
    /// Creates a cache of this many bytes, which is empty.
    ///
    /// # Errors
    /// There is no memory or descriptor for it.
    pub fn new(size: u64) -> io::Result<Self> {
        let pages = usize::try_from(size / PAGE).map_err(|_| io::ErrorKind::OutOfMemory)?.max(1);
        let bytes = (pages + MOVING).checked_mul(PAGE as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self::over(Some(SharedRegion::new("cache", bytes)?), Index::new(pages, MOVING)))
    }

    /// Creates a cache that lets everything pass.
    pub(crate) fn without_memory() -> Self {
        Self::over(None, Index::new(0, 0))
    }

    /// Returns the counters, for any thread.
    #[must_use]
    pub fn counters(&self) -> Arc<CacheCounters> {
        Arc::clone(&self.counters)
    }

    fn over(memory: Option<SharedRegion>, index: Index) -> Self {
        Self {
            memory,
            index,
            flights: Flights::new(),
            streams: Streams::new(SEQUENTIAL),
            long_changes: 0,
            size: Cell::new(0),
            is_resized: Cell::new(false),
            counters: Arc::default(),
        }
    }

    fn read(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        let pages = Pages::of(&request);
        // Force Unit Access is a read of the medium.
        if request.fua || pages.count == 0 || pages.count > PAGES_MAX as u64 {
            self.counters.bypassed.increment();
            self.streams.note(request.offset, request.length);
            return lane.forward(command);
        }
        if pages.each().all(|page| self.index.has(page)) {
            self.counters.hits.increment();
            self.serve(&command, &request, pages, lane);
            return lane.finish(command, Status::SUCCESS);
        }
        let is_sequential = self.streams.note(request.offset, request.length);
        let is_whole = (pages.first + pages.count) * PAGE <= self.size.get();
        if is_sequential || !is_whole || self.long_changes > 0 {
            self.counters.bypassed.increment();
            return lane.forward(command);
        }
        let Some((number, flight)) = self.begin(pages) else {
            self.counters.bypassed.increment();
            return lane.forward(command);
        };
        self.counters.misses.increment();
        pages.each().for_each(|page| self.flights.begin_read(page));
        let whole = Request { offset: pages.first * PAGE, length: pages.count * PAGE, ..request };
        self.fork(command, stage::READ, number, &flight, whole, lane);
    }

    /// Copies a request's data out of the cache.
    fn serve(&mut self, command: &Command, request: &Request, pages: Pages, lane: &Lane<'_>) {
        for page in pages.each() {
            if let Some(place) = self.index.read(page) {
                self.copy_out(command, request, page, place, lane);
            }
        }
    }

    /// Copies the part of a page that a request reads.
    fn copy_out(&self, command: &Command, request: &Request, page: u64, place: Place, lane: &Lane<'_>) {
        let from = request.offset.max(page * PAGE);
        let to = request.end().min((page + 1) * PAGE);
        let at = u64::from(place) * PAGE + (from - page * PAGE);
        let data = &lane.slot(command).data;
        let Some(memory) = &self.memory else { return };
        memory.scatter(at as usize, data, (from - request.offset) as usize, (to - from) as usize);
    }

    fn write(&mut self, command: Command, lane: &mut Lane<'_>) {
        let request = lane.slot(&command).request;
        let pages = Pages::of(&request);
        let is_whole = request.offset.is_multiple_of(PAGE) && request.length.is_multiple_of(PAGE);
        if !is_whole || pages.count > PAGES_MAX as u64 || self.long_changes > 0 {
            return self.change(command, pages, lane);
        }
        let Some((number, flight)) = self.begin(pages) else { return self.change(command, pages, lane) };
        self.counters.writes.increment();
        for (page, (place, from)) in
            pages.each().zip(flight.places.into_iter().zip((0..).step_by(PAGE as usize)))
        {
            self.index.remove(page);
            self.flights.begin_write(page, true);
            let data = &lane.slot(&command).data;
            if let Some(memory) = &self.memory {
                memory.gather(place as usize * PAGE as usize, data, from, PAGE as usize);
            }
        }
        self.fork(command, stage::WRITE, number, &flight, request, lane);
    }

    /// Forwards a command that changes pages below, and drops these pages.
    fn change(&mut self, command: Command, pages: Pages, lane: &mut Lane<'_>) {
        if pages.count > DROPPED_MAX {
            self.index.clear();
            self.long_changes += 1;
            return lane.forward_with(0, command, stage::LONG_CHANGE, [0; 2]);
        }
        for page in pages.each() {
            self.index.remove(page);
            self.flights.begin_write(page, false);
        }
        lane.forward_with(0, command, stage::CHANGE, [pages.first, pages.count]);
    }

    /// Takes places for pages; none if there are too few.
    fn begin(&mut self, pages: Pages) -> Option<(u32, Flight)> {
        if self.flights.is_full() {
            return None;
        }
        let (first, count) = (pages.first, pages.count as usize);
        let mut flight = Flight { first, count, round: self.index.round(), ..Flight::default() };
        for taken in 0..count {
            let Some(place) = self.index.take() else {
                flight.places[..taken].iter().for_each(|place| self.index.give_back(*place));
                return None;
            };
            flight.places[taken] = place;
        }
        self.flights.add(flight).map(|number| (number, flight))
    }

    fn fork(
        &self,
        command: Command,
        stage: u8,
        number: u32,
        flight: &Flight,
        request: Request,
        lane: &mut Lane<'_>,
    ) {
        lane.fork(command, 1, stage, [number.into(), 0], |_, _, child| {
            child.request = request;
            for (place, memory) in flight.places[..flight.count].iter().zip(self.memory.iter().cycle()) {
                let segment = memory.segment(*place as usize * PAGE as usize, PAGE as u32);
                child.data.push(segment).expect("a command has room for its pages");
            }
            0
        });
    }

    /// Ends a command that fills the cache.
    fn land(&mut self, command: Command, is_write: bool, number: u32, lane: &mut Lane<'_>) {
        let Flight { first, count, places, round } = self.flights.take(number);
        let slot = lane.slot(&command);
        let (status, request) = (slot.status, slot.request);
        let is_valid = status.is_success() && round == self.index.round() && self.long_changes == 0;
        for (page, place) in (first..).zip(places).take(count) {
            if !is_write && status.is_success() {
                self.copy_out(&command, &request, page, place, lane);
            }
            match self.flights.end(page, is_write) && is_valid {
                true => self.index.insert(page, place),
                false => self.index.give_back(place),
            }
        }
        lane.finish(command, status);
    }
}

impl Layer for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn characteristics(&self, below: &[Characteristics]) -> Characteristics {
        let below = below[0];
        self.is_resized.set(self.is_resized.get() || self.size.get() != below.size);
        self.size.set(below.size);
        Characteristics { fan_out: below.fan_out + 1, ..below.over() }
    }

    fn submit(&mut self, command: Command, lane: &mut Lane<'_>) {
        if self.is_resized.take() {
            // Blocks that were cut off may come back with other contents.
            self.index.clear();
        }
        let request = &lane.slot(&command).request;
        let pages = Pages::of(request);
        match request.operation {
            Operation::Read => self.read(command, lane),
            Operation::Write => self.write(command, lane),
            Operation::WriteZeroes | Operation::Deallocate => self.change(command, pages, lane),
            Operation::Flush => lane.forward_with(0, command, stage::FLUSH, [0; 2]),
        }
    }

    fn resume(&mut self, command: Command, frame: Frame, lane: &mut Lane<'_>) {
        let [first, count] = frame.data;
        match frame.stage {
            stage::READ | stage::WRITE => {
                return self.land(command, frame.stage == stage::WRITE, first as u32, lane);
            }
            stage::CHANGE => {
                for page in (Pages { first, count }).each() {
                    self.flights.end(page, true);
                }
            }
            // Writes may be lost below. Reads must come from there.
            stage::FLUSH if !lane.slot(&command).status.is_success() => self.index.clear(),
            stage::LONG_CHANGE => self.long_changes -= 1,
            _ => {}
        }
        let status = lane.slot(&command).status;
        lane.finish(command, status);
    }
}

#[cfg(test)]
mod tests;
