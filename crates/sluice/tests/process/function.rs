//! Functions in the daemon and in processes of their own, under a host's verified load.

use crate::common::{BINARY, Daemon, namespace, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use sluice_host::Namespace;
use sluice_nvme::Status;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Bytes of every drive here.
pub(crate) const SIZE: u64 = 16 << 20;
const BLOCK: usize = 512;
/// Bytes of the load's longest command.
const LONGEST: usize = 128 << 10;

pub(crate) fn drive(name: &str, target: &str, functions: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\n[[drive.namespace]]\n{target}\nsize = \"16MiB\"\nfunctions = [ {functions} ]\n"
    )
}

/// Returns a drive on an image, and writes its key into the daemon's folder.
fn encrypted(folder: &Path, name: &str, more: &str) -> String {
    let key = folder.join("key");
    std::fs::write(&key, (0..64).collect::<Vec<u8>>()).expect("room on the disk");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("it is ours");
    let function = format!(
        "{{ kind = \"uif\", function = \"encrypt\", options = {{ key_file = \"{}\" }}{more} }}",
        key.display()
    );
    drive(name, "target = \"file\"\npath = \"image.img\"", &function)
}

/// A drive, with an array of its expected content.
pub(crate) struct Verified {
    pub(crate) disk: Namespace,
    pub(crate) model: Vec<u8>,
    random: u64,
    wrong: usize,
}

impl Verified {
    pub(crate) fn new(disk: Namespace) -> Self {
        let mut verified = Self { disk, model: vec![0; SIZE as usize], random: 1, wrong: 0 };
        // Every byte has a defined value from here on.
        for first in (0..SIZE as usize).step_by(LONGEST) {
            verified.write(first, LONGEST).expect("it is in range");
        }
        verified
    }

    fn next(&mut self, below: usize) -> usize {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % below
    }

    pub(crate) fn write(&mut self, at: usize, length: usize) -> Result<(), sluice_host::Error> {
        let seed = self.next(256);
        let data: Vec<u8> = (0..length).map(|n| (n / BLOCK + n * seed) as u8).collect();
        self.disk.write((at / BLOCK) as u64, &data)?;
        self.model[at..at + length].copy_from_slice(&data);
        Ok(())
    }

    /// Does some random reads and writes, one after the other. A read that differs is counted.
    pub(crate) fn work(&mut self, commands: usize) -> Result<(), sluice_host::Error> {
        for _ in 0..commands {
            let length = (self.next(LONGEST / BLOCK) + 1) * BLOCK;
            let at = self.next((SIZE as usize - length) / BLOCK) * BLOCK;
            if self.next(2) == 0 {
                self.write(at, length)?;
            } else {
                let mut read = vec![0; length];
                self.disk.read((at / BLOCK) as u64, &mut read)?;
                self.wrong += usize::from(read != self.model[at..at + length]);
            }
        }
        Ok(())
    }

    pub(crate) fn all_is_well(&mut self) {
        self.work(200).expect("every command succeeds");
        self.is_right();
    }

    /// Checks that every read so far returned the written data.
    pub(crate) fn is_right(&self) {
        assert_eq!(self.wrong, 0, "reads that were not what was written");
    }
}

