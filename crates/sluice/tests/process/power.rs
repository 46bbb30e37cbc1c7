//! Power cuts of a machine that a drive's data is on, while the daemon that serves the drive stays up.
//!
//! The far daemon has its file on a [disk with a volatile cache](crate::volatile). A power cut ends it with
//! SIGKILL, takes unsynced data from the disk, and starts it again with another boot identifier.

use crate::common::{Daemon, namespace, wait_for};
use crate::nvme::pattern;
use crate::volatile::{Disk, boot_id};
use sluice_nvme::{LogId, NSID_ALL};
use std::net::TcpListener;

const NQN: &str = "nqn.2026-11.example.sluice:far";
const HOST: &str = "nqn.2026-11.example.sluice:near";

/// Bytes of the drives.
const SIZE: usize = 16 << 20;

/// Bytes that a test writes at once.
const PART: usize = 64 << 10;

/// A daemon on another machine, which can lose its power.
pub(crate) struct Far {
    pub(crate) daemon: Daemon,
    pub(crate) disk: Disk,
    address: String,
    boots: u32,
}

impl Far {
    /// Starts the daemon. Returns none where there can be no such disk.
    fn start() -> Option<Self> {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        Self::start_at(None, &format!("127.0.0.1:{port}"), SIZE)
    }

    /// Starts the daemon at this address, in the namespaces of a process, with a disk of `size` bytes.
    pub(crate) fn start_at(inside: Option<u32>, address: &str, size: usize) -> Option<Self> {
        let disk = Disk::new(size)?;
        let drive = format!(
            "[tcp]\nlisten = [\"{address}\"]\n[[drive]]\nname = \"disk\"\n[drive.tcp]\nnqn = \"{NQN}\"\n\
             hosts = [\"{HOST}\"]\n[drive.vfio_user]\nsockets = 1\n\
             [[drive.namespace]]\ntarget = \"file\"\npath = \"{}\"\n",
            disk.path().display()
        );
        let daemon = Daemon::start_in(inside, &drive);
        Some(Self { daemon, disk, address: address.to_owned(), boots: 0 })
    }

    /// Cuts the machine's power, with the unsynced data, and starts the machine again.
    fn lose_power(&mut self) {
        self.go_down();
        self.come_up();
    }

    fn go_down(&mut self) {
        self.daemon.crash();
        self.disk.cut();
    }

    pub(crate) fn come_up(&mut self) {
        self.boots += 1;
        self.daemon.boot = Some(boot_id(self.daemon.folder.path(), self.boots));
        self.daemon.restart();
    }

    fn target(&self) -> String {
        self.target_with("")
    }

    /// Returns the keys of a target on this daemon, with further ones.
    pub(crate) fn target_with(&self, more: &str) -> String {
        let address = &self.address;
        let names = format!("subnqn = \"{NQN}\", hostnqn = \"{HOST}\"");
        format!("target = \"nvme-tcp\", nvme_tcp = {{ address = \"{address}\", {names}{more} }}")
    }

    fn has(&self, data: &[u8]) -> bool {
        self.disk.durable()[..data.len()] == *data
    }
}

/// Returns a drive on the far daemon alone.
fn plain(far: &Far) -> String {
    let lines = far.target().replacen(", ", "\n", 1);
    format!("[[drive]]\nname = \"near\"\n[[drive.namespace]]\n{lines}\n")
}

/// Returns a drive with two members and a log on this machine. The far daemon has the member of that number.
fn set(function: &str, far: &Far, number: usize) -> String {
    let near = "target = \"file\", path = \"near.img\", size = \"16MiB\"".to_owned();
    let [first, second] = if number == 0 { [far.target(), near] } else { [near, far.target()] };
    let first = match number {
        0 => first.replacen(", ", "\n", 1),
        _ => first.replace(", ", "\n"),
    };
    format!(
        "[[drive]]\nname = \"near\"\n[[drive.namespace]]\n{first}\nfunctions = [\n  {{ kind = \"uif\", function = \
         \"{function}\", place = \"daemon\", layers = [\n    {{ {second} }},\n    {{ target = \"file\", path = \
         \"set.log\", size = \"4MiB\" }},\n  ] }},\n]\n"
    )
}

/// Starts the near daemon with a new set. A remote member may have been used before, so an order chooses the
/// member to copy.
fn start_set(function: &str, far: &Far, number: usize) -> Daemon {
    let near = Daemon::start(&set(function, far, number));
    if !near.run(&["function", "tell", "near", "status"]).status.success() {
        near.ok(&["function", "tell", "near", "copy from 0"]);
    }
    near
}

