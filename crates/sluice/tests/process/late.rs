//! Writes that are still in the disk when their connection is gone.
//!
//! The host sends such a write again on another connection, and then a newer one to the same blocks. The
//! first must not end after them. The disk is a [disk with a volatile cache](crate::volatile) that holds the
//! first write.

use crate::common::{Daemon, namespace, wait_for};
use crate::nvme::pattern;
use crate::tcp_host::{Host, Link, write_in_capsule};
use crate::volatile::{Disk, LoopDevice};
use sluice_host::Controller;
use sluice_nvme::Status;
use sluice_nvme_tcp::Digests;
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

const NQN: &str = "nqn.2026-11.example.sluice:late";

/// Bytes of the drives.
const SIZE: usize = 16 << 20;

/// Bytes of a write.
const PART: usize = 4096;

/// First block of commands that do not overlap the tested writes.
const ELSEWHERE: u64 = 4096;

/// Number of commands that a test sends, to see whether another is answered meanwhile.
const TRIES: u16 = 50;

/// A daemon with two addresses, whose disk can hold writes.
struct Far {
    addresses: [SocketAddr; 2],
    daemon: Daemon,
    _device: LoopDevice,
    disk: Disk,
}

impl Far {
    /// Starts the daemon. Returns none where there can be no such disk.
    fn start() -> Option<Self> {
        let disk = Disk::new(SIZE)?;
        let device = LoopDevice::over(&disk)?;
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let addresses = [free(), free()];
        let daemon = Daemon::start(&format!(
            "[tcp]\nlisten = [\"{}\", \"{}\"]\n[[drive]]\nname = \"disk\"\n[drive.tcp]\nnqn = \"{NQN}\"\n\
             [[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\n",
            addresses[0],
            addresses[1],
            device.path.display()
        ));
        Some(Self { addresses, daemon, _device: device, disk })
    }

    fn host(&self, path: usize, queues: u16) -> Host {
        Host::start(self.addresses[path], NQN, Digests::NONE, queues)
    }

    /// Sends a write, and holds it in the disk.
    fn hold_write(&self, link: &mut Link, data: &[u8]) {
        self.disk.hold_next(1);
        link.submit(&write_in_capsule(1, 0, PART as u32), data);
        wait_for("a write in the disk", || self.disk.held() == 1);
    }

    fn content(&self) -> Vec<u8> {
        self.disk.read()[..PART].to_vec()
    }
}

/// Sends the write again and then a newer one, as a host does: each when the one before is answered.
/// Meanwhile the first one ends.
fn overtake(far: &Far, link: &mut Link, [first, second]: [&[u8]; 2]) {
    link.submit(&write_in_capsule(2, 0, PART as u32), first);
    let mut is_written = false;
    for cid in 100..100 + TRIES {
        let other = write_in_capsule(cid, ELSEWHERE, PART as u32);
        link.submit(&other, first);
        while let response = link.response()
            && response.cid != cid
        {
            assert_eq!((response.cid, response.status()), (2, Status::SUCCESS));
            is_written = true;
        }
    }
    if is_written {
        assert_eq!(link.write(3, 0, second), Status::SUCCESS);
    }
    far.disk.let_go();
    if !is_written {
        let answer = link.response();
        assert_eq!((answer.cid, answer.status()), (2, Status::SUCCESS));
        assert_eq!(link.write(3, 0, second), Status::SUCCESS);
    }
    assert_eq!(link.read(4, 0, PART as u32), Ok(second.to_vec()));
    wait_for("the newer write", || far.content() == second);
}

/// Checks a path by another controller at another address. The new connection exists before the old one is
/// lost.
#[test]
fn a_newer_write_on_another_path_survives_a_late_one() {
    let Some(far) = Far::start() else { return };
    let [first, second] = [pattern(1, PART), pattern(2, PART)];
    let mut lost = far.host(0, 1);
    let mut other = far.host(1, 1);
    far.hold_write(&mut lost.io[0], &first);
    drop(lost);
    wait_for("the end of the association", || far.daemon.log().contains("a host is gone"));
    overtake(&far, &mut other.io[0], [&first, &second]);
}

/// Checks a host that connects again while its write is in the disk, which may be for ever.
#[test]
fn a_newer_write_of_a_new_association_survives_a_late_one() {
    let Some(far) = Far::start() else { return };
    let [first, second] = [pattern(3, PART), pattern(4, PART)];
    let mut lost = far.host(0, 1);
    far.hold_write(&mut lost.io[0], &first);
    drop(lost);
    let mut again = far.host(0, 1);
    overtake(&far, &mut again.io[0], [&first, &second]);
}

/// Checks a host that loses one of two I/O queues.
#[test]
fn a_newer_write_on_another_queue_survives_a_late_one() {
    let Some(far) = Far::start() else { return };
    let [first, second] = [pattern(5, PART), pattern(6, PART)];
    let mut host = far.host(0, 2);
    let mut lost = host.io.remove(0);
    far.hold_write(&mut lost, &first);
    lost.stream.shutdown(std::net::Shutdown::Write).expect("it is open");
    assert!(lost.next().is_none(), "the daemon closes it, too");
    overtake(&far, &mut host.io[0], [&first, &second]);
}

