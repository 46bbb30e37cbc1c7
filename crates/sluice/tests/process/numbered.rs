//! A host's load of numbered writes, and the writes that each place of its namespace may hold after a loss of power.
//!
//! Each write has a number. A place has at most one command in flight, and several places have one at a time. The model
//! of a place is the list of the writes that a read may return, the durable one first. A successful Flush or a write
//! with FUA shortens the list. A write that failed or was never answered is done or is not done.

use crate::common::LIMIT;
use sluice_host::{Controller, Deadline, DmaBuffer, QueueLayout, QueuePair, entry};
use sluice_nvme::{CompletionEntry, Status, SubmissionEntry};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Number of places that are written, each of [`BYTES`], one every [`DISTANCE`] blocks of 512 bytes.
pub(crate) const PLACES: usize = 96;
const BYTES: usize = 4096;
const BLOCKS: u32 = 8;
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

/// Result of a write, from the view of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The write failed, or no answer came.
    Unknown,
    /// The write was acknowledged, and was submitted in this epoch.
    Acknowledged(u32),
    /// The write was acknowledged, but then a Flush failed, so that no later Flush is about it.
    Doubtful(u32),
}

#[derive(Clone, Copy, Debug)]
struct Version {
    number: u32,
    outcome: Outcome,
}

/// Writes that a read of the place may return, the oldest first. The first one is durable.
#[derive(Debug)]
struct Place {
    versions: Vec<Version>,
    last: u32,
    is_busy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write { fua: bool },
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
        let durable = Version { number: 0, outcome: Outcome::Acknowledged(0) };
        let place = |_| Place { versions: vec![durable], last: 0, is_busy: false };
        Self {
            places: (0..PLACES).map(place).collect(),
            connection: None,
            dice: Dice::new(seed),
            epoch,
            has_copy,
            flushing: None,
            failures: Failures::default(),
            acknowledged: 0,
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
        let place = self.dice.below(PLACES as u64) as usize;
        let kind = match self.dice.below(100) {
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
        let slba = place as u64 * DISTANCE;
        let command = match kind {
            Kind::Flush => {
                let last = |place: &Place| place.acknowledged();
                self.flushing = Some(self.places.iter().map(last).collect());
                entry::flush(1)
            }
            Kind::Read => entry::read(1, slba, BLOCKS),
            Kind::Write { fua: false } => entry::write(1, slba, BLOCKS),
            Kind::Write { fua: true } => entry::with_fua(entry::write(1, slba, BLOCKS)),
        };
        let (place_index, place) = (place, &mut self.places[place]);
        place.is_busy |= kind != Kind::Flush;
        if let Kind::Write { .. } = kind {
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
            Kind::Write { fua } => {
                self.acknowledged += u64::from(data.is_some());
                self.places[flight.place].wrote(&flight, fua, data.is_some());
            }
        }
    }

    /// Records that a Flush has failed: later ones are not about the writes acknowledged so far.
    fn doubt(&mut self) {
        for version in self.places.iter_mut().flat_map(|place| &mut place.versions) {
            if let Outcome::Acknowledged(epoch) = version.outcome {
                version.outcome = Outcome::Doubtful(epoch);
            }
        }
    }

    /// Checks the content of a place without a write in flight. Returns the number of the write that is
    /// there.
    fn check(&self, place: usize, data: &[u8]) -> u32 {
        let number = number_in(place, data).unwrap_or_else(|fault| panic!("{fault}"));
        let epoch = self.epoch.load(Relaxed);
        let expected = self.places[place].visible(self.has_copy, epoch);
        let is_expected = expected.iter().any(|version| version.number == number);
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
            place.versions = vec![Version { number, outcome: Outcome::Acknowledged(epoch) }];
        }
        Ok(())
    }

    /// Checks that an image of the namespace holds each place. Call after [`Self::settle`].
    pub(crate) fn is_in(&self, image: &[u8]) -> Result<(), String> {
        for (index, place) in self.places.iter().enumerate() {
            let (at, number) = (index * DISTANCE as usize * 512, place.versions[0].number);
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
            Kind::Flush => self.queue.submit(command),
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

impl Place {
    /// Returns the last write that was acknowledged.
    fn acknowledged(&self) -> u32 {
        let is = |version: &&Version| version.outcome != Outcome::Unknown;
        self.versions.iter().rev().find(is).map_or(0, |version| version.number)
    }

    /// Records the success of a Flush that was sent when this write was the last one acknowledged.
    fn flushed(&mut self, mark: u32) {
        let is =
            |version: &Version| version.number == mark && matches!(version.outcome, Outcome::Acknowledged(_));
        if self.versions.iter().any(is) {
            self.versions.retain(|version| version.number >= mark);
        }
    }

    fn wrote(&mut self, flight: &Flight, fua: bool, is_acknowledged: bool) {
        self.is_busy = false;
        let outcome = if is_acknowledged { Outcome::Acknowledged(flight.epoch) } else { Outcome::Unknown };
        self.versions.push(Version { number: flight.number, outcome });
        if fua && is_acknowledged {
            self.versions.drain(..self.versions.len() - 1);
        }
    }

    /// Returns the versions that a read may return now. A write that was acknowledged is the oldest of them
    /// unless a cut came after its submission.
    fn visible(&self, has_copy: bool, epoch: u32) -> &[Version] {
        let is_certain = |version: &Version| match version.outcome {
            Outcome::Unknown => false,
            Outcome::Acknowledged(then) | Outcome::Doubtful(then) => {
                has_copy || then == epoch && epoch.is_multiple_of(2)
            }
        };
        let first = self.versions.iter().rposition(is_certain).unwrap_or(0);
        &self.versions[first..]
    }
}

#[test]
fn a_flush_and_a_cut_leave_the_writes_that_may_be_there() {
    let write = |place: &mut Place, number, epoch, is_acknowledged| {
        let kind = Kind::Write { fua: false };
        place.wrote(&Flight { cid: 0, kind, place: 0, number, epoch }, false, is_acknowledged);
    };
    let numbers = |versions: &[Version]| versions.iter().map(|version| version.number).collect::<Vec<_>>();
    let first = Version { number: 0, outcome: Outcome::Acknowledged(0) };
    let mut place = Place { versions: vec![first], last: 0, is_busy: false };
    write(&mut place, 1, 0, true);
    write(&mut place, 2, 0, false);
    assert_eq!(numbers(place.visible(false, 0)), [1, 2], "nothing was cut");
    assert_eq!(numbers(place.visible(false, 1)), [0, 1, 2], "the cut may have taken it");
    assert_eq!(numbers(place.visible(true, 2)), [1, 2], "another copy has it");
    let mark = place.acknowledged();
    write(&mut place, 3, 0, true);
    place.flushed(mark);
    assert_eq!(numbers(place.visible(false, 2)), [1, 2, 3], "the third came later");
    place.versions[2].outcome = Outcome::Doubtful(0);
    place.flushed(3);
    assert_eq!(numbers(place.visible(false, 2)), [1, 2, 3], "a Flush failed before");
    write(&mut place, 4, 2, true);
    place.flushed(4);
    assert_eq!(numbers(place.visible(false, 4)), [4]);
}

#[test]
fn a_place_tells_its_writes_from_others() {
    assert_eq!(number_in(7, &content(7, 12)), Ok(12));
    assert_eq!(number_in(7, &[0; BYTES]), Ok(0));
    assert!(number_in(7, &content(8, 12)).is_err());
    let torn = [&content(7, 12)[..512], &content(7, 11)[512..]].concat();
    assert!(number_in(7, &torn).is_err());
}
