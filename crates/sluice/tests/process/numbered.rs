//! A host's load of numbered writes, and the writes that each place of its namespace may hold after a loss of power.
//!
//! Each write has a number. A place has at most one command in flight, and several places have one at a time. The
//! [model](crate::places) of each place has the writes that a read may return.

use crate::common::LIMIT;
use crate::places::{Outcome, Place, Version};
use sluice_host::{Controller, Deadline, DmaBuffer, QueueLayout, QueuePair, entry};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Number of places that are written, each of [`BYTES`], one every [`DISTANCE`] blocks of 512 bytes.
pub(crate) const PLACES: usize = 96;
const BYTES: usize = 4096;
const DISTANCE: u64 = 80;

/// Highest number of commands in flight.
const DEPTH: usize = 16;

/// Random numbers of a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    pub(crate) fn wait(&mut self, most_ms: u64) {
        std::thread::sleep(Duration::from_millis(self.below(most_ms)));
    }
}

/// Counter of the cuts of the machine that holds the data: odd while a cut is under way.
pub(crate) type Epoch = Arc<AtomicU32>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write { fua: bool },
    Zeroes { fua: bool, deallocate: bool },
    Read,
    Flush,
}

/// A command in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    cid: u16,
    kind: Kind,
    place: usize,
    number: u32,
    epoch: u32,
}

/// Number of commands that were answered with an error.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Failures {
    pub(crate) flushes: u32,
    pub(crate) others: u32,
}

/// The queue of a host that is connected, and the memory for its data.
struct Connection {
    queue: QueuePair,
    memory: DmaBuffer,
    flights: [Option<Flight>; DEPTH],
}

/// The load.
pub(crate) struct Numbered {
    places: Vec<Place>,
    connection: Option<Connection>,
    dice: Dice,
    epoch: Epoch,
    /// Existence of another copy with each acknowledged write. Reads return the last one then, whatever
    /// happens to a machine.
    has_copy: bool,
    /// Last write of each place that was acknowledged before the Flush in flight.
    flushing: Option<Vec<u32>>,
    pub(crate) failures: Failures,
    pub(crate) acknowledged: u64,
    /// Number of acknowledged writes that [`Self::settle`] did not find.
    pub(crate) lost: u64,
    /// Whether the host has switched the volatile write cache off: each write is durable when it is acknowledged.
    pub(crate) is_through: bool,
    /// Per cent of the commands that are Write Zeroes.
    pub(crate) zeroes: u64,
    /// Units of 512 bytes between the beginnings of two places, and bytes of a block of the drive.
    pub(crate) distance: u64,
    pub(crate) block: u64,
    /// Place of the last Write Zeroes: most begin where the one before ends.
    zeroed: usize,
}

/// Returns the content of a place after the write of that number.
fn content(place: usize, number: u32) -> Vec<u8> {
    let word = (place as u64) << 48 | u64::from(number) << 12;
    (0..BYTES as u64 / 8).flat_map(|index| (word | index).to_le_bytes()).collect()
}

/// Returns the number of the write that left this content in the place. Zeros are the content before the
/// first.
fn number_in(place: usize, data: &[u8]) -> Result<u32, String> {
    if data.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let word = u64::from_le_bytes(data[..8].try_into().expect("eight bytes"));
    let number = (word >> 12) as u32;
    match data == content(place, number) {
        true => Ok(number),
        false => Err(format!("place {place} holds no write of its own: it begins with {word:#x}")),
    }
}

impl Numbered {
    pub(crate) fn new(seed: u64, epoch: Epoch, has_copy: bool) -> Self {
        Self {
            places: (0..PLACES).map(|_| Place::new()).collect(),
            connection: None,
            dice: Dice::new(seed),
            epoch,
            has_copy,
            flushing: None,
            failures: Failures::default(),
            acknowledged: 0,
            lost: 0,
            is_through: false,
            zeroes: 0,
            distance: DISTANCE,
            block: 512,
            zeroed: 0,
        }
    }

    pub(crate) fn connect(&mut self, host: &mut Controller) {
        let queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
        let memory = host.memory().allocate(DEPTH * BYTES).expect("memory");
        self.connection = Some(Connection { queue, memory, flights: [None; DEPTH] });
    }

    /// Takes completions, and fills the queue if `more`. Returns false if the daemon is gone.
    pub(crate) fn turn(&mut self, more: bool) -> bool {
        let done = self.reap();
        if more {
            self.submit();
        }
        if done == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.connection.as_mut().is_some_and(|connection| connection.queue.ring().is_ok())
    }

    /// Waits for all commands in flight.
    pub(crate) fn drain(&mut self) {
        let deadline = Deadline::after(LIMIT, "the commands in flight");
        while self.in_flight() > 0 {
            assert!(self.turn(false), "the daemon is gone");
            deadline.check().expect("commands end");
        }
    }