fn status(near: &Daemon) -> serde_json::Value {
    serde_json::from_str(&near.ok(&["function", "tell", "near", "status"])).expect("JSON")
}

fn is_in_sync(near: &Daemon) -> bool {
    status(near)["state"] == "in sync"
}

#[test]
fn the_next_flush_fails_after_the_far_machine_lost_acknowledged_writes() {
    let Some(mut far) = Far::start() else { return };
    let near = Daemon::start(&plain(&far));
    let mut host = near.host("near");
    let mut disk = namespace(&mut host, 1);
    let [flushed, lost] = [pattern(1, PART), pattern(2, PART)];
    disk.write(0, &flushed).expect("written");
    disk.flush().expect("flushed");
    disk.write(0, &lost).expect("written");
    far.lose_power();
    disk.flush().expect_err("acknowledged writes are lost");
    let mut read = vec![0; PART];
    disk.read(0, &mut read).expect("read");
    assert!(read == flushed, "what was flushed is there");
    // The host has got the error, and goes on.
    disk.write(0, &lost).expect("written");
    disk.flush().expect("flushed");
    assert!(far.has(&lost));
    // Nothing is lost: no write was acknowledged since the flush.
    far.lose_power();
    disk.read(0, &mut read).expect("read");
    disk.flush().expect("nothing was lost");
    assert!(read == lost);
}

#[test]
fn a_flush_succeeds_after_the_far_daemon_alone_was_killed() {
    let Some(mut far) = Far::start() else { return };
    let near = Daemon::start(&plain(&far));
    let mut host = near.host("near");
    let mut disk = namespace(&mut host, 1);
    let data = pattern(3, PART);
    disk.write(0, &data).expect("written");
    far.daemon.crash();
    far.daemon.restart();
    disk.flush().expect("its machine kept its power");
    assert!(far.has(&data));
}

#[test]
fn a_flush_succeeds_after_an_orderly_restart_of_the_far_machine() {
    let Some(mut far) = Far::start() else { return };
    let near = Daemon::start(&plain(&far));
    let mut host = near.host("near");
    let mut disk = namespace(&mut host, 1);
    let data = pattern(3, PART);
    disk.write(0, &data).expect("written");
    far.daemon.stop();
    far.disk.cut();
    far.come_up();
    disk.flush().expect("an orderly stop syncs what it has");
    assert!(far.has(&data));
}

#[test]
fn a_set_takes_a_member_back_that_lost_acknowledged_writes() {
    for (function, number) in [("replicate", 1), ("mirror", 1), ("mirror", 0)] {
        let Some(mut far) = Far::start() else { return };
        let near = start_set(function, &far, number);
        let mut host = near.host("near");
        let mut disk = namespace(&mut host, 1);
        let [first, second] = [pattern(4, PART), pattern(5, PART)];
        disk.write(0, &first).expect("written");
        wait_for("a set in sync", || is_in_sync(&near));
        disk.flush().expect("flushed");
        disk.write(0, &second).expect("written");
        far.lose_power();
        let mut read = vec![0; PART];
        disk.read(0, &mut read).expect("another member has it");
        assert!(read == second, "{function} {number}: an acknowledged write is not read");
        disk.flush().expect("another member has it");
        wait_for("a member that was lost", || status(&near)["losses"].as_u64() > Some(0));
        wait_for("a set in sync", || is_in_sync(&near));
        disk.flush().expect("flushed");
        assert!(far.has(&second), "{function} {number}: in sync, and the members differ");
        disk.read(0, &mut read).expect("read");
        assert!(read == second, "{function} {number}");
    }
}

/// Checks a source without a replacement: the host gets an error.
#[test]
fn the_next_flush_of_a_replicated_drive_fails_after_its_primary_lost_acknowledged_writes() {
    let Some(mut far) = Far::start() else { return };
    let near = start_set("replicate", &far, 0);
    let mut host = near.host("near");
    let mut disk = namespace(&mut host, 1);
    let [flushed, lost] = [pattern(6, PART), pattern(7, PART)];
    disk.write(0, &flushed).expect("written");
    wait_for("a set in sync", || is_in_sync(&near));
    disk.flush().expect("flushed");
    disk.write(0, &lost).expect("written");
    far.lose_power();
    disk.flush().expect_err("acknowledged writes are lost");
    disk.flush().expect("the host was told");
    let copy = near.folder.path().join("near.img");
    wait_for("equal copies", || std::fs::read(&copy).expect("it is there")[..PART] == flushed);
    wait_for("a set in sync", || is_in_sync(&near));
}