/// Starts a daemon with a drive whose data is on the far one, by both addresses.
fn near(far: &Far) -> Daemon {
    let [one, other] = far.addresses;
    Daemon::start(&format!(
        "[[drive]]\nname = \"near\"\n[[drive.namespace]]\ntarget = \"nvme-tcp\"\nnvme_tcp = {{ subnqn = \"{NQN}\", \
         addresses = [ \"{one}\", \"{other}\" ], timeout_s = 1 }}\n"
    ))
}

/// Starts a host of that drive, which writes one part after the other.
fn write_in_turn(mut host: Controller, parts: [Vec<u8>; 2]) -> JoinHandle<()> {
    let mut disk = namespace(&mut host, 1);
    std::thread::spawn(move || {
        let _host = host;
        parts.iter().for_each(|part| disk.write(0, part).expect("written"));
        disk.flush().expect("flushed");
    })
}

/// Gives the host as long as it may take to write on another path.
fn wait_a_little(host: &JoinHandle<()>, near: &Daemon) {
    wait_for("a lost connection", || near.log().contains("an NVMe/TCP connection is lost"));
    for _ in 0..TRIES {
        if !host.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn two_daemons_with_two_paths_lose_no_newer_write_to_a_late_one() {
    let Some(far) = Far::start() else { return };
    let near = near(&far);
    let [first, second] = [pattern(7, PART), pattern(8, PART)];
    far.disk.hold_next(1);
    let host = write_in_turn(near.host("near"), [first, second.clone()]);
    wait_for("a write in the disk", || far.disk.held() == 1);
    wait_a_little(&host, &near);
    far.disk.let_go();
    host.join().expect("it writes");
    assert!(far.content() == second, "a flushed write was overtaken by an earlier one");
}

/// Checks a mirror whose member is lost with the write in its disk, and is taken back.
#[test]
fn a_mirror_over_two_daemons_has_equal_members_after_a_late_write() {
    let Some(far) = Far::start() else { return };
    let [one, other] = far.addresses;
    let near = Daemon::start(&format!(
        "[[drive]]\nname = \"near\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"near.img\"\nsize = \"16MiB\"\n\
         functions = [\n  {{ kind = \"uif\", function = \"mirror\", place = \"daemon\", layers = [\n    {{ target = \
         \"nvme-tcp\", nvme_tcp = {{ subnqn = \"{NQN}\", addresses = [ \"{one}\", \"{other}\" ], timeout_s = 1, \
         fast_io_fail_s = 1 }} }},\n    {{ target = \"file\", path = \"set.log\", size = \"4MiB\" }},\n  ] }},\n]\n"
    ));
    if !near.run(&["function", "tell", "near", "status"]).status.success() {
        near.ok(&["function", "tell", "near", "copy from 0"]);
    }
    let status = || -> serde_json::Value {
        serde_json::from_str(&near.ok(&["function", "tell", "near", "status"])).expect("JSON")
    };
    let [before, first, second] = [pattern(9, PART), pattern(10, PART), pattern(11, PART)];
    {
        let mut host = near.host("near");
        namespace(&mut host, 1).write(0, &before).expect("written");
        wait_for("a set in sync", || status()["state"] == "in sync");
    }
    far.disk.hold_next(1);
    let host = write_in_turn(near.host("near"), [first, second.clone()]);
    wait_for("a write in the disk", || far.disk.held() == 1);
    wait_a_little(&host, &near);
    far.disk.let_go();
    host.join().expect("it writes");
    wait_for("a set in sync", || status()["state"] == "in sync");
    assert!(far.content() == second, "in sync, and the members differ");
    let copy = std::fs::read(near.folder.path().join("near.img")).expect("it is there");
    assert!(copy[..PART] == second);
}

#[test]
fn the_disk_has_two_writes_at_once() {
    use rustix::fs::OFlags;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    let Some(disk) = Disk::new(SIZE) else { return };
    let Some(device) = LoopDevice::over(&disk) else { return };
    let mut options = std::fs::File::options();
    let direct = options.read(true).write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
    let open = direct.open(&device.path).expect("it is there");
    let write = |byte: u8| {
        let buffer = Aligned([byte; PART]);
        open.write_all_at(&buffer.0, 0)
    };
    disk.hold_next(1);
    std::thread::scope(|threads| {
        let late = threads.spawn(|| write(1));
        wait_for("a write in the disk", || disk.held() == 1);
        write(2).expect("written");
        assert!(disk.read()[..PART] == [2; PART]);
        disk.let_go();
        late.join().expect("it ends").expect("written");
    });
    assert!(disk.read()[..PART] == [1; PART], "the late write came last");
}

#[repr(align(4096))]
struct Aligned([u8; PART]);
