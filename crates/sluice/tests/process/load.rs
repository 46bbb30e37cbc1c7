//! A host's load: places that are written and read back again and again, while something changes.

use crate::common::{Daemon, LIMIT};
use sluice_host::{Controller, DmaBuffer, QueueLayout, QueuePair, entry};
use std::time::Instant;

/// Number of places, each of which is written and read back by itself.
const PLACES: u32 = 24;
const BYTES: usize = 4096;

/// State of a place: its command in flight, and how often it was written.
struct Place {
    /// Identifier of the command in flight, if there is one.
    cid: Option<u16>,
    is_reading: bool,
    round: u32,
}

/// A host that writes new data again and again, and reads it back.
pub(crate) struct Load {
    queue: QueuePair,
    data: DmaBuffer,
    places: Vec<Place>,
    /// First block of the first place.
    slba: u64,
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
}

impl Load {
    /// Starts a load on places of its own. Each load needs another `share`.
    pub(crate) fn new(host: &mut Controller, qid: u16, share: u64) -> Self {
        let queue = host.create_queue_pair(qid, QueueLayout::default(), None).expect("a queue pair");
        let data = host.memory().allocate(PLACES as usize * BYTES).expect("memory");
        let slba = share * u64::from(PLACES) * 8;
        let mut load = Self { queue, data, places: Vec::new(), slba, submitted: 0, completed: 0 };
        for number in 0..PLACES {
            load.places.push(Place { cid: None, is_reading: false, round: 0 });
            load.start(number as usize);
        }
        load
    }

    /// Submits the next command of a place.
    fn start(&mut self, number: usize) {
        let place = &mut self.places[number];
        let (at, slba, blocks) = (number * BYTES, self.slba + number as u64 * 8, 8);
        let command = match place.is_reading {
            true => {
                // Bytes that the read does not transfer keep this value.
                self.data.region().write(at, &[0xee; BYTES]);
                entry::read(1, slba, blocks)
            }
            false => {
                self.data.region().write(at, &pattern(slba, place.round));
                entry::write(1, slba, blocks)
            }
        };
        let data = self.data.range(at, BYTES as u32);
        place.cid = Some(self.queue.submit_prp(command, data).expect("room in the queue"));
        self.submitted += 1;
    }

    /// Takes completions, and submits the next commands if `more`.
    pub(crate) fn turn(&mut self, more: bool) {
        let mut back = Vec::new();
        let Self { queue, places, .. } = self;
        // All completions are taken before new commands are submitted, which may get the same identifiers.
        queue.reap(|completion| {
            assert!(completion.status().is_success(), "{:?}", completion.status());
            let asked = |place: &Place| place.cid == Some(completion.cid);
            let number = places.iter().position(asked).expect("it was asked for");
            places[number].cid = None;
            back.push(number);
        });
        self.completed += back.len() as u64;
        for number in back {
            self.finish(number);
            if more || self.places[number].is_reading {
                self.start(number);
            }
        }
        self.queue.ring().expect("a doorbell");
    }

    fn finish(&mut self, number: usize) {
        let place = &mut self.places[number];
        if place.is_reading {
            let mut read = vec![0; BYTES];
            self.data.region().read(number * BYTES, &mut read);
            let slba = self.slba + number as u64 * 8;
            assert!(read == pattern(slba, place.round), "block {slba}, round {}", place.round);
            place.round += 1;
        }
        place.is_reading = !place.is_reading;
    }

    /// Goes on until all data was verified more than once, and waits until every command is completed, once.
    pub(crate) fn end(&mut self) {
        let start = Instant::now();
        while !self.is_verified() {
            self.turn(true);
            assert!(start.elapsed() < LIMIT, "not all places are verified again and again");
        }
        while self.completed < self.submitted {
            self.turn(false);
            assert!(start.elapsed() < LIMIT, "{} of {} came back", self.completed, self.submitted);
        }
        assert_eq!(self.queue.strays(), 0, "nothing came back twice");
    }

    pub(crate) fn is_verified(&self) -> bool {
        self.places.iter().all(|place| place.round > 1)
    }

    /// Returns the queue, with its commands in flight.
    pub(crate) fn into_queue(self) -> QueuePair {
        self.queue
    }
}

fn pattern(slba: u64, round: u32) -> Vec<u8> {
    let word = slba << 32 | u64::from(round);
    (0..BYTES as u64 / 8).flat_map(|index| (word ^ index.wrapping_mul(0x9e37_79b9)).to_le_bytes()).collect()
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// Runs a host of the drive `demo`, which writes and reads back while `change` runs. Then checks that each
/// command is completed once.
pub(crate) fn under_load<C: Future<Output = ()>>(daemon: &Daemon, change: impl FnOnce() -> C + Send) -> Load {
    let mut host = daemon.host("demo");
    let mut load = Load::new(&mut host, 1, 0);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| block_on(change()));
        // The load goes on until all places are verified, even if the machine gives it little time.
        let (begun, is_verified) = (Instant::now(), |place: &Place| place.round > 1);
        while !changing.is_finished() || !load.places.iter().all(is_verified) && begun.elapsed() < LIMIT {
            load.turn(true);
            std::thread::yield_now();
        }
        assert!(changing.join().is_ok(), "a change failed");
    });
    load.end();
    load
}
