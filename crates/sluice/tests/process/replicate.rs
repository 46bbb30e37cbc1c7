//! Replicate with real files: its writes to both, and its behaviour when a part fails.

use crate::common::{Daemon, namespace, sealable, wait_for};
use crate::function::{Verified, number, pid};
use crate::programs::compile_own;
use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::process::{Signal, kill_process};
use sluice_host::Namespace;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes of the drive.
const SIZE: usize = 16 << 20;
const BLOCK: usize = 512;

/// Returns a drive on two files and a log; `more` is of the layer of the secondary.
fn replicated(place: &str, more: &str) -> String {
    format!(
        r#"
[[drive]]
name = "disk"
[[drive.namespace]]
target = "file"
path = "primary.img"
size = "16MiB"
functions = [
  {{ kind = "uif", function = "replicate", place = "{place}", layers = [
    {{ target = "file", path = "secondary.img", size = "16MiB"{more} }},
    {{ target = "file", path = "replicate.log", size = "4MiB" }},
  ] }},
]
paths = [ {{ name = "primary", below = 1 }} ]
"#
    )
}

fn start(drive: &str) -> Daemon {
    let mut daemon = Daemon::start("");
    daemon.stop();
    daemon.declare("", drive);
    daemon.restart();
    daemon
}

fn image(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).expect("it is there")
}

/// Waits until the secondary equals the primary. No host may write to the drive meanwhile.
fn copies_become_equal(daemon: &Daemon) {
    let folder = daemon.folder.path();
    wait_for("equal copies", || image(folder, "primary.img") == image(folder, "secondary.img"));
}

/// Reads the drive after a write without an answer, takes over its content there, and checks all else.
pub(crate) fn take_over(mut verified: Verified, disk: Namespace) -> Verified {
    verified.disk = disk;
    let mut differing = Vec::new();
    let mut read = vec![0; 128 << 10];
    for first in (0..SIZE).step_by(read.len()) {
        verified.disk.read((first / BLOCK) as u64, &mut read).expect("it is in range");
        let model = &mut verified.model[first..first + read.len()];
        let blocks = read.chunks(BLOCK).zip(model.chunks_mut(BLOCK)).enumerate();
        for (number, (found, known)) in blocks.filter(|(_, (found, known))| found != known) {
            differing.push(first / BLOCK + number);
            known.copy_from_slice(found);
        }
    }
    let (first, last) = (differing.first().copied().unwrap_or(0), differing.last().copied().unwrap_or(0));
    assert!(last - first < (128 << 10) / BLOCK, "more than one write is missing: blocks {first} to {last}");
    verified
}

#[test]
fn copies_are_equal_whatever_is_killed() {
    for place in ["process", "daemon"] {
        let mut daemon = start(&replicated(place, ""));
        let mut host = daemon.host("disk");
        let mut verified = Verified::new(namespace(&mut host, 1));
        let object = compile_own(daemon.folder.path(), "replicate").display().to_string();
        daemon.ok(&["classifier", "attach", "disk", &object]);
        for _ in 0..2 {
            let stop = Arc::new(AtomicBool::new(false));
            let told = Arc::clone(&stop);
            let worker = std::thread::spawn(move || {
                while !told.load(Relaxed) && verified.work(20).is_ok() {}
                verified
            });
            for _ in 0..2 {
                let Some(killed) = pid(&daemon, "disk") else { break };
                kill_process(killed, Signal::KILL).expect("it is ours");
                wait_for("the next one", || pid(&daemon, "disk").is_some_and(|pid| pid != killed));
            }
            daemon.crash();
            stop.store(true, Relaxed);
            verified = worker.join().expect("it ends");
            drop(host);
            daemon.restart();
            host = daemon.host("disk");
            verified = take_over(verified, namespace(&mut host, 1));
        }
        verified.all_is_well();
        copies_become_equal(&daemon);
        assert!(image(daemon.folder.path(), "secondary.img") == verified.model);
    }
}

