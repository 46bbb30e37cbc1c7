//! Volumes of a thin pool: cloned under load, listed and deleted.

use crate::common::{BINARY, Daemon, namespace};
use crate::load::block_on;
use sluice_api::VolumeList;
use sluice_api::client::Client;
use sluice_control::drives::VolumeView;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const EXTENT: usize = 64 << 10;
const BLOCKS: u64 = EXTENT as u64 / 512;

/// Extents that the load writes in turn.
const EXTENTS: u64 = 16;

fn start() -> Daemon {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let path = daemon.folder.path().join("pool.img");
    // More extents than one step of the home looks at.
    let pool = format!(
        "[[shared]]\nname = \"thin\"\ntype = \"thin\"\npath = \"{}\"\nsize = \"8GiB\"\n",
        path.display()
    );
    daemon.declare("cores = [0, 1]", &pool);
    daemon.restart();
    daemon
}

fn create(daemon: &Daemon, drive: &str, volume: &str) -> String {
    create_with(daemon, drive, volume, "")
}

/// Creates a drive with these functions over a volume.
fn create_with(daemon: &Daemon, drive: &str, volume: &str, functions: &str) -> String {
    let file = daemon.folder.path().join("drive.json");
    let spec = format!(
        r#"{{"name": "{drive}", "namespaces": [{{"target": "thin", "shared": "thin", "volume": "{volume}",
            "size": "256MiB", "functions": [{functions}]}}]}}"#
    );
    std::fs::write(&file, spec).expect("room");
    daemon.ok(&["drive", "create", drive, "--spec", &file.display().to_string()])
}

fn volumes(daemon: &Daemon) -> Vec<VolumeView> {
    let list: VolumeList =
        block_on(Client::new(daemon.api()).get("/v1/shared/thin/volumes")).expect("an answer");
    list.volumes
}

/// Writes with numbers from 1 on, one after the other, to the extents in turn.
struct Load {
    acknowledged: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    /// Returns the longest time of a write.
    thread: JoinHandle<Duration>,
}

