//! Programs that are replaced while commands are in flight. No command is lost, done twice or done wrong.

use crate::common::Daemon;
use crate::load::{block_on, under_load};
use crate::programs::{COUNTING, COUNTING_LEGS, compile};
use sluice_api::ReplaceRequest;
use sluice_api::client::Client;
use sluice_control::drives::{ClassifierStatus, MapEntry};
use sluice_spec::{ClassifierSpec, default_section};
use std::path::Path;

/// Drive whose commands are in flight for a while, so that several programs are loaded meanwhile.
const DELAYED: &str = "[[drive]]\nname = \"demo\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"16MiB\"\n\
                       functions = [ { kind = \"delay\", read_us = 3000, write_us = 1000 } ]\n";
const REPLACEMENTS: usize = 1000;

const PATH: &str = "/v1/drives/demo/classifier";

fn spec(object: &Path) -> ClassifierSpec {
    let (object, section) = (object.to_owned(), default_section());
    ClassifierSpec { object, section, errors_max: None, precise_clock: false }
}

/// Replaces the drive's program by another.
async fn replace(client: &Client, object: &Path) {
    let request = ReplaceRequest { classifier: spec(object), fresh_maps: false };
    let status: ClassifierStatus = client.put(PATH, &request).await.expect("it is replaced");
    assert!(status.errors.is_empty() && status.traps == 0, "{status:?}");
}

async fn attach(client: &Client, drive: &str, object: &Path) {
    let path = format!("/v1/drives/{drive}/classifier");
    client.post::<ClassifierStatus>(&path, &spec(object)).await.expect("it is attached");
}

/// Returns how often all programs were called at a hook.
async fn calls(client: &Client, hook: u32) -> u64 {
    let path = format!("{PATH}/maps/calls/{hook:02x}000000");
    let entry: MapEntry = client.get(&path).await.expect("it has this entry");
    u64::from_str_radix(&entry.value, 16).expect("hexadecimal").swap_bytes()
}

#[test]
fn a_thousand_replacements_under_load_lose_nothing() {
    let daemon = Daemon::start(DELAYED);
    let folder = daemon.folder.path();
    // Both programs count the same calls, by different ways.
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

/// Checks programs that are attached to a drive without one, and detached with commands in flight. The
/// counters are shared with a second drive, so that they stay.
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
    // Some commands began without a program. The others have a program until their end.
    block_on(attach(&client, "demo", &objects[0]));
    let (begun, ended) = block_on(async { (calls(&client, 0).await, calls(&client, 2).await) });
    assert_eq!(begun, ended);
    assert!((1..=load.submitted).contains(&begun), "{begun} of {}", load.submitted);
}