#[test]
fn a_secondary_that_fails_is_made_good_and_no_host_notices() {
    let fault = r#"{ kind = "fault", outcome = "fail", status = "write_fault", operations = ["write"], skip = 300, limit = 3 }"#;
    let daemon = start(&replicated("process", &format!(", functions = [ {fault} ]")));
    let mut host = daemon.host("disk");
    let mut verified = Verified::new(namespace(&mut host, 1));
    verified.work(1000).expect("the primary is well");
    verified.disk.write_zeroes(100, 5000, true).expect("the primary is well");
    verified.model[100 * BLOCK..5100 * BLOCK].fill(0);
    verified.disk.flush().expect("the primary is well");
    verified.all_is_well();
    copies_become_equal(&daemon);
    assert!(image(daemon.folder.path(), "secondary.img") == verified.model);
    let tell = |text: &str| daemon.ok(&["function", "tell", "disk", text]);
    wait_for("the news of it", || tell("status").contains(r#""state":"in sync""#));
    assert!(!tell("metrics").contains("losses_total 0\n"), "{}", tell("metrics"));
    tell("check");
    wait_for("the comparison", || tell("status").contains(r#""running":false"#));
    assert!(tell("status").contains(r#""different":0,"unreadable":0"#), "{}", tell("status"));
    assert_eq!((number(&daemon, "disk", "failed"), number(&daemon, "disk", "deaths")), (0, 0));
}

#[test]
fn reads_go_past_the_function() {
    let daemon = start(&replicated("process", ""));
    let mut host = daemon.host("disk");
    let mut verified = Verified::new(namespace(&mut host, 1));
    let object = compile_own(daemon.folder.path(), "replicate").display().to_string();
    daemon.ok(&["classifier", "attach", "disk", &object]);
    let function = pid(&daemon, "disk").expect("it is there");
    kill_process(function, Signal::STOP).expect("it is ours");
    let mut read = vec![0; 4096];
    verified.disk.read(0, &mut read).expect("nobody asks the function");
    assert!(read == verified.model[..4096]);
    kill_process(function, Signal::CONT).expect("it is ours");
    verified.all_is_well();
}

#[test]
fn a_set_that_cannot_be_says_why() {
    let small = replicated("process", "")
        .replace("secondary.img\", size = \"16MiB\"", "secondary.img\", size = \"8MiB\"");
    let daemon = start(&small);
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    let error = disk.write(0, &[0; 512]).expect_err("there is no second copy");
    let status = error.status().and_then(sluice_nvme::Status::name);
    assert_eq!(status, Some("NAMESPACE_NOT_READY"), "{error}");
    let words = "the secondary has 8388608 bytes, the primary 16777216";
    let complaint = daemon.fails(&["function", "tell", "disk", "status"]);
    assert!(complaint.contains(words), "{complaint}");
}

/// Returns the same drive without the path that leads past the function, so that the function can be
/// detached.
fn detachable() -> String {
    replicated("process", "").replace("paths = [ { name = \"primary\", below = 1 } ]\n", "")
}

fn status(daemon: &Daemon) -> String {
    daemon.ok(&["function", "tell", "disk", "status"])
}

fn is_in_sync(daemon: &Daemon) {
    wait_for("a copy", || status(daemon).contains(r#""state":"in sync""#));
}

#[test]
fn a_log_does_not_say_clean_of_what_was_written_after_a_detach_and_one_that_failed_is_taken_back() {
    let declared = detachable();
    let mut daemon = start(&declared);
    let mut host = daemon.host("disk");
    let mut verified = Verified::new(namespace(&mut host, 1));
    is_in_sync(&daemon);
    let in_its_place = daemon.folder.path().join("state/drives.state.new");
    std::fs::create_dir(&in_its_place).expect("room on the disk");
    let said = daemon.fails(&["function", "detach", "disk"]);
    let why = ["cannot be detached: cannot store the state", "it was told `resync` after `fail`"];
    assert!(why.iter().all(|why| said.contains(why)), "{said}");
    std::fs::remove_dir(&in_its_place).expect("it is ours");
    is_in_sync(&daemon);
    // A member that its user took out stays out.
    daemon.ok(&["function", "tell", "disk", "fail"]);
    std::fs::create_dir(&in_its_place).expect("room on the disk");
    let said = daemon.fails(&["function", "detach", "disk"]);
    assert!(!said.contains("resync"), "{said}");
    assert!(status(&daemon).contains(r#""state":"out""#));
    std::fs::remove_dir(&in_its_place).expect("it is ours");
    daemon.ok(&["function", "tell", "disk", "resync"]);
    is_in_sync(&daemon);
    daemon.ok(&["function", "detach", "disk"]);
    verified.all_is_well();
    drop((verified, host));
    daemon.stop();
    daemon.declare("", &declared.replace("\"replicate\"", "\"replicate\", deadline_ms = 4000"));
    daemon.restart();
    assert!(status(&daemon).contains(r#""state":"out""#));
    daemon.ok(&["function", "tell", "disk", "resync"]);
    copies_become_equal(&daemon);
}

#[test]
fn one_that_does_not_answer_or_cannot_write_its_log_is_not_detached() {
    let (log, path) = sealable();
    let daemon = start(&detachable().replace("replicate.log", &path));
    is_in_sync(&daemon);
    let function = pid(&daemon, "disk").expect("it is there");
    kill_process(function, Signal::STOP).expect("it is ours");
    let said = daemon.fails(&["function", "detach", "disk"]);
    let why = "did not take the order `fail`, without which it would not know that it misses writes";
    assert!(said.contains(why) && said.contains("did not answer within 5s"), "{said}");
    kill_process(function, Signal::CONT).expect("it is ours");
    is_in_sync(&daemon);
    fcntl_add_seals(&log, SealFlags::WRITE).expect("nobody maps it");
    let said = daemon.fails(&["function", "detach", "disk"]);
    assert!(said.contains(why) && said.contains("mend the log"), "{said}");
    assert!(!status(&daemon).contains(r#""state":"out""#), "{}", status(&daemon));
    assert_eq!(number(&daemon, "disk", "deaths"), 0);
}

/// Fills the drive with a pattern, which both files have then.
fn fill(daemon: &Daemon, seed: u8) {
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    for first in (0..SIZE).step_by(128 << 10) {
        disk.write((first / BLOCK) as u64, &[seed; 128 << 10]).expect("it is in range");
    }
    disk.flush().expect("nothing is wrong");
    drop((disk, host));
    wait_for("equal copies", || {
        daemon.ok(&["function", "tell", "disk", "status"]).contains(r#""dirty_bytes":0,"#)
    });
}

fn mirrored() -> String {
    replicated("daemon", "").replace("\"replicate\"", "\"mirror\"").replace("paths = [", "# paths = [")
}

/// Checks a start without the mounts of some disks. No data of the surviving copy is overwritten.
#[test]
fn a_copy_survives_a_start_without_the_primary_and_the_log() {
    for drive in [replicated("process", ""), mirrored()] {
        let mut daemon = start(&drive);
        fill(&daemon, 7);
        daemon.stop();
        let folder = daemon.folder.path().to_owned();
        let away = folder.join("away");
        std::fs::create_dir(&away).expect("room on the disk");
        let unmount = |name: &str| std::fs::rename(folder.join(name), away.join(name)).expect("it is there");
        unmount("primary.img");
        unmount("replicate.log");
        daemon.restart();
        let words = daemon.fails(&["drive", "open", "disk"]);
        assert!(words.contains("primary.img does not exist"), "{words}");
        // A process that is just being started may hold the lock of a file until it executes its own program.
        let made_anew = || daemon.run(&["drive", "open", "disk", "--make-anew"]).status.success();
        wait_for("files that are made anew", made_anew);
        let words = daemon.fails(&["function", "tell", "disk", "status"]);
        assert!(words.contains("the log is blank") && words.contains("copy from N"), "{words}");
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert!(image(&folder, "secondary.img").iter().all(|byte| *byte == 7), "it was overwritten");
        // The advice of the message is followed: the missing files are there again.
        daemon.stop();
        for name in ["primary.img", "replicate.log"] {
            std::fs::rename(away.join(name), folder.join(name)).expect("it is there");
        }
        daemon.restart();
        let status = daemon.ok(&["function", "tell", "disk", "status"]);
        assert!(status.contains(r#""state":"in sync""#), "{status}");
        daemon.stop();
    }
}

/// Checks a set with its log, when a member's disk is missing, is blank, or is an older image.
#[test]
fn a_member_that_is_another_file_is_copied_to() {
    let mut daemon = start(&mirrored());
    fill(&daemon, 7);
    let folder = daemon.folder.path().to_owned();
    daemon.stop();
    std::fs::copy(folder.join("primary.img"), folder.join("older.img")).expect("room on the disk");
    daemon.restart();
    fill(&daemon, 9);
    for is_older in [false, true] {
        daemon.stop();
        std::fs::remove_file(folder.join("primary.img")).expect("it is there");
        if is_older {
            std::fs::rename(folder.join("older.img"), folder.join("primary.img")).expect("it is there");
        }
        daemon.restart();
        if !is_older {
            daemon.ok(&["drive", "open", "disk", "--make-anew"]);
        }
        let mut host = daemon.host("disk");
        let mut block = [0; BLOCK];
        namespace(&mut host, 1).read(100, &mut block).expect("it is in range");
        assert_eq!(block, [9; BLOCK], "older: {is_older}");
        drop(host);
        copies_become_equal(&daemon);
        assert!(image(&folder, "secondary.img").iter().all(|byte| *byte == 9));
    }
}