impl Load {
    /// Starts the load. It ends by itself if the daemon may die.
    fn start(daemon: &Daemon, drive: &str, may_fail: bool) -> Self {
        let mut host = daemon.host(drive);
        let (acknowledged, ends) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, stops) = (Arc::clone(&acknowledged), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            let (mut disk, mut longest) = (namespace(&mut host, 1), Duration::ZERO);
            for number in 1_u64.. {
                if stops.load(SeqCst) {
                    break;
                }
                let data: Vec<u8> = number.to_le_bytes().repeat(EXTENT / 8);
                let began = Instant::now();
                match disk.write(number % EXTENTS * BLOCKS, &data) {
                    Ok(()) => {}
                    Err(_) if may_fail => break,
                    Err(error) => panic!("no write fails: {error:?}"),
                }
                longest = longest.max(began.elapsed());
                count.store(number, SeqCst);
            }
            longest
        });
        Self { acknowledged, ends, thread }
    }

    fn wait(&self, writes: u64) {
        let until = self.acknowledged.load(SeqCst) + writes;
        while self.acknowledged.load(SeqCst) < until {
            assert!(!self.thread.is_finished(), "the load goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Checks that a drive has all writes up to one between these numbers, and no later one.
fn check_prefix(daemon: &Daemon, drive: &str, before: u64, after: u64) {
    let mut host = daemon.host(drive);
    let mut disk = namespace(&mut host, 1);
    let mut found = Vec::new();
    for extent in 0..EXTENTS {
        let mut data = vec![0xee; EXTENT];
        disk.read(extent * BLOCKS, &mut data).expect("it reads");
        let number = u64::from_le_bytes(data[..8].try_into().expect("8 bytes"));
        assert_eq!(data, number.to_le_bytes().repeat(EXTENT / 8), "a write is there as a whole");
        found.push(number);
    }
    let last = *found.iter().max().expect("some");
    assert!((before..=after).contains(&last), "{last} is not in {before}..={after}");
    for (extent, number) in (0..).zip(found) {
        let expected = (0..=last).rev().find(|number| number % EXTENTS == extent).unwrap_or(0);
        assert_eq!(number, expected, "extent {extent} of a clone with {last} writes");
    }
}

#[test]
fn clones_under_load_have_all_writes_of_before_and_none_of_later() {
    let mut daemon = start();
    create(&daemon, "disk", "source");
    let load = Load::start(&daemon, "disk", false);
    load.wait(40);
    let mut clones = Vec::new();
    for number in 0..12 {
        load.wait(number);
        let before = load.acknowledged.load(SeqCst);
        let name = format!("clone {number}");
        daemon.ok(&["shared", "volume", "clone", "thin", "source", &name]);
        clones.push((name, before, load.acknowledged.load(SeqCst) + 1));
    }
    load.wait(40);
    for (number, (name, before, after)) in clones.iter().enumerate() {
        create(&daemon, &format!("clone{number}"), name);
        check_prefix(&daemon, &format!("clone{number}"), *before, *after);
    }
    load.ends.store(true, SeqCst);
    println!("longest write under 12 clones: {:?}", load.thread.join().expect("no write has failed"));
    // A clone is there after the death of the daemon, and its source goes on.
    daemon.crash();
    daemon.restart();
    for (number, (_, before, after)) in clones.iter().enumerate() {
        check_prefix(&daemon, &format!("clone{number}"), *before, *after);
    }
}

#[test]
fn volumes_are_listed_with_their_bytes_and_deleted_without_a_drive() {
    let daemon = start();
    create(&daemon, "disk", "source");
    // A drive that no host has had, and that sleeps.
    daemon.ok(&["shared", "volume", "clone", "thin", "source", "early"]);
    daemon.ok(&["shared", "volume", "delete", "thin", "early"]);
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    (0..3).for_each(|extent| disk.write(extent * BLOCKS, &[1; EXTENT]).expect("room"));
    for number in 0..100 {
        daemon.ok(&["shared", "volume", "clone", "thin", "source", &format!("c{number}")]);
    }
    disk.write(0, &[2; EXTENT]).expect("room");
    let bytes = |volume: &VolumeView| {
        let exclusive = volume.exclusive.expect("it is counted").0;
        (volume.allocated.0 / EXTENT as u64, exclusive / EXTENT as u64, volume.in_use)
    };
    let listed = volumes(&daemon);
    assert_eq!(listed.len(), 101);
    assert_eq!((bytes(&listed[0]), bytes(&listed[100])), ((3, 1, true), (3, 0, false)));
    let text = daemon.ok(&["shared", "volume", "list", "thin"]);
    let line = text.lines().find(|line| line.starts_with("source ")).expect("it is listed");
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        ["source", "thin", "256MiB", "192KiB", "64KiB", "yes"]
    );
    for (arguments, words) in [
        (["clone", "thin", "source", "c7"].as_slice(), "there is a volume `c7` already"),
        (&["clone", "thin", "sauce", "d"], "there is no volume `sauce`"),
        (&["delete", "thin", "sauce"], "there is no volume `sauce`"),
        (&["delete", "thin", "source"], "volume `source` is that of drive `disk`"),
        (&["list", "thick"], "there is no shared object `thick`"),
    ] {
        let message = daemon.fails(&[&["shared", "volume"], arguments].concat());
        assert!(message.contains(words), "{message}");
    }
    drop((disk, host));
    for number in 1..100 {
        daemon.ok(&["shared", "volume", "delete", "thin", &format!("c{number}")]);
    }
    // The volume of a deleted drive is deleted at once, although the pool takes its credit back in steps.
    daemon.ok(&["drive", "delete", "disk", "--force"]);
    daemon.ok(&["shared", "volume", "delete", "thin", "source"]);
    let listed = volumes(&daemon);
    assert_eq!(listed.len(), 1);
    assert_eq!(bytes(&listed[0]), (3, 3, false));
}

/// Runs functions over volumes: a mirror with a file, and encryption whose volume is cloned.
#[test]
fn mirrors_and_encrypted_drives_lie_on_volumes() {
    let mut daemon = start();
    let folder = daemon.folder.path().display().to_string();
    let key = daemon.folder.path().join("key");
    std::fs::write(&key, (0..64).collect::<Vec<u8>>()).expect("room");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("it is there");
    let layer = |name: &str, size: &str| {
        format!(r#"{{"target": "file", "path": "{folder}/{name}", "size": "{size}"}}"#)
    };
    let mirror = format!(
        r#"{{"kind": "uif", "function": "mirror", "place": "daemon", "layers": [{}, {}]}}"#,
        layer("second.img", "256MiB"),
        layer("mirror.log", "4MiB")
    );
    let encrypt =
        format!(r#"{{"kind": "uif", "function": "encrypt", "options": {{"key_file": "{folder}/key"}}}}"#);
    create_with(&daemon, "mirror", "m", &mirror);
    create_with(&daemon, "secret", "s", &encrypt);
    let loads = ["mirror", "secret"].map(|drive| Load::start(&daemon, drive, true));
    loads.iter().for_each(|load| load.wait(40));
    let before = loads[1].acknowledged.load(SeqCst);
    daemon.ok(&["shared", "volume", "clone", "thin", "s", "s2"]);
    let after = loads[1].acknowledged.load(SeqCst) + 1;
    loads.iter().for_each(|load| load.wait(20));
    daemon.crash();
    let last = loads.map(|load| {
        let last = load.acknowledged.load(SeqCst);
        load.thread.join().expect("it ends with the daemon");
        last
    });
    daemon.restart();
    check_prefix(&daemon, "mirror", last[0], last[0] + 1);
    check_prefix(&daemon, "secret", last[1], last[1] + 1);
    create_with(&daemon, "copy", "s2", &encrypt);
    check_prefix(&daemon, "copy", before, after);
}

/// Kills the daemon at any moment of a clone: the clone is there as a whole, or not at all, and the source has all writes.
#[test]
fn a_killed_daemon_leaves_a_whole_clone_or_none() {
    let mut daemon = start();
    let mut found = [0, 0];
    for round in 0..12_u64 {
        let (drive, source, clone) = (format!("disk{round}"), format!("s{round}"), format!("c{round}"));
        create(&daemon, &drive, &source);
        let load = Load::start(&daemon, &drive, true);
        load.wait(20);
        let before = load.acknowledged.load(SeqCst);
        let mut order = Command::new(BINARY);
        order.args(["--api", &daemon.api().display().to_string()]);
        order.args(["shared", "volume", "clone", "thin", &source, &clone]).stdout(Stdio::null());
        let mut order = order.stderr(Stdio::null()).spawn().expect("it runs");
        std::thread::sleep(Duration::from_millis(round * 4));
        daemon.crash();
        let is_made = order.wait().expect("it ends").success();
        let last = load.acknowledged.load(SeqCst);
        load.thread.join().expect("it ends with the daemon");
        daemon.restart();
        // One write may have been under way.
        check_prefix(&daemon, &drive, last, last + 1);
        let is_there = volumes(&daemon).iter().any(|volume| volume.name == clone);
        assert!(is_there || !is_made, "an acknowledged clone is there");
        found[usize::from(is_there)] += 1;
        if is_there {
            create(&daemon, &format!("copy{round}"), &clone);
            check_prefix(&daemon, &format!("copy{round}"), before, last + 1);
        }
        daemon.ok(&["drive", "delete", &drive, "--force"]);
    }
    println!("clones that were not there, and that were: {found:?}");
}
