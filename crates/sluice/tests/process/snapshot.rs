//! The snapshot function in a real daemon: versions, an old one as a drive of its own, and the commands that
//! pass by the function.

use crate::common::{Daemon, namespace, wait_for};
use crate::programs::compile_own;
use rustix::process::{Pid, Signal, kill_process};
use sluice_host::{Namespace, QueueLayout};
use sluice_nvme::Status;
use std::path::Path;

const SIZE: usize = 16 << 20;
const BLOCK: usize = 512;
/// Bytes of a command of several chunks.
const SPAN: usize = 96 << 10;

/// Returns the drive, and a drive of a version if there is one.
fn drives(folder: &Path, place: &str, version: Option<&str>) -> String {
    let object = compile_own(folder, "snapshot");
    let mut drives = format!(
        "[[drive]]\nname = \"disk\"\n[drive.classifier]\nobject = \"{}\"\n[[drive.namespace]]\ntarget = \"file\"\n\
         path = \"disk.store\"\nsize = \"64MiB\"\npaths = [ {{ name = \"store\", below = 1, beyond = true }} ]\n\
         functions = [ {{ kind = \"uif\", function = \"snapshot\", place = \"{place}\", translations = \"chunks\", \
         options = {{ size = \"16MiB\" }} }} ]\n",
        object.display()
    );
    if let Some(version) = version {
        drives += &format!(
            "[[drive]]\nname = \"old\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.store\"\n\
             read_only = true\nfunctions = [ {{ kind = \"uif\", function = \"snapshot\", place = \"{place}\", \
             options = {{ size = \"16MiB\", version = \"{version}\" }} }} ]\n"
        );
    }
    drives
}

/// A drive, with its expected content.
struct Verified {
    disk: Namespace,
    model: Vec<u8>,
    random: u64,
}

impl Verified {
    fn next(&mut self, below: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % below
    }

    /// Does random writes and reads, some of them of several chunks.
    fn work(&mut self, commands: usize) {
        for number in 0..commands {
            let blocks = if number % 4 == 0 { SPAN / BLOCK } else { 8 };
            let length = (self.next(blocks) + 1) * BLOCK;
            let at = self.next((SIZE - length) / BLOCK) * BLOCK;
            if self.next(2) == 0 {
                let seed = self.next(256);
                let data: Vec<u8> = (0..length).map(|n| (n / BLOCK + n * seed) as u8).collect();
                self.disk.write((at / BLOCK) as u64, &data).expect("a write");
                self.model[at..at + length].copy_from_slice(&data);
            } else {
                let mut read = vec![0; length];
                self.disk.read((at / BLOCK) as u64, &mut read).expect("a read");
                assert!(read == self.model[at..at + length], "at {at}");
            }
        }
    }
}

fn look(disk: &mut Namespace, model: &[u8]) {
    let mut read = vec![0; SPAN];
    for at in (0..SIZE).step_by(SPAN) {
        let length = SPAN.min(SIZE - at);
        disk.read((at / BLOCK) as u64, &mut read[..length]).expect("a read");
        assert!(read[..length] == model[at..at + length], "at {at}");
    }
}

