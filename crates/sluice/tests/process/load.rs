//! A host's load: places that are written and read back again and again, while something changes.

use crate::common::{Daemon, LIMIT};
use sluice_host::{DmaBuffer, QueueLayout, QueuePair, entry};
use std::time::Instant;

/// Places that are written and read back, each by itself.
const PLACES: u32 = 24;
const BYTES: usize = 4096;

/// What a place is waiting for, and how often it was written.
struct Place {
    /// Of the command in flight, if there is one.
    cid: Option<u16>,
    is_reading: bool,
    round: u32,
}

/// A host that writes something else again and again, and reads it back.
pub(crate) struct Load {
    queue: QueuePair,
    data: DmaBuffer,
    places: Vec<Place>,
    pub(crate) submitted: u64,
    completed: u64,
}

impl Load {
    fn new(queue: QueuePair, data: DmaBuffer) -> Self {
        let mut load = Self { queue, data, places: Vec::new(), submitted: 0, completed: 0 };
        for number in 0..PLACES {
            load.places.push(Place { cid: None, is_reading: false, round: 0 });
            load.start(number as usize);
        }
        load
    }

    /// Submits what the place needs next.
    fn start(&mut self, number: usize) {
        let place = &mut self.places[number];
        let (at, slba, blocks) = (number * BYTES, number as u64 * 8, 8);
        let command = match place.is_reading {
            true => {
                // What is not read stays as it is here.
                self.data.region().write(at, &[0xee; BYTES]);
                entry::read(1, slba, blocks)
            }
            false => {
                self.data.region().write(at, &pattern(number, place.round));
                entry::write(1, slba, blocks)
            }
        };
        let data = self.data.range(at, BYTES as u32);
        place.cid = Some(self.queue.submit_prp(command, data).expect("room in the queue"));
        self.submitted += 1;
    }

    /// Takes what came back, and goes on with it if `more`.
    fn turn(&mut self, more: bool) {
        let mut back = Vec::new();
        let Self { queue, places, .. } = self;
        // Before anything new is submitted, which may get the same identifiers.
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
            assert!(read == pattern(number, place.round), "place {number}, round {}", place.round);
            place.round += 1;
        }
        place.is_reading = !place.is_reading;
    }
}

fn pattern(number: usize, round: u32) -> Vec<u8> {
    let word = (number as u64) << 32 | u64::from(round);
    (0..BYTES as u64 / 8).flat_map(|index| (word ^ index.wrapping_mul(0x9e37_79b9)).to_le_bytes()).collect()
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// A host of the drive `demo` writes and reads back for as long as `change` takes; then everything comes back, once.
pub(crate) fn under_load<C: Future<Output = ()>>(daemon: &Daemon, change: impl FnOnce() -> C + Send) -> Load {
    let mut host = daemon.host("demo");
    let queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let data = host.memory().allocate(PLACES as usize * BYTES).expect("memory");
    let mut load = Load::new(queue, data);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| block_on(change()));
        // However little of the machine it is given meanwhile.
        let (begun, is_verified) = (Instant::now(), |place: &Place| place.round > 1);
        while !changing.is_finished() || !load.places.iter().all(is_verified) && begun.elapsed() < LIMIT {
            load.turn(true);
            std::thread::yield_now();
        }
        assert!(changing.join().is_ok(), "a change failed");
    });
    let start = Instant::now();
    while load.completed < load.submitted {
        load.turn(false);
        assert!(start.elapsed() < LIMIT, "{} of {} came back", load.completed, load.submitted);
    }
    assert_eq!(load.queue.strays(), 0, "nothing came back twice");
    assert!(load.places.iter().all(|place| place.round > 1), "all places were verified again and again");
    load
}
