//! A thin pool on a file under drives of two reactors: data outlives the daemon, and a full pool is grown.

use crate::common::{BINARY, Daemon, namespace, wait_for};
use crate::load::block_on;
use crate::upgrade::script;
use sluice_api::SharedList;
use sluice_api::client::Client;
use sluice_control::drives::SharedView;
use sluice_host::Namespace;
use sluice_nvme::Status;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const EXTENT: usize = 64 << 10;
const BLOCKS: u64 = EXTENT as u64 / 512;

fn declare(daemon: &Daemon, size: &str) {
    daemon.declare("cores = [0, 1]", &declaration(daemon, size, "fail"));
}

/// Returns a pool of this size with two drives.
fn declaration(daemon: &Daemon, size: &str, on_full: &str) -> String {
    let path = daemon.folder.path().join("pool.img");
    let pool = format!(
        "[[shared]]\nname = \"thin\"\ntype = \"thin\"\npath = \"{}\"\nsize = \"{size}\"\n",
        path.display()
    );
    let drive = |number: usize| {
        format!(
            "[[drive]]\nname = \"disk{number}\"\nreactor = {number}\n[[drive.namespace]]\ntarget = \"thin\"\n\
             shared = \"thin\"\nvolume = \"v{number}\"\nsize = \"1TiB\"\non_full = \"{on_full}\"\n"
        )
    };
    format!("{pool}{}{}", drive(0), drive(1))
}

fn pool(daemon: &Daemon) -> SharedView {
    let list: SharedList = block_on(Client::new(daemon.api()).get("/v1/shared")).expect("an answer");
    let [pool] = list.shared.try_into().expect("there is one");
    pool
}

/// Writes an extent; returns whether the pool had room for it.
fn write(disk: &mut Namespace, extent: u64, byte: u8) -> bool {
    match disk.write(extent * BLOCKS, &[byte; EXTENT]) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.status(), Some(Status::CAPACITY_EXCEEDED));
            false
        }
    }
}

fn check(disk: &mut Namespace, extent: u64, byte: u8) {
    let mut data = vec![0xee; EXTENT];
    disk.read(extent * BLOCKS, &mut data).expect("it reads");
    assert!(data.iter().all(|found| *found == byte), "extent {extent} is not all {byte}");
}

#[test]
fn a_thin_pool_outlives_a_killed_daemon_and_a_full_one_is_grown() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    declare(&daemon, "4MiB");
    daemon.restart();
    let size = pool(&daemon).size.0;
    assert_eq!((pool(&daemon).free.0, pool(&daemon).users), (size, 2));
    let mut hosts = [daemon.host("disk0"), daemon.host("disk1")];
    let [first, second] = &mut hosts;
    let (mut first, mut second) = (namespace(first, 1), namespace(second, 1));
    // Far ends of a large volume take one extent each.
    assert!(write(&mut first, 0, 1) && write(&mut first, (1 << 24) - 1, 2));
    let mut count = 0;
    while write(&mut second, count * 9, 3) {
        count += 1;
    }
    assert_eq!((count + 2) * EXTENT as u64, size);
    check(&mut second, 5, 0);
    let used: Vec<u64> = pool(&daemon).volumes.iter().map(|volume| volume.allocated.0).collect();
    assert_eq!(used, [2 * EXTENT as u64, count * EXTENT as u64]);
    let message = daemon.ok(&["shared", "list"]);
    let volume = message.lines().find(|line| line.starts_with("v0 ")).expect("the volumes are listed");
    assert_eq!(volume.split_whitespace().collect::<Vec<_>>(), ["v0", "thin", "1TiB", "128KiB", "-", "yes"]);
    let metrics = block_on(Client::new(daemon.api()).get_text("/metrics")).expect("an answer");
    for line in [
        format!("sluice_shared_size_bytes{{shared=\"thin\",type=\"thin\"}} {size}"),
        "sluice_shared_users{shared=\"thin\",type=\"thin\"} 2".to_owned(),
        "sluice_volume_allocated_bytes{shared=\"thin\",volume=\"v0\"} 131072".to_owned(),
        format!("sluice_volume_size_bytes{{shared=\"thin\",volume=\"v1\"}} {}", 1_u64 << 40),
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
    // Another drive cannot have the same volume.
    let twice = r#"{"name": "more", "namespaces": [
        {"target": "thin", "shared": "thin", "volume": "v0", "size": "1GiB"}]}"#;
    let file = daemon.folder.path().join("more.json");
    std::fs::write(&file, twice).expect("room on the disk");
    let message = daemon.fails(&["drive", "create", "more", "--spec", &file.display().to_string()]);
    assert!(message.contains("volume `v0` is in use by another namespace"), "{message}");
    wait_for("the event of a full pool", || daemon.ok(&["events"]).contains("of the pool thin are left"));
    drop((first, second, hosts));
    daemon.crash();
    declare(&daemon, "8MiB");
    daemon.restart();
    let grown = pool(&daemon);
    assert_eq!((grown.size.0, grown.free.0), (size + (4 << 20), 4 << 20));
    let mut hosts = [daemon.host("disk0"), daemon.host("disk1")];
    let [first, second] = &mut hosts;
    let (mut first, mut second) = (namespace(first, 1), namespace(second, 1));
    check(&mut first, 0, 1);
    check(&mut first, (1 << 24) - 1, 2);
    (0..count).for_each(|extent| check(&mut second, extent * 9, 3));
    assert!(write(&mut first, 7, 4));
    second.deallocate(&[(0, BLOCKS as u32)]).expect("it is quick");
    check(&mut second, 0, 0);
    check(&mut first, 7, 4);
}