pub(crate) fn functions(daemon: &Daemon, drive: &str) -> serde_json::Value {
    let shown = daemon.ok(&["function", "show", drive, "-o", "json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    shown["functions"][0].clone()
}

pub(crate) fn number(daemon: &Daemon, drive: &str, what: &str) -> u64 {
    functions(daemon, drive)[what].as_u64().expect("a number")
}

pub(crate) fn pid(daemon: &Daemon, drive: &str) -> Option<Pid> {
    Pid::from_raw(functions(daemon, drive)["pid"].as_i64().unwrap_or(0) as i32)
}

/// Checks that the same bytes are on the disk whichever place wrote them, and none of the host's.
#[test]
fn encrypt_writes_in_a_process_what_it_reads_in_the_daemon() {
    let mut daemon = Daemon::start("");
    let mut model = Vec::new();
    for place in [", place = \"process\"", ", place = \"daemon\""] {
        daemon.stop();
        daemon.declare("", &encrypted(daemon.folder.path(), "disk", place));
        daemon.restart();
        let mut host = daemon.host("disk");
        let mut disk = namespace(&mut host, 1);
        if !model.is_empty() {
            let mut read = vec![0; LONGEST];
            for first in (0..SIZE as usize).step_by(LONGEST) {
                disk.read((first / BLOCK) as u64, &mut read).expect("it is in range");
                assert!(read == model[first..first + LONGEST], "at {first}");
            }
        }
        let mut verified = Verified::new(disk);
        verified.all_is_well();
        verified.disk.write_zeroes(0, 1000, false).expect("it is in range");
        verified.model[..1000 * BLOCK].fill(0);
        verified.all_is_well();
        verified.disk.flush().expect("nothing fails");
        let image = std::fs::read(daemon.folder.path().join("image.img")).expect("it is there");
        let same = |(stored, seen): (&[u8], &[u8])| stored == seen;
        assert!(!image.chunks(BLOCK).zip(verified.model.chunks(BLOCK)).any(same), "a block is not encrypted");
        model = verified.model;
    }
}

#[test]
fn a_function_that_is_killed_is_started_again_and_nothing_is_lost() {
    let daemon = Daemon::start("");
    daemon.ok(&["drive", "create", "other", "--memory", "16MiB"]);
    let mut daemon = daemon;
    daemon.stop();
    daemon.declare("", &encrypted(daemon.folder.path(), "disk", ", on_death = \"park\""));
    daemon.restart();
    let mut host = daemon.host("disk");
    let mut verified = Verified::new(namespace(&mut host, 1));
    let worker = std::thread::spawn(move || {
        verified.work(1500).expect("every command succeeds");
        verified
    });
    for times in 1..=5 {
        let killed = pid(&daemon, "disk").expect("it is there");
        kill_process(killed, Signal::KILL).expect("it is ours");
        wait_for("the next one", || pid(&daemon, "disk").is_some_and(|pid| pid != killed));
        assert_eq!(number(&daemon, "disk", "starts"), times + 1);
    }
    let mut verified = worker.join().expect("every command succeeds");
    verified.all_is_well();
    let mut other = daemon.host("other");
    Verified::new(namespace(&mut other, 1)).all_is_well();
    assert_eq!(number(&daemon, "disk", "failed"), 0);
}

#[test]
fn or_its_commands_fail_until_it_is_back() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &encrypted(daemon.folder.path(), "disk", ", on_death = \"fail\", deadline_ms = 2000"));
    daemon.restart();
    let mut host = daemon.host("disk");
    let mut verified = Verified::new(namespace(&mut host, 1));
    // A process that hangs is ended at its deadline, and its commands fail.
    let hanging = pid(&daemon, "disk").expect("it is there");
    kill_process(hanging, Signal::STOP).expect("it is ours");
    let error = verified.write(0, BLOCK).expect_err("nobody answers");
    assert!(error.status().is_some_and(|status| status.same_code(Status::INTERNAL_ERROR)), "{error}");
    wait_for("the next one", || functions(&daemon, "disk")["up"] == true);
    assert_eq!(number(&daemon, "disk", "timeouts"), 1);
    // A failed write may have been done or not.
    wait_for("a write that succeeds", || verified.write(0, BLOCK).is_ok());
    verified.all_is_well();
}

#[test]
fn a_restart_loses_nothing_whatever_becomes_of_the_dead() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", &encrypted(daemon.folder.path(), "disk", ", on_death = \"fail\""));
    daemon.restart();
    let mut host = daemon.host("disk");
    let mut verified = Verified::new(namespace(&mut host, 1));
    let worker = std::thread::spawn(move || {
        verified.work(800).expect("every command succeeds");
        verified
    });
    for times in 1..=5 {
        daemon.ok(&["function", "restart", "disk"]);
        wait_for("the next one", || number(&daemon, "disk", "starts") == times + 1);
    }
    worker.join().expect("every command succeeds").all_is_well();
    let complaint = daemon.fails(&["function", "restart", "disk", "--number", "2"]);
    assert!(complaint.contains("drive `disk` has no function 2"), "{complaint}");
}

/// A function process that the test started, not the daemon.
pub(crate) struct Served {
    child: Child,
    pub(crate) socket: PathBuf,
}

