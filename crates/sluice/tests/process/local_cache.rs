//! A cache on a device under load: SIGKILL of the daemon and of the function, power cuts, orders, a detach, and refusals.

use crate::blackout::Machine;
use crate::common::{Daemon, LIMIT, namespace, wait_for};
use crate::function::pid;
use crate::numbered::{Dice, Epoch, Numbered};
use crate::volatile::Disk;
use rustix::process::{Signal, kill_process};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the drive, and of the cache's device, which has fewer lines than the load has places.
const SIZE: usize = 4 << 20;
const CACHE: usize = 1 << 20;

fn file(path: &Path, size: usize) -> String {
    format!("target = \"file\", path = \"{}\", size = \"{size}\"", path.display())
}

/// Returns a drive with the function over two layers.
fn drive(target: &str, device: &str, place: &str, options: &str) -> String {
    let target = target.replace(", ", "\n");
    format!(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\n{target}\nfunctions = [ {{ kind = \"uif\", function = \"local-cache\", \
         place = \"{place}\", options = {{ line = \"16KiB\", {options} }}, layers = [ {{ {device} }} ] }} ]\n"
    )
}

fn files(place: &str, options: &str) -> String {
    drive(&file(Path::new("drive"), SIZE), &file(Path::new("cache"), CACHE), place, options)
}

fn tell(daemon: &Daemon, order: &str) -> String {
    daemon.ok(&["function", "tell", "disk", "--function", "1", order])
}

/// Returns a number of the status.
fn number(daemon: &Daemon, name: &str) -> u64 {
    let status = tell(daemon, "status");
    let rest = status.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{status}")).1;
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
}

/// Works until so many further writes are acknowledged.
fn work(load: &mut Numbered, writes: u64) {
    let (start, until) = (Instant::now(), load.acknowledged + writes);
    while load.acknowledged < until {
        assert!(start.elapsed() < LIMIT, "{} of {until} writes are acknowledged", load.acknowledged);
        assert!(load.turn(true), "the daemon is gone");
    }
}

/// Kills the daemon under load, again and again. No acknowledged write is missing.
fn survives_kills(place: &str, mode: &str) {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &files(place, &format!("mode = \"{mode}\"")));
    daemon.restart();
    let (mut load, mut dice) = (Numbered::new(7, Epoch::default(), true), Dice::new(7));
    for _ in 0..6 {
        let mut host = daemon.host("disk");
        load.connect(&mut host);
        work(&mut load, 40 + dice.below(120));
        daemon.crash();
        load.disconnect();
        drop(host);
        daemon.restart();
        let mut host = daemon.host("disk");
        load.connect(&mut host);
        load.settle().expect("everything can be read");
        load.disconnect();
    }
    assert_eq!((load.failures.flushes, load.failures.others), (0, 0), "{}", daemon.log());
    let mut host = daemon.host("disk");
    load.connect(&mut host);
    work(&mut load, 100);
    load.drain();
    load.settle().expect("everything can be read");
    tell(&daemon, "flush");
    assert_eq!(number(&daemon, "dirty_bytes"), 0);
    assert_eq!(number(&daemon, "written_back_bytes") > 0, mode == "write-back");
    let image = std::fs::read(daemon.folder.path().join("drive")).expect("the file");
    load.is_in(&image).expect("the drive alone has everything");
}

#[test]
fn nothing_is_lost_by_kills_in_the_daemon() {
    survives_kills("daemon", "write-back");
}

#[test]
fn nothing_is_lost_by_kills_in_a_process() {
    survives_kills("process", "write-back");
}

#[test]
fn nothing_is_lost_by_kills_in_write_through() {
    survives_kills("daemon", "write-through");
}

/// Kills the process of the function alone: its commands begin anew with the next one, and none fails.
#[test]
fn nothing_is_lost_when_the_process_of_the_function_dies() {
    let daemon = Daemon::start(&files("process", "mode = \"write-back\""));
    let mut host = daemon.host("disk");
    let mut load = Numbered::new(3, Epoch::default(), true);
    load.connect(&mut host);
    for _ in 0..3 {
        work(&mut load, 100);
        let killed = pid(&daemon, "disk").expect("it is there");
        kill_process(killed, Signal::KILL).expect("it is ours");
        work(&mut load, 100);
        wait_for("the next one", || pid(&daemon, "disk").is_some_and(|pid| pid != killed));
    }
    work(&mut load, 100);
    load.drain();
    load.settle().expect("everything can be read");
    assert_eq!((load.failures.flushes, load.failures.others), (0, 0), "{}", daemon.log());
}

/// Cuts the power of the machine under load, with the drive and the cache on disks with volatile caches. `is_through`: the
/// host has switched the volatile write cache off.
fn survives_power_cuts(mode: &str, is_through: bool, zeroes: u64) {
    let Some((disk, cache)) = Disk::new(SIZE).zip(Disk::new(CACHE)) else { return };
    let (disks, options) = ([&disk, &cache], format!("mode = \"{mode}\""));
    let layers = [(&disk, SIZE), (&cache, CACHE)].map(|(disk, size)| file(&disk.path(), size));
    let mut machine = Machine::start(&disks, &drive(&layers[0], &layers[1], "daemon", &options), 13);
    (machine.load.is_through, machine.load.zeroes) = (is_through, zeroes);
    // The drive and the cache lose their power together, and each of them alone.
    let kinds = [[true, true], [true, false], [false, true]];
    let mut cuts = 0;
    let must_lose = !is_through && zeroes == 0;
    while cuts < 9 || must_lose && machine.goes_on(cuts, 9) {
        machine.connect();
        machine.work(150);
        machine.cut_with(|number| kinds[cuts as usize % kinds.len()][number]);
        cuts += 1;
        machine.connect();
        machine.settle();
        machine.disconnect();
    }
    let failures = machine.load.failures;
    assert_eq!((failures.flushes, failures.others), (0, 0), "{}", machine.daemon.log());
    assert!(machine.load.lost == 0 || !is_through, "only a write cache loses writes");
    assert!(machine.load.lost > 0 || !must_lose, "the cuts take writes");
    tell(&machine.daemon, "flush");
    assert_eq!(number(&machine.daemon, "dirty_bytes"), 0);
    machine.load.is_in(&disk.durable()).expect("the drive alone has everything, and durable");
}

#[test]
fn nothing_durable_is_lost_by_power_cuts() {
    survives_power_cuts("write-back", false, 0);
}

#[test]
fn nothing_durable_is_lost_by_power_cuts_with_zeroes() {
    survives_power_cuts("write-back", false, 25);
}

#[test]
fn nothing_is_lost_by_power_cuts_without_a_write_cache() {
    survives_power_cuts("write-back", true, 25);
}

#[test]
fn nothing_durable_is_lost_by_power_cuts_in_write_through() {
    survives_power_cuts("write-through", false, 25);
}

/// Detaches the function from a drive in use: the drive has everything then, and not before.
#[test]
fn a_detach_leaves_a_complete_drive() {
    let daemon = Daemon::start(&files("daemon", "mode = \"write-back\", rate = \"1MiB\""));
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    let data: Vec<u8> = (0..512 << 10).map(|at| (at / 512 * 7 + 1) as u8).collect();
    daemon.ok(&["target", "pause", "disk"]);
    for (index, piece) in data.chunks(64 << 10).enumerate() {
        disk.write(index as u64 * 128, piece).expect("it is in range");
    }
    assert!(number(&daemon, "cached_writes") >= 8, "{}", tell(&daemon, "status"));
    let image = || std::fs::read(daemon.folder.path().join("drive")).expect("the file");
    assert_eq!(number(&daemon, "dirty_bytes"), data.len() as u64);
    assert!(image().iter().all(|byte| *byte == 0), "the cache alone has it");
    daemon.ok(&["target", "resume", "disk"]);
    daemon.ok(&["function", "detach", "disk"]);
    assert!(image()[..data.len()] == data, "the drive alone has it");
    let mut read = vec![0; 64 << 10];
    disk.read(0, &mut read).expect("the drive goes on");
    assert!(read == data[..64 << 10]);
}

/// Starts a drive with the cache of another one, and with options that are wrong.
#[test]
fn a_wrong_cache_is_refused_in_words() {
    let mut daemon = Daemon::start(&files("daemon", "mode = \"write-back\""));
    {
        let mut host = daemon.host("disk");
        let mut disk = namespace(&mut host, 1);
        disk.flush().expect("nothing is wrong");
        // Nothing is written back until the end of the pause, over the crash and restarts.
        daemon.ok(&["target", "pause", "disk"]);
        (0..40).for_each(|line| disk.write(line * 64, &[7; 4096]).expect("it is in range"));
        assert_eq!(number(&daemon, "dirty_bytes"), 40 * 4096);
        daemon.crash();
    }
    let folder = daemon.folder.path().to_owned();
    let path = |name: &str| folder.join(name);
    std::fs::rename(path("drive"), path("former")).expect("it is there");
    std::fs::write(path("drive"), vec![0; SIZE]).expect("room");
    daemon.restart();
    let start = Instant::now();
    while !daemon.log().contains("the cache has writes of another drive") {
        assert!(start.elapsed() < LIMIT, "it is not refused: {}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    daemon.stop();
    std::fs::rename(path("former"), path("drive")).expect("it is there");
    daemon.restart();
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    for line in 0..40 {
        let mut read = [0; 4096];
        disk.read(line * 64, &mut read).expect("its drive is back");
        assert!(read == [7; 4096], "line {line}");
    }
    daemon.ok(&["target", "resume", "disk"]);
    tell(&daemon, "flush");
    assert_eq!(number(&daemon, "dirty_bytes"), 0);
    let image = std::fs::read(path("drive")).expect("the file");
    assert!((0..40).all(|line| image[line * 64 * 512..][..4096] == [7; 4096]), "it was written back");
    let create = |options: &str, below: &str, paths: &str| {
        let cache = format!(
            r#"{{ "kind": "uif", "function": "local-cache", "options": {{ {options} }},
                  "layers": [ {{ "target": "memory", "size": "2MiB" }} ] }}"#
        );
        let spec = format!(
            r#"{{ "name": "a", "namespaces": [ {{ "target": "memory", "size": "4MiB",
                  "functions": [ {cache}{below} ] {paths} }} ] }}"#
        );
        let file = daemon.folder.path().join("a.json");
        std::fs::write(&file, spec).expect("room");
        daemon.fails(&["drive", "create", "a", "--spec", &file.display().to_string()])
    };
    let mode = r#""mode": "write-back""#;
    let past = create(mode, "", r#", "paths": [ { "name": "past", "below": 1 } ]"#);
    assert!(past.contains("a classifier could send commands past local-cache"), "{past}");
    let below = create(mode, r#", { "kind": "uif", "function": "snapshot" }"#, "");
    assert!(below.contains("snapshot below local-cache can change data by itself"), "{below}");
    let none = create("", "", "");
    assert!(none.contains("mode is write-back or write-through"), "{none}");
}