/// Returns the classifier's counters: reads and writes past the function, and commands that it got.
fn counted(daemon: &Daemon) -> Vec<u64> {
    let shown = daemon.ok(&["classifier", "show", "disk", "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    (0..3).map(|index| shown["counters"][index].as_u64().unwrap_or(0)).collect()
}

/// Checks that a resize to more than the drive, but less than its store, is refused. A larger size makes the
/// store grow.
fn the_store_grows(daemon: &Daemon) {
    let said = daemon.fails(&["drive", "resize", "disk", "--size", "32MiB"]);
    assert!(said.contains("64MiB") && said.contains("--shrink"), "{said}");
    let bytes = || {
        let status = daemon.ok(&["snapshot", "status", "disk", "-o", "json"]);
        serde_json::from_str::<serde_json::Value>(&status).expect("JSON")["store"].as_u64()
    };
    let before = bytes();
    daemon.ok(&["drive", "resize", "disk", "--size", "96MiB"]);
    wait_for("the room", || bytes() > before);
}

fn names(daemon: &Daemon) -> Vec<String> {
    let list = daemon.ok(&["snapshot", "list", "disk", "-o", "json"]);
    let list: Vec<serde_json::Value> = serde_json::from_str(&list).expect("JSON");
    list.iter().map(|version| version["name"].as_str().expect("a name").to_owned()).collect()
}

fn go_through(place: &str) {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &drives(daemon.folder.path(), place, None));
    daemon.restart();
    let mut host = daemon.host("disk");
    let mut drive = Verified { disk: namespace(&mut host, 1), model: vec![0; SIZE], random: 1 };
    drive.work(400);
    daemon.ok(&["snapshot", "create", "disk", "monday"]);
    let monday = drive.model.clone();
    drive.work(400);
    let said = daemon.fails(&["snapshot", "create", "disk", "monday"]);
    assert!(said.contains("there is a version `monday` already"), "{said}");
    let said = daemon.fails(&["function", "tell", "disk", "create", "tuesday"]);
    assert!(said.contains("quiet drive"), "{said}");
    // The versions are created under a load.
    let worker = std::thread::spawn(move || {
        drive.work(1500);
        drive
    });
    for number in 0..5 {
        daemon.ok(&["snapshot", "create", "disk", &format!("v{number}")]);
    }
    if place == "process" {
        let shown = daemon.ok(&["function", "show", "disk", "-o", "json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        let process = shown["functions"][0]["pid"].as_i64().expect("a process") as i32;
        kill_process(Pid::from_raw(process).expect("a process"), Signal::KILL).expect("it is ours");
        wait_for("the next function", || daemon.run(&["snapshot", "list", "disk"]).status.success());
    }
    (1..5).for_each(|number| drop(daemon.ok(&["snapshot", "delete", "disk", &format!("v{number}")])));
    let mut drive = worker.join().expect("every command succeeds");
    look(&mut drive.disk, &drive.model);
    assert_eq!(names(&daemon), ["monday", "v0"]);
    the_store_grows(&daemon);
    look(&mut drive.disk, &drive.model);
    let counted = counted(&daemon);
    assert!(counted[0] > 100 && counted[1] > 100 && counted[2] > 100, "{counted:?}");
    // The daemon dies. Acknowledged data is there, and the version beside it.
    let now = drive.model.clone();
    drop((drive, host));
    daemon.crash();
    daemon.declare("", &drives(daemon.folder.path(), place, Some("monday")));
    daemon.restart();
    let (mut host, mut old_host) = (daemon.host("disk"), daemon.host("old"));
    let (disk, mut old) = (namespace(&mut host, 1), namespace(&mut old_host, 1));
    let mut drive = Verified { disk, model: now, random: 2 };
    look(&mut drive.disk, &drive.model);
    look(&mut old, &monday);
    drive.work(200);
    look(&mut old, &monday);
    // Both go to another process, with the classifier and its translations.
    daemon.upgrade(&[]);
    look(&mut drive.disk, &drive.model);
    look(&mut old, &monday);
    drive.work(200);
    look(&mut old, &monday);
    let refused = old.write(0, &[0; BLOCK]).expect_err("it is read only");
    assert_eq!(refused.status(), Some(Status::NAMESPACE_WRITE_PROTECTED), "{refused}");
    daemon.ok(&["snapshot", "rollback", "disk", "monday"]);
    drive.model.clone_from(&monday);
    look(&mut drive.disk, &drive.model);
    drive.work(200);
    look(&mut old, &monday);
    daemon.ok(&["snapshot", "delete", "disk", "monday"]);
    drive.work(200);
    // Unwritten chunks are still zeros. Reads of the version's own data fail.
    let mut read = (0..SIZE / SPAN).map(|number| old.read((number * SPAN / BLOCK) as u64, &mut [0; SPAN]));
    let gone = read.find_map(Result::err).expect("the version was deleted");
    assert_eq!(gone.status(), Some(Status::UNRECOVERED_READ_ERROR), "{gone}");
    assert_eq!(names(&daemon), ["v0"]);
    assert!(daemon.ok(&["snapshot", "status", "disk"]).contains("free"));
}

#[test]
fn versions_of_a_drive_in_the_daemon() {
    go_through("daemon");
}

#[test]
fn versions_of_a_drive_behind_a_process() {
    go_through("process");
}

/// Checks that the cache that the function of one namespace fills has no entries for another.
#[test]
fn a_namespace_beside_one_with_a_cache_has_its_own_places() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let text = drives(daemon.folder.path(), "daemon", None);
    let at = text.find("[[drive.namespace]]").expect("a namespace");
    let second = text[at..].replace("disk.store", "other.store").replace("translations = \"chunks\", ", "");
    daemon.declare("", &format!("{text}{second}"));
    daemon.restart();
    let mut host = daemon.host("disk");
    let mut both = [1_u16, 2].map(|number| {
        let queue = host.create_queue_pair(number, QueueLayout::default(), None).expect("a queue pair");
        let disk = Namespace::open(&mut host, number.into(), queue).expect("an active namespace");
        Verified { disk, model: vec![0; SIZE], random: number.into() }
    });
    for _ in 0..4 {
        both.iter_mut().for_each(|drive| drive.work(100));
    }
    let counted = counted(&daemon);
    assert!(counted[0] > 10 && counted[1] > 10, "the first goes past its function: {counted:?}");
    both.iter_mut().for_each(|drive| look(&mut drive.disk, &drive.model));
}