/// Writes `count` extents of a drive one after the other, and returns the longest time of one.
fn write_all(daemon: &Daemon, drive: &str, count: u64, byte: u8) -> JoinHandle<Duration> {
    let mut host = daemon.host(drive);
    std::thread::spawn(move || {
        let mut disk = namespace(&mut host, 1);
        let mut longest = Duration::ZERO;
        for extent in 0..count {
            let began = Instant::now();
            assert!(write(&mut disk, extent, byte), "no write fails");
            longest = longest.max(began.elapsed());
        }
        for extent in 0..count {
            check(&mut disk, extent, byte);
        }
        longest
    })
}

#[test]
fn a_full_pool_grows_under_two_drives_whose_writes_wait() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("cores = [0, 1]", &declaration(&daemon, "4MiB", "park"));
    daemon.restart();
    let size = pool(&daemon).size.0;
    let before = size;
    // Both together take twice the pool.
    let count = size / EXTENT as u64;
    let writers = [write_all(&daemon, "disk0", count, 1), write_all(&daemon, "disk1", count, 2)];
    wait_for("a full pool", || pool(&daemon).free.0 == 0);
    std::thread::sleep(Duration::from_millis(300));
    assert!(writers.iter().all(|writer| !writer.is_finished()), "the writes wait");
    // Refused sizes change nothing.
    let path = daemon.folder.path().join("pool.img");
    for (size, words) in [("1MiB", "only grows"), ("5000001", "is not possible"), ("1TiB", "has room for")] {
        let message = daemon.fails(&["shared", "grow", "thin", "--size", size]);
        assert!(message.contains(words), "{message}");
        assert_eq!(path.metadata().expect("it is there").len(), 4 << 20);
        assert_eq!(pool(&daemon).size.0, before);
    }
    let message = daemon.fails(&["shared", "grow", "thinn", "--size", "8MiB"]);
    assert!(message.contains("did you mean `thin`?"), "{message}");
    daemon.ok(&["shared", "grow", "thin", "--size", "10MiB"]);
    let longest = writers.map(|writer| writer.join().expect("no write has failed"));
    println!("longest write of each drive, while the pool was full: {longest:?}");
    let grown = pool(&daemon);
    assert_eq!(grown.size.0, size + (6 << 20));
    let allocated: u64 = grown.volumes.iter().map(|volume| volume.allocated.0).sum();
    assert_eq!(allocated, 2 * count * EXTENT as u64);
    // The description of the running daemon has the new size, and that of before is refused.
    let exported = daemon.ok(&["export"]);
    assert!(exported.contains("size = \"10MiB\""), "{exported}");
    let file = daemon.folder.path().join("applied.toml");
    std::fs::write(&file, declaration(&daemon, "4MiB", "park")).expect("room");
    let message = daemon.fails(&["apply", "-f", &file.display().to_string()]);
    assert!(message.contains("4MiB is less than the 10MiB that the pool has"), "{message}");
    // A larger size is applied, after it was shown.
    std::fs::write(&file, declaration(&daemon, "12MiB", "park")).expect("room");
    let done = daemon.run(&["diff", "-f", &file.display().to_string()]);
    let message = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(message.contains("size 10MiB -> 12MiB"), "{message}");
    daemon.ok(&["apply", "-f", &file.display().to_string()]);
    assert_eq!(pool(&daemon).size.0, size + (8 << 20));
    // A file that became larger by itself is taken as a whole.
    std::fs::File::options().write(true).open(&path).expect("it is there").set_len(14 << 20).expect("room");
    daemon.ok(&["shared", "grow", "thin"]);
    assert_eq!(pool(&daemon).size.0, size + (10 << 20));
    // The next daemon has the size, although its configuration file has the first one.
    daemon.crash();
    let config = daemon.config().display().to_string();
    // The kernel keeps the lock of the killed daemon for a moment.
    wait_for("a good check", || daemon.run(&["serve", "--check", "-c", &config]).status.success());
    daemon.restart();
    assert_eq!(pool(&daemon).size.0, size + (10 << 20));
    let mut host = daemon.host("disk1");
    let mut disk = namespace(&mut host, 1);
    (0..count).for_each(|extent| check(&mut disk, extent, 2));
}