impl Served {
    fn start(folder: &Path, kind: &str) -> Self {
        let mut command = Command::new(BINARY);
        command.args(["function", "run", kind]);
        Self::spawn(folder, command)
    }

    /// Starts the program of a function, which listens in this folder.
    pub(crate) fn spawn(folder: &Path, mut command: Command) -> Self {
        let socket = folder.join("function.sock");
        command.arg("--socket").arg(&socket).stdin(Stdio::null());
        let child = command.spawn().expect("the binary is there");
        wait_for("its socket", || socket.exists());
        Self { child, socket }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn one_process_serves_several_drives_and_a_drive_has_several_functions() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let served = Served::start(daemon.folder.path(), "pass");
    let there = format!("{{ kind = \"uif\", socket = \"{}\" }}", served.socket.display());
    let here = "{ kind = \"uif\", function = \"pass\", place = \"daemon\" }";
    let memory = "target = \"memory\"";
    let drives = drive("a", memory, &there) + &drive("b", memory, &format!("{there}, {here}, {there}"));
    daemon.declare("", &drives);
    daemon.restart();
    let mut hosts = [daemon.host("a"), daemon.host("b")];
    let mut verified: Vec<Verified> =
        hosts.iter_mut().map(|host| Verified::new(namespace(host, 1))).collect();
    for _ in 0..3 {
        verified.iter_mut().for_each(Verified::all_is_well);
    }
    assert_eq!(daemon.ok(&["function", "show", "b"]).lines().count(), 4);
    // The process is gone for both drives, and its successor serves both.
    drop(served);
    std::fs::remove_file(daemon.folder.path().join("function.sock")).expect("it is there");
    wait_for("the end", || functions(&daemon, "a")["up"] == false);
    let _next = Served::start(daemon.folder.path(), "pass");
    verified.iter_mut().for_each(Verified::all_is_well);
}

#[test]
fn what_is_no_function_is_refused_in_words() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let program = "{ kind = \"uif\", command = [\"/bin/true\"] }";
    let mut drives = drive("no", "target = \"memory\"", program);
    drives += &encrypted(daemon.folder.path(), "disk", "");
    daemon.declare("", &drives);
    std::fs::set_permissions(daemon.folder.path().join("key"), PermissionsExt::from_mode(0o644))
        .expect("ours");
    daemon.restart();
    let shown = daemon.ok(&["drive", "show", "no"]);
    assert!(shown.contains("the function /bin/true does not serve: it ended without an answer"), "{shown}");
    let shown = daemon.ok(&["drive", "show", "disk"]);
    assert!(shown.contains("it says: key file DIR/key: others may use it (mode 644)"), "{shown}");
    std::fs::set_permissions(daemon.folder.path().join("key"), PermissionsExt::from_mode(0o600))
        .expect("ours");
    daemon.ok(&["drive", "open", "disk"]);
    Verified::new(namespace(&mut daemon.host("disk"), 1)).all_is_well();
}

#[test]
fn a_drive_below_readonly_is_read_and_reports_that_it_is_write_protected() {
    let mut daemon = Daemon::start("");
    daemon.stop();
    let memory = "target = \"memory\"";
    let over = drive("over", memory, "{ kind = \"readonly\" }, { kind = \"pass\" }");
    daemon.declare(
        "",
        &(over + &drive("below", memory, "{ kind = \"pass\", watch = true }, { kind = \"readonly\" }")),
    );
    daemon.restart();
    for name in ["over", "below"] {
        let mut host = daemon.host(name);
        let mut disk = namespace(&mut host, 1);
        assert_eq!(disk.identity().nsattr, 1, "{name}");
        let mut data = vec![1; 4096];
        disk.read(0, &mut data).expect("it is readable");
        assert!(data.iter().all(|byte| *byte == 0));
        disk.flush().expect("nothing is written");
        for refused in [disk.write(0, &data), disk.write_zeroes(0, 8, false)] {
            let error = refused.expect_err("it is write protected");
            assert!(
                error.status().is_some_and(|it| it.same_code(Status::NAMESPACE_WRITE_PROTECTED)),
                "{error}"
            );
        }
    }
}