#[test]
fn the_first_flush_fails_after_both_daemons_ended_and_the_far_machine_lost_power() {
    let Some(mut far) = Far::start() else { return };
    let mut near = Daemon::start(&plain(&far));
    let data = pattern(8, PART);
    let mut host = near.host("near");
    namespace(&mut host, 1).write(0, &data).expect("written");
    near.crash();
    drop(host);
    far.lose_power();
    near.restart();
    let mut host = near.host("near");
    let mut disk = namespace(&mut host, 1);
    disk.flush().expect_err("acknowledged writes are lost");
    disk.flush().expect("the host was told");
    drop((disk, host));
    near.stop();
    near.restart();
    let mut host = near.host("near");
    let mut disk = namespace(&mut host, 1);
    disk.flush().expect("the last stop was orderly");
    // The daemon alone ends, and the far machine keeps its power.
    disk.write(0, &data).expect("written");
    near.crash();
    drop((disk, host));
    near.restart();
    let mut host = near.host("near");
    namespace(&mut host, 1).flush().expect("nothing was lost");
}

#[test]
fn an_orderly_stop_flushes_what_hosts_did_not() {
    let Some(mut far) = Far::start() else { return };
    let mut near = Daemon::start(&plain(&far));
    let data = pattern(9, PART);
    let mut host = near.host("near");
    namespace(&mut host, 1).write(0, &data).expect("written");
    // The host disappears without a shutdown.
    drop(host);
    near.stop();
    assert!(far.has(&data), "an orderly stop syncs every target");
    far.lose_power();
    near.restart();
    let mut host = near.host("near");
    namespace(&mut host, 1).flush().expect("nothing was lost");
}

/// Checks that the process does not end before the shutdown, which would leave the far drive with an unsafe
/// one.
#[test]
fn an_orderly_stop_shuts_the_far_controller_down() {
    let Some(far) = Far::start() else { return };
    let mut near = Daemon::start(&plain(&far));
    for _ in 0..5 {
        near.stop();
        near.restart();
    }
    near.stop();
    let mut host = far.daemon.host("disk");
    let mut page = [0; 512];
    host.get_log_page(LogId::SMART_HEALTH, NSID_ALL, 0, &mut page).expect("the log");
    let unsafe_shutdowns = u64::from_le_bytes(page[144..152].try_into().expect("eight bytes"));
    assert_eq!(unsafe_shutdowns, 0, "bytes 159:144, Unsafe Shutdowns");
}

/// Checks a copy on the far machine that is attached to a drive at work. The set's log covers the writes that
/// the copy may have lost.
#[test]
fn a_copy_that_was_attached_gets_what_it_lost_after_both_daemons_ended() {
    let Some(mut far) = Far::start() else { return };
    let mut near = Daemon::start(
        "[[drive]]\nname = \"near\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"near.img\"\nsize = \"16MiB\"\n",
    );
    let function = near.folder.path().join("function.json");
    let log = near.folder.path().join("set.log");
    let text = format!(
        r#"{{"function":"replicate","place":"daemon","layers":[
            {{"target":"nvme-tcp","nvme_tcp":{{"address":"{}","subnqn":"{NQN}","hostnqn":"{HOST}"}}}},
            {{"target":"file","path":"{}","size":"4MiB"}}]}}"#,
        far.address,
        log.display()
    );
    std::fs::write(&function, text).expect("room on the disk");
    near.ok(&["function", "attach", "near", "--spec", function.to_str().expect("UTF-8")]);
    let [flushed, lost] = [pattern(10, PART), pattern(11, PART)];
    let mut host = near.host("near");
    let mut disk = namespace(&mut host, 1);
    disk.write(0, &flushed).expect("written");
    disk.flush().expect("flushed");
    wait_for("a set in sync", || is_in_sync(&near));
    disk.write(0, &lost).expect("written");
    drop((disk, host));
    near.crash();
    far.lose_power();
    near.restart();
    let mut host = near.host("near");
    let mut disk = namespace(&mut host, 1);
    disk.write(4096, &flushed).expect("written");
    disk.flush().expect("the primary has everything");
    wait_for("a set in sync", || is_in_sync(&near));
    disk.flush().expect("flushed");
    assert!(far.has(&lost), "in sync, and the copies differ");
}