#[test]
fn a_pool_that_does_not_open_keeps_no_other_drive_and_is_opened_again() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let path = daemon.folder.path().join("pool.img");
    std::fs::write(&path, vec![7; 2 << 20]).expect("room");
    let other = "[[drive]]\nname = \"other\"\n[[drive.namespace]]\ntarget = \"memory\"\nsize = \"1MiB\"\n";
    daemon.declare("cores = [0, 1]", &format!("{}{other}", declaration(&daemon, "4MiB", "fail")));
    let config = daemon.folder.path().join("sluice.toml").display().to_string();
    let message = daemon.fails(&["serve", "--check", "-c", &config]);
    assert!(message.contains("shared `thin`: the pool `thin` on"), "{message}");
    assert!(message.contains("it holds something else than a pool"), "{message}");
    daemon.restart();
    namespace(&mut daemon.host("other"), 1).write(0, &[1; 512]).expect("it runs");
    let problem = pool(&daemon).problem.expect("a reason");
    assert!(problem.contains("it holds something else than a pool"), "{problem}");
    let listed = daemon.ok(&["shared", "list"]);
    assert!(listed.contains("does not open: it holds something else than a pool"), "{listed}");
    for drive in ["disk0", "disk1"] {
        let shown = daemon.ok(&["drive", "show", drive]);
        assert!(shown.contains("does not open: it holds something else than a pool"), "{shown}");
    }
    assert_eq!(std::fs::read(&path).expect("it is there"), vec![7; 2 << 20], "not a byte is changed");
    let message = daemon.fails(&["shared", "retry", "thin"]);
    assert!(message.contains("check path and size"), "{message}");
    daemon.fails(&["shared", "grow", "thin", "--size", "8MiB"]);
    std::fs::File::options().write(true).truncate(true).open(&path).expect("it is there");
    daemon.ok(&["shared", "retry", "thin"]);
    let mut host = daemon.host("disk0");
    assert!(write(&mut namespace(&mut host, 1), 0, 1));
    assert_eq!((pool(&daemon).users, pool(&daemon).problem), (2, None));
}

/// Upgrades the daemon while two drives of a pool allocate extents and give some back, also to successors that fail after
/// they have opened the pool.
#[test]
fn a_pool_goes_to_another_process_with_all_of_its_drives() {
    const COUNT: u64 = 200;
    let mut daemon = Daemon::start("");
    daemon.stop();
    declare(&daemon, "32MiB");
    daemon.restart();
    // Each round takes the extents again that it has given back.
    let work = |drive: &str, byte: u8| {
        let mut host = daemon.host(drive);
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut disk = namespace(&mut host, 1);
            let mut round = 0_u8;
            while !ends.load(Relaxed) || round == 0 {
                for extent in 0..COUNT {
                    assert!(write(&mut disk, extent, byte + round % 2), "there is room");
                    if extent % 3 == 0 {
                        disk.deallocate(&[(extent * BLOCKS, BLOCKS as u32)]).expect("it is quick");
                    }
                }
                for extent in 0..COUNT {
                    check(&mut disk, extent, if extent % 3 == 0 { 0 } else { byte + round % 2 });
                }
                round = round.wrapping_add(1).max(1);
            }
            disk.flush().expect("nothing is lost");
            (host, byte + (round - 1) % 2)
        });
        (is_over, thread)
    };
    let works = [work("disk0", 1), work("disk1", 101)];
    (0..5).for_each(|_| daemon.upgrade(&[]));
    let mut outcomes = BTreeSet::new();
    for count in (60..400).step_by(4) {
        let text = format!("exec prlimit --nofile={count} {BINARY} \"$@\"");
        match daemon.try_upgrade(&["--binary", &script(&daemon, "version", &text)]) {
            Ok(_) => break,
            Err(why) => outcomes.insert(why),
        };
    }
    assert!(
        outcomes.iter().any(|why| why.contains("drive disk1")),
        "the pool was open by then: {outcomes:?}"
    );
    let ended: Vec<_> = works
        .into_iter()
        .map(|(is_over, thread)| {
            is_over.store(true, Relaxed);
            thread.join().expect("the drive is well")
        })
        .collect();
    let bytes: Vec<u8> = ended.iter().map(|(_, byte)| *byte).collect();
    let used: u64 = pool(&daemon).volumes.iter().map(|volume| volume.allocated.0).sum();
    assert_eq!(used, 2 * (COUNT - COUNT.div_ceil(3)) * EXTENT as u64);
    drop(ended);
    assert!(!daemon.log().contains("ERROR"), "{}", daemon.log());
    // The work of all these processes is whole.
    daemon.crash();
    daemon.restart();
    for (drive, byte) in ["disk0", "disk1"].into_iter().zip(bytes) {
        let mut host = daemon.host(drive);
        let mut disk = namespace(&mut host, 1);
        (0..COUNT).for_each(|extent| check(&mut disk, extent, if extent % 3 == 0 { 0 } else { byte }));
    }
    assert_eq!(pool(&daemon).volumes.iter().map(|volume| volume.allocated.0).sum::<u64>(), used);
}
