//! A daemon whose drives are on a drive of another daemon.

use crate::common::{Daemon, LIMIT, namespace, wait_for};
use sluice_host::{Controller, Deadline, DmaBuffer, QueueLayout, QueuePair, entry};
use sluice_nvme::Status;

const BLOCK: usize = 512;

/// Starts a daemon whose drive on a file is the device.
fn lower() -> Daemon {
    Daemon::start(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n",
    )
}

/// Returns a drive of that name on some blocks of the device.
fn drive(lower: &Daemon, name: &str, keys: &str) -> String {
    let socket = lower.socket("disk").display().to_string();
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\ntarget = \"nvme\"\n\
         nvme = {{ vfio_user = \"{socket}\", {keys} }}\n"
    )
}

pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let words = (0..length as u64 / 8).map(|i| (i ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    words.flat_map(u64::to_le_bytes).collect()
}

pub(crate) fn image(lower: &Daemon) -> Vec<u8> {
    std::fs::read(lower.folder.path().join("disk.img")).expect("the image")
}

#[test]
fn two_drives_share_one_device() {
    let lower = lower();
    let upper = Daemon::start(&format!(
        "{}{}",
        drive(&lower, "left", "blocks = 10000"),
        drive(&lower, "right", "first_block = 10000, passes = [\"read\", \"write\"]")
    ));
    let (mut left, mut right) = (upper.host("left"), upper.host("right"));
    let (mut left, mut right) = (namespace(&mut left, 1), namespace(&mut right, 1));
    assert_eq!((left.identity().nsze, right.identity().nsze), (10_000, (16 << 20) / 512 - 10_000));
    let [a, b] = [pattern(1, 10_000 * BLOCK), pattern(2, 1 << 20)];
    left.write(0, &a).expect("written");
    right.write(0, &b).expect("written");
    left.flush().expect("flushed");
    let denied = right.flush().expect_err("it does not pass").status().expect("a status");
    assert!(denied.same_code(Status::OPERATION_DENIED), "{denied:?}");
    let image = image(&lower);
    assert!(image[..10_000 * BLOCK] == a);
    assert!(image[10_000 * BLOCK..][..1 << 20] == b);
    let beyond = left.read(10_000, &mut [0; BLOCK]).expect_err("the other's").status().expect("a status");
    assert!(beyond.same_code(Status::LBA_OUT_OF_RANGE), "{beyond:?}");
}

#[test]
fn what_cannot_be_opened_says_why() {
    let lower = lower();
    let upper = Daemon::start(&format!(
        "{}{}{}{}",
        drive(&lower, "first", "blocks = 100"),
        drive(&lower, "overlaps", "first_block = 99"),
        drive(&lower, "beyond", "first_block = 30000, blocks = 10000"),
        drive(&lower, "absent", "namespace = 7, first_block = 100")
    ));
    for (name, why) in [
        ("overlaps", "another drive has some of these blocks: 100 from 0 on"),
        ("beyond", "the range is not inside namespace 1, which has 32768 blocks"),
        ("absent", "there is no active namespace 7"),
    ] {
        let shown = upper.ok(&["drive", "show", name]);
        assert!(shown.contains("failed") && shown.contains(why), "{shown}");
    }
    assert!(upper.ok(&["drive", "show", "first"]).contains("ready"));
    let complaint = upper.fails(&["drive", "resize", "first", "--size", "1MiB"]);
    assert!(complaint.contains("an nvme target has the size of its range"), "{complaint}");
    // A range is free again when its drive is gone, and so is the device when all are.
    let spec = upper.folder.path().join("spec.json");
    let socket = lower.socket("disk").display().to_string();
    let text = format!(
        r#"{{"name":"x","namespaces":[{{"target":"nvme","nvme":{{"vfio_user":"{socket}","first_block":200,"blocks":5}}}}]}}"#
    );
    std::fs::write(&spec, text).expect("room on the disk");
    for _ in 0..3 {
        upper.ok(&["drive", "create", "x", "--spec", &spec.display().to_string()]);
        upper.ok(&["drive", "delete", "x"]);
    }
}

/// Checks that the tool shows a device's counters and its events.
#[test]
fn a_device_is_watched() {
    let lower = lower();
    let upper = Daemon::start(&drive(&lower, "disk", "first_block = 64, blocks = 100"));
    let mut host = upper.host("disk");
    namespace(&mut host, 1).write(0, &pattern(1, BLOCK)).expect("written");
    let shown = upper.ok(&["drive", "show", "disk"]);
    assert!(shown.contains("FROM BLOCK") && shown.contains("there"), "{shown}");
    let view: serde_json::Value =
        serde_json::from_str(&upper.ok(&["drive", "show", "disk", "-o", "json"])).expect("JSON");
    let device = &view["devices"][0];
    assert_eq!((&device["first_block"], &device["connected"]), (&64.into(), &true.into()), "{view}");
    assert_eq!((&device["sent"], &device["completed"]), (&1.into(), &1.into()), "{view}");
    lower.ok(&["drive", "resize", "disk", "--size", "32MiB"]);
    wait_for("the event", || upper.log().contains("reports changed namespaces"));
    lower.ok(&["drive", "resize", "disk", "--size", "64MiB"]);
    wait_for("the next", || upper.ok(&["drive", "show", "disk", "-o", "json"]).contains("\"events\": 2"));
}

/// Commands of one guest, each with a page of its own.
pub(crate) struct Load {
    queue: QueuePair,
    memory: DmaBuffer,
    pub(crate) round: u64,
}

pub(crate) const PAGES: usize = 64;

impl Load {
    pub(crate) fn new(host: &mut Controller) -> Self {
        let queue = host.create_queue_pair(2, QueueLayout::default(), None).expect("a queue pair");
        let memory = host.memory().allocate(PAGES * 4096).expect("memory");
        Self { queue, memory, round: 0 }
    }

    pub(crate) fn content(round: u64, page: usize) -> Vec<u8> {
        pattern(round << 8 | page as u64, 4096)
    }

    pub(crate) fn write_all(&mut self) {
        self.round += 1;
        for page in 0..PAGES {
            self.memory.region().write(page * 4096, &Self::content(self.round, page));
            let data = self.memory.range(page * 4096, 4096);
            self.queue.submit_prp(entry::write(1, page as u64 * 8, 8), data).expect("room");
        }
        self.queue.ring().expect("rung");
    }

    pub(crate) fn finish(&mut self) {
        let deadline = Deadline::after(LIMIT, "the commands");
        while self.queue.in_flight() > 0 {
            self.queue.reap(|completion| assert!(completion.status().is_success()));
            self.queue.ring().expect("rung");
            deadline.check().expect("in time");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// Kills the device's daemon again and again, with commands in flight. The guest sees a pause and no error,
/// and every acknowledged write is there.
#[test]
fn the_device_may_be_killed_under_load() {
    let mut lower = lower();
    let upper = Daemon::start(&drive(&lower, "disk", "first_block = 64"));
    let mut host = upper.host("disk");
    let mut load = Load::new(&mut host);
    for _ in 0..8 {
        load.write_all();
        lower.crash();
        lower.restart();
        load.finish();
        let image = image(&lower);
        for page in 0..PAGES {
            let there = &image[64 * BLOCK + page * 4096..][..4096];
            assert!(there == Load::content(load.round, page), "round {}, page {page}", load.round);
        }
    }
    let mut disk = namespace(&mut host, 1);
    disk.write(3, &pattern(9, BLOCK)).expect("written");
    wait_for("the log", || upper.log().contains("an NVMe device is there again"));
}
