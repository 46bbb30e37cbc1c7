//! Programs that are replaced while commands are in flight: none of those is lost, done twice or done wrong.

use crate::common::{Daemon, LIMIT};
use crate::programs::{COUNTING, COUNTING_LEGS, compile};
use sluice::api::ReplaceRequest;
use sluice::client::Client;
use sluice::drives::{ClassifierStatus, MapEntry};
use sluice::spec::{ClassifierSpec, default_section};
use sluice_host::{DmaBuffer, QueueLayout, QueuePair, entry};
use std::path::Path;
use std::time::Instant;

/// Commands are in flight for a while: each sees several programs come.
const DELAYED: &str = "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n\
                       functions = [ { kind = \"delay\", read_us = 3000, write_us = 1000 } ]\n";
const REPLACEMENTS: usize = 1000;
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
struct Load {
    queue: QueuePair,
    data: DmaBuffer,
    places: Vec<Place>,
    submitted: u64,
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

const PATH: &str = "/v1/drives/demo/classifier";

fn spec(object: &Path) -> ClassifierSpec {
    ClassifierSpec { object: object.to_owned(), section: default_section(), errors_max: None }
}

/// Puts a program in the place of the drive's.
async fn replace(client: &Client, object: &Path) {
    let request = ReplaceRequest { classifier: spec(object), fresh_maps: false };
    let status: ClassifierStatus = client.put(PATH, &request).await.expect("it is replaced");
    assert!(status.errors.is_empty() && status.traps == 0, "{status:?}");
}

async fn attach(client: &Client, drive: &str, object: &Path) {
    let path = format!("/v1/drives/{drive}/classifier");
    client.post::<ClassifierStatus>(&path, &spec(object)).await.expect("it is attached");
}

/// How often all programs were called at a hook.
async fn calls(client: &Client, hook: u32) -> u64 {
    let path = format!("{PATH}/maps/calls/{hook:02x}000000");
    let entry: MapEntry = client.get(&path).await.expect("it has this entry");
    u64::from_str_radix(&entry.value, 16).expect("hexadecimal").swap_bytes()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

/// A host writes and reads back for as long as `change` takes; then everything comes back, once.
fn under_load<C: Future<Output = ()>>(daemon: &Daemon, change: impl FnOnce() -> C + Send) -> Load {
    let mut host = daemon.host("demo");
    let queue = host.create_queue_pair(1, QueueLayout::default(), None).expect("a queue pair");
    let data = host.memory().allocate(PLACES as usize * BYTES).expect("memory");
    let mut load = Load::new(queue, data);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| block_on(change()));
        while !changing.is_finished() {
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

#[test]
fn a_thousand_replacements_under_load_lose_nothing() {
    let daemon = Daemon::start(DELAYED);
    let folder = daemon.folder.path();
    // The same, done in different ways.
    let objects = [compile(folder, "legs", COUNTING_LEGS), compile(folder, "counting", COUNTING)];
    let client = Client::new(daemon.api());
    block_on(attach(&client, "demo", &objects[1]));
    let load = under_load(&daemon, || async {
        for number in 0..REPLACEMENTS {
            replace(&client, &objects[number % 2]).await;
        }
    });
    // Every command was seen once before it began and once at its end, whichever programs saw it.
    let seen = block_on(async { (calls(&client, 0).await, calls(&client, 2).await) });
    assert_eq!(seen, (load.submitted, load.submitted));
}

/// Programs come to a drive without, and go from one that has commands in flight. The counters are shared with a
/// second drive, so that they stay.
#[test]
fn programs_that_come_and_go_under_load_lose_nothing() {
    let second = DELAYED.replace("demo", "second");
    let daemon = Daemon::start(&format!("{DELAYED}{second}"));
    let folder = daemon.folder.path();
    let shared = |source: &str| {
        source.replace("max_entries, 3);", "max_entries, 3);\n    __uint(map_flags, SLUICE_F_SHARED);")
    };
    let objects =
        [compile(folder, "legs", &shared(COUNTING_LEGS)), compile(folder, "counting", &shared(COUNTING))];
    let client = Client::new(daemon.api());
    block_on(attach(&client, "second", &objects[0]));
    let load = under_load(&daemon, || async {
        for number in 0..REPLACEMENTS / 4 {
            attach(&client, "demo", &objects[number % 2]).await;
            replace(&client, &objects[(number + 1) % 2]).await;
            client.delete(PATH).await.expect("it has one");
        }
    });
    // Some began without a program. Those that a program saw, one saw to the end.
    block_on(attach(&client, "demo", &objects[0]));
    let (begun, ended) = block_on(async { (calls(&client, 0).await, calls(&client, 2).await) });
    assert_eq!(begun, ended);
    assert!((1..=load.submitted).contains(&begun), "{begun} of {}", load.submitted);
}