    fn in_flight(&self) -> u32 {
        self.connection.as_ref().map_or(0, |connection| connection.queue.in_flight())
    }

    /// Ends the connection to a daemon that is gone. Takes the completions that it has posted; commands that
    /// have none are unknown.
    pub(crate) fn disconnect(&mut self) {
        self.reap();
        let connection = self.connection.take().expect("it was connected");
        for flight in connection.flights.into_iter().flatten() {
            self.finish(flight, None);
        }
    }

    fn submit(&mut self) {
        for slot in 0..DEPTH {
            if self.connection.as_ref().is_some_and(|connection| connection.flights[slot].is_none()) {
                self.start(slot);
            }
        }
    }

    /// Submits a random command in a free slot.
    fn start(&mut self, slot: usize) {
        let mut place = self.dice.below(PLACES as u64) as usize;
        let kind = match self.dice.below(100) {
            _ if self.zeroes > 0 && self.dice.below(100) < self.zeroes => {
                if self.dice.below(4) > 0 {
                    place = (self.zeroed + 1) % PLACES;
                }
                self.zeroed = place;
                Kind::Zeroes { fua: self.dice.below(2) == 0, deallocate: self.dice.below(2) == 0 }
            }
            0..3 if self.flushing.is_none() => Kind::Flush,
            0..60 => Kind::Write { fua: false },
            60..70 => Kind::Write { fua: true },
            _ => Kind::Read,
        };
        if kind == Kind::Flush || !self.places[place].is_busy {
            self.send(slot, kind, place);
        }
    }

    fn send(&mut self, slot: usize, kind: Kind, place: usize) {
        let slba = place as u64 * self.distance * 512 / self.block;
        let blocks = (BYTES as u64 / self.block) as u32;
        let command = match kind {
            Kind::Flush => {
                let last = |place: &Place| place.acknowledged();
                self.flushing = Some(self.places.iter().map(last).collect());
                entry::flush(1)
            }
            Kind::Read => entry::read(1, slba, blocks),
            Kind::Write { fua: false } => entry::write(1, slba, blocks),
            Kind::Write { fua: true } => entry::with_fua(entry::write(1, slba, blocks)),
            Kind::Zeroes { fua: false, deallocate } => entry::write_zeroes(1, slba, blocks, deallocate),
            Kind::Zeroes { fua: true, deallocate } => {
                entry::with_fua(entry::write_zeroes(1, slba, blocks, deallocate))
            }
        };
        let (place_index, place) = (place, &mut self.places[place]);
        place.is_busy |= kind != Kind::Flush;
        if let Kind::Write { .. } | Kind::Zeroes { .. } = kind {
            place.last += 1;
        }
        let number = place.last;
        let connection = self.connection.as_mut().expect("it is connected");
        let cid = connection.submit(slot, kind, command, &content(place_index, number));
        let epoch = self.epoch.load(Relaxed);
        connection.flights[slot] = Some(Flight { cid, kind, place: place_index, number, epoch });
    }

    fn reap(&mut self) -> usize {
        let mut done = Vec::new();
        let Some(connection) = self.connection.as_mut() else { return 0 };
        let Connection { queue, memory, flights } = connection;
        queue.reap(|completion: CompletionEntry| {
            let is_it = |flight: &Option<Flight>| flight.is_some_and(|flight| flight.cid == completion.cid);
            let slot = flights.iter().position(is_it).expect("it was submitted");
            let mut data = vec![0; BYTES];
            memory.region().read(slot * BYTES, &mut data);
            done.extend(flights[slot].take().map(|flight| (flight, completion.status(), data)));
        });
        let count = done.len();
        for (flight, status, data) in done {
            self.finish(flight, Some((status, &data)));
        }
        count
    }

    /// Records the end of a command, with a status and the data in its memory, or without an answer.
    fn finish(&mut self, flight: Flight, answer: Option<(Status, &[u8])>) {
        let has_failed = answer.is_some_and(|(status, _)| !status.is_success());
        let data = answer.and_then(|(status, data)| status.is_success().then_some(data));
        if has_failed {
            match flight.kind {
                Kind::Flush => self.failures.flushes += 1,
                _ => self.failures.others += 1,
            }
        }
        match flight.kind {
            Kind::Flush => {
                let mark = self.flushing.take().expect("it was submitted");
                match (data, has_failed) {
                    (Some(_), _) => {
                        self.places.iter_mut().zip(mark).for_each(|(place, mark)| place.flushed(mark))
                    }
                    (None, true) => self.doubt(),
                    (None, false) => {}
                }
            }
            Kind::Read => {
                self.places[flight.place].is_busy = false;
                if let Some(data) = data {
                    self.check(flight.place, data);
                }
            }
            Kind::Write { fua } | Kind::Zeroes { fua, .. } => {
                let is_durable = fua || self.is_through;
                self.acknowledged += u64::from(data.is_some());
                let holds = if let Kind::Write { .. } = flight.kind { flight.number } else { 0 };
                let outcome = match data {
                    Some(_) => Outcome::Acknowledged(flight.epoch),
                    None => Outcome::Unknown,
                };
                let written = Version { number: flight.number, holds, outcome };
                self.places[flight.place].wrote(written, is_durable);
            }
        }
    }

    /// Records a loss of power of the machine that serves the host. A Flush of the next connection is not about the
    /// writes acknowledged so far.
    pub(crate) fn lose_power(&mut self) {
        self.doubt();
    }

    /// Records that a Flush has failed: later ones are not about the writes acknowledged so far.
    fn doubt(&mut self) {
        self.places.iter_mut().for_each(Place::doubt);
    }

    /// Checks the content of a place without a write in flight. Returns the number of the write that is
    /// there.
    fn check(&self, place: usize, data: &[u8]) -> u32 {
        let number = number_in(place, data).unwrap_or_else(|fault| panic!("{fault}"));
        let epoch = self.epoch.load(Relaxed);
        let expected = self.places[place].visible(self.has_copy, epoch);
        let is_expected = expected.iter().any(|version| version.holds == number);
        assert!(
            is_expected,
            "place {place} holds write {number} in epoch {epoch}, but may hold {expected:?}"
        );
        number
    }

    /// Sends one command, and waits for it.
    fn alone(&mut self, kind: Kind, place: usize) -> Result<Vec<u8>, Status> {
        assert_eq!(self.in_flight(), 0, "it is alone");
        self.send(0, kind, place);
        let deadline = Deadline::after(LIMIT, "one command");
        let connection = self.connection.as_mut().expect("it is connected");
        let flight = connection.flights[0].take().expect("it was submitted");
        let done = connection.queue.wait(flight.cid, &deadline, |_| ());
        let status = done.unwrap_or_else(|error| panic!("{kind:?} of place {place}: {error}")).status();
        let mut data = vec![0; BYTES];
        connection.memory.region().read(0, &mut data);
        self.finish(flight, Some((status, &data)));
        if status.is_success() { Ok(data) } else { Err(status) }
    }

    pub(crate) fn flush(&mut self) -> Result<(), Status> {
        self.alone(Kind::Flush, 0).map(drop)
    }

    /// Reads and checks all places. Between two successful flushes without a write the content is durable,
    /// and the only one from then on.
    pub(crate) fn settle(&mut self) -> Result<(), Status> {
        let read = |load: &mut Self| -> Result<Vec<u32>, Status> {
            let one = |place| load.alone(Kind::Read, place).map(|data| load.check(place, &data));
            (0..PLACES).map(one).collect()
        };
        let before = read(self)?;
        self.flush()?;
        let after = read(self)?;
        assert_eq!(before, after, "the content changed without a write");
        let epoch = self.epoch.load(Relaxed);
        for (place, number) in self.places.iter_mut().zip(after) {
            self.lost += u64::from(place.has_lost(number));
            place.settle(number, epoch);
        }
        Ok(())
    }

    /// Checks that an image of the namespace holds each place. Call after [`Self::settle`].
    pub(crate) fn is_in(&self, image: &[u8]) -> Result<(), String> {
        for (index, place) in self.places.iter().enumerate() {
            let (at, number) = (index * self.distance as usize * 512, place.durable());
            let found = number_in(index, &image[at..at + BYTES])?;
            if found != number {
                return Err(format!("place {index} has write {found}, not {number}"));
            }
        }
        Ok(())
    }
}

impl Connection {
    fn submit(&mut self, slot: usize, kind: Kind, command: SubmissionEntry, data: &[u8]) -> u16 {
        let cid = match kind {
            Kind::Flush | Kind::Zeroes { .. } => self.queue.submit(command),
            Kind::Read => {
                // Bytes that the read does not transfer keep this value.
                self.memory.region().write(slot * BYTES, &[0xee; BYTES]);
                self.queue.submit_prp(command, self.memory.range(slot * BYTES, BYTES as u32))
            }
            Kind::Write { .. } => {
                self.memory.region().write(slot * BYTES, data);
                self.queue.submit_prp(command, self.memory.range(slot * BYTES, BYTES as u32))
            }
        };
        cid.expect("room in the queue")
    }
}

#[test]
fn a_place_tells_its_writes_from_others() {
    assert_eq!(number_in(7, &content(7, 12)), Ok(12));
    assert_eq!(number_in(7, &[0; BYTES]), Ok(0));
    assert!(number_in(7, &content(8, 12)).is_err());
    let torn = [&content(7, 12)[..512], &content(7, 11)[512..]].concat();
    assert!(number_in(7, &torn).is_err());
}
