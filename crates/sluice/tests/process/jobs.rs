//! Background work as jobs: paused, resumed, cancelled, killed, each with a progress that grows.

use crate::common::{Daemon, namespace, wait_for};
use crate::counted::metrics;
use sluice_api::JobList;
use sluice_control::drives::{JobState, JobView};

const SIZE: u64 = 64 << 20;

/// Time of a write to the second copy: 128 of them make a copy of the drive.
const WRITE_US: u64 = 50_000;

const RESYNC: &str = "disk:1:1:resync";

/// Returns a drive with a function whose second copy is slow.
fn copied(function: &str, place: &str) -> String {
    format!(
        r#"
[[drive]]
name = "disk"
[[drive.namespace]]
target = "file"
path = "first.img"
size = "64MiB"
functions = [
  {{ kind = "uif", function = "{function}", place = "{place}", layers = [
    {{ target = "file", path = "second.img", size = "64MiB", functions = [
      {{ kind = "delay", write_us = {WRITE_US} }} ] }},
    {{ target = "file", path = "set.log", size = "4MiB" }},
  ] }},
]
"#
    )
}

fn jobs(daemon: &Daemon) -> Vec<JobView> {
    let list = daemon.ok(&["job", "list", "-o", "json"]);
    serde_json::from_str::<JobList>(&list).expect("a list").jobs
}

pub(crate) fn job(daemon: &Daemon, id: &str) -> Option<JobView> {
    jobs(daemon).into_iter().find(|job| job.id == id)
}

pub(crate) fn order(daemon: &Daemon, words: &[&str]) -> JobView {
    let words: Vec<&str> = ["job"].into_iter().chain(words.iter().copied()).chain(["-o", "json"]).collect();
    serde_json::from_str(&daemon.ok(&words)).expect("a job")
}

/// Waits until more than `done` bytes of a job are done, and returns it.
pub(crate) fn grows(daemon: &Daemon, id: &str, done: u64) -> JobView {
    wait_for("progress", || job(daemon, id).is_some_and(|job| job.done > done));
    job(daemon, id).expect("it was there")
}

/// Pauses a job, and returns it after the end of the step that was in flight.
fn pause(daemon: &Daemon, id: &str) -> JobView {
    assert_eq!(order(daemon, &["pause", id]).state, JobState::Paused);
    std::thread::sleep(std::time::Duration::from_micros(10 * WRITE_US));
    job(daemon, id).expect("it is paused")
}

/// Writes to the drive, a block in each MiB.
fn write(daemon: &Daemon, seed: u8, blocks: u64) {
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    for block in 0..blocks {
        disk.write(block * 2048, &[seed; 4096]).expect("the drive serves");
    }
}

fn status(daemon: &Daemon) -> serde_json::Value {
    let status = daemon.ok(&["function", "tell", "disk", "status"]);
    serde_json::from_str(&status).expect("a status")
}

fn copies_are_equal(daemon: &Daemon) {
    wait_for("a set in sync", || status(daemon)["state"] == "in sync");
    let image = |name: &str| std::fs::read(daemon.folder.path().join(name)).expect("it is there");
    assert!(image("first.img") == image("second.img"));
}

#[test]
fn a_resync_is_paused_resumed_killed_and_goes_on() {
    for (function, place) in [("mirror", "daemon"), ("replicate", "process")] {
        let mut daemon = Daemon::start(&copied(function, place));
        let begun = grows(&daemon, RESYNC, 0);
        assert_eq!((begun.state, begun.total, begun.function.as_str()), (JobState::Running, SIZE, function));
        assert_eq!(begun.detail, "from member 0 to {1}");

        let paused = pause(&daemon, RESYNC);
        write(&daemon, 1, 20);
        let still = job(&daemon, RESYNC).expect("it is paused");
        assert_eq!((still.state, still.done, still.bytes_s), (JobState::Paused, paused.done, 0));
        let metrics = metrics(&daemon);
        let labels = format!("{{job=\"{RESYNC}\",drive=\"disk\",nsid=\"1\",name=\"resync\"}}");
        assert!(metrics.contains(&format!("sluice_job_running{labels} 0\n")), "{metrics}");
        assert!(metrics.contains(&format!("sluice_job_done_bytes{labels} {}\n", still.done)), "{metrics}");

        assert_eq!(order(&daemon, &["resume", RESYNC]).state, JobState::Running);
        let running = grows(&daemon, RESYNC, still.done);
        assert!(running.done <= running.total, "{running:?}");
        // The log has some regions that are equal, so that the next daemon need not copy them again.
        wait_for("clean regions", || {
            status(&daemon)["dirty_bytes"].as_u64().is_some_and(|bytes| bytes < SIZE)
        });
        daemon.crash();
        daemon.restart();
        let again = grows(&daemon, RESYNC, 0);
        assert!(again.state == JobState::Running && again.total < SIZE, "{again:?}");
        let told = daemon.ok(&["job", "show", RESYNC, "--follow"]);
        assert!(told.contains("done") && told.contains("(100 %)"), "{told}");
        copies_are_equal(&daemon);
        for verb in ["pause", "resume", "cancel"] {
            let why = daemon.fails(&["job", verb, RESYNC]);
            assert!(why.contains("the job resync is done"), "{why}");
        }
        daemon.stop();
    }
}

/// Returns the text of the state file.
fn state(daemon: &Daemon) -> String {
    std::fs::read_to_string(daemon.folder.path().join("state/drives.state")).expect("a state file")
}

#[test]
fn a_pause_survives_a_restart_of_the_daemon_and_of_the_function() {
    let mut daemon = Daemon::start(&copied("mirror", "process"));
    let is_paused = |daemon: &Daemon| job(daemon, RESYNC).is_some_and(|job| job.state == JobState::Paused);
    grows(&daemon, RESYNC, 0);
    order(&daemon, &["pause", RESYNC]);
    daemon.crash();
    daemon.restart();
    wait_for("the pause", || is_paused(&daemon));
    daemon.ok(&["function", "restart", "disk"]);
    wait_for("the pause", || is_paused(&daemon));
    let paused = job(&daemon, RESYNC).expect("it is paused");
    write(&daemon, 1, 20);
    let still = job(&daemon, RESYNC).expect("it is paused");
    // Only the step in flight may have ended since.
    assert_eq!(still.state, JobState::Paused);
    assert!(still.done <= paused.done + (1 << 20) && still.done < still.total, "{paused:?} {still:?}");
    assert!(state(&daemon).contains(RESYNC));
    order(&daemon, &["resume", RESYNC]);
    assert!(!state(&daemon).contains(RESYNC));
    daemon.ok(&["job", "show", RESYNC, "--follow"]);
    copies_are_equal(&daemon);
    daemon.stop();
}

#[test]
fn a_cancelled_resync_leaves_the_member_out_and_says_so() {
    for (function, place) in [("mirror", "process"), ("replicate", "daemon")] {
        let mut daemon = Daemon::start(&copied(function, place));
        let begun = grows(&daemon, RESYNC, SIZE / 16);
        let cancelled = order(&daemon, &["cancel", RESYNC]);
        assert_eq!(cancelled.state, JobState::Cancelled);
        assert_eq!(cancelled.detail, "{1} is out of sync until this is resumed, and gets no writes");
        assert_eq!(
            (status(&daemon)["state"].as_str(), &status(&daemon)["members"][1]),
            (Some("out"), &"out".into())
        );
        let why = daemon.fails(&["job", "show", RESYNC, "--follow"]);
        assert!(why.contains("the job disk:1:1:resync was cancelled"), "{why}");
        write(&daemon, 2, 64);
        assert_eq!(job(&daemon, RESYNC).map(|job| job.state), Some(JobState::Cancelled));

        let resumed = order(&daemon, &["resume", RESYNC]);
        assert!(resumed.state == JobState::Running && resumed.done >= begun.done, "{resumed:?}");
        grows(&daemon, RESYNC, resumed.done);
        order(&daemon, &["cancel", RESYNC]);
        // It is out after a restart, too.
        daemon.crash();
        daemon.restart();
        wait_for("the function", || status(&daemon)["state"] == "out");
        assert_eq!(jobs(&daemon), []);
        daemon.ok(&["function", "tell", "disk", "resync"]);
        daemon.ok(&["job", "show", RESYNC, "--follow"]);
        copies_are_equal(&daemon);
        daemon.stop();
    }
}

#[test]
fn a_pace_counts_at_once_and_a_wrong_one_is_refused() {
    let daemon = Daemon::start(&copied("mirror", "daemon"));
    grows(&daemon, RESYNC, 0);
    let slow = order(&daemon, &["pace", RESYNC, "--mib-s", "1", "--share", "50", "--priority", "low"]);
    assert_eq!((slow.pace.mib_s, slow.pace.share), (Some(1), Some(50)));
    let began = std::time::Instant::now();
    let first = grows(&daemon, RESYNC, 0).done;
    let last = grows(&daemon, RESYNC, first + (1 << 20)).done;
    // A piece of 512 KiB may be in flight at the change, and one more may follow at once.
    let most = (began.elapsed().as_secs_f64() + 2.0) * f64::from(1 << 20);
    assert!(((last - first) as f64) < most, "{} bytes in {:?}", last - first, began.elapsed());
    let shown = daemon.ok(&["job", "show", RESYNC]);
    assert!(shown.contains("1 MiB/s, 50 % of the time, priority low"), "{shown}");
    let free = order(&daemon, &["pace", RESYNC, "--mib-s", "0", "--share", "100"]);
    assert_eq!((free.pace.mib_s, free.pace.share), (None, None));
    daemon.ok(&["job", "show", RESYNC, "--follow"]);
    copies_are_equal(&daemon);

    for (limit, why) in [(&["--share", "0"][..], "0 is not in 1..=100"), (&[], "required")] {
        let refused = daemon.run(&[&["job", "pace", RESYNC], limit].concat());
        assert!(
            !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains(why),
            "{refused:?}"
        );
    }
    let why = daemon.fails(&["job", "show", "disk:1:1:sync"]);
    assert!(why.contains("there is no job `disk:1:1:sync`") && why.contains("sluice job list"), "{why}");
    assert!(daemon.fails(&["job", "pause", "other:1:1:resync"]).contains("there is no job"));
}

#[test]
fn a_comparison_is_a_job() {
    let daemon = Daemon::start(&copied("mirror", "daemon"));
    grows(&daemon, RESYNC, 0);
    daemon.ok(&["job", "show", RESYNC, "--follow"]);
    copies_are_equal(&daemon);
    daemon.ok(&["function", "tell", "disk", "check"]);
    daemon.ok(&["job", "show", "disk:1:1:check", "--follow"]);
    let check = job(&daemon, "disk:1:1:check").expect("it has run");
    assert_eq!((check.state, check.done, check.total), (JobState::Done, SIZE, SIZE));
    assert_eq!(check.detail, "0 pieces differ, 0 cannot be read");
}

const DELETE: &str = "disk:1:1:delete";

/// Bytes of a drive with versions.
const VERSIONED: u64 = 16 << 20;

/// Starts a daemon with a drive whose content was written twice, once before a version of it.
fn versioned(place: &str) -> Daemon {
    let daemon = Daemon::start(&format!(
        r#"
[[drive]]
name = "disk"
[[drive.namespace]]
target = "file"
path = "disk.store"
size = "64MiB"
functions = [ {{ kind = "uif", function = "snapshot", place = "{place}",
                options = {{ size = "16MiB", chunk = "4KiB", delete_mib_s = "2" }} }} ]
"#
    ));
    fill(&daemon, 1);
    daemon.ok(&["snapshot", "create", "disk", "monday"]);
    fill(&daemon, 2);
    daemon
}

fn fill(daemon: &Daemon, seed: u8) {
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    for at in (0..VERSIONED).step_by(128 << 10) {
        disk.write(at / 512, &[seed; 128 << 10]).expect("the drive serves");
    }
}

fn free(daemon: &Daemon) -> u64 {
    let status = daemon.ok(&["snapshot", "status", "disk", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("a status");
    status["free"].as_u64().expect("bytes")
}

#[test]
fn a_deletion_is_paused_resumed_and_followed() {
    for place in ["daemon", "process"] {
        let daemon = versioned(place);
        let before = free(&daemon);
        daemon.ok(&["snapshot", "delete", "disk", "monday"]);
        assert_eq!(daemon.ok(&["snapshot", "list", "disk", "-o", "json"]).trim(), "[]");
        let begun = grows(&daemon, DELETE, 0);
        assert_eq!((begun.state, begun.total, begun.pace.mib_s), (JobState::Running, VERSIONED, Some(2)));
        let paused = pause(&daemon, DELETE);
        let (some, hosts) = (free(&daemon), 20);
        write_versioned(&daemon, hosts);
        let still = job(&daemon, DELETE).expect("it is paused");
        assert_eq!((still.state, still.done, free(&daemon)), (JobState::Paused, paused.done, some));
        assert!(some > before && some < before + VERSIONED, "{before} {some}");
        order(&daemon, &["pace", DELETE, "--mib-s", "4"]);
        order(&daemon, &["resume", DELETE]);
        grows(&daemon, DELETE, still.done);
        let told = daemon.ok(&["job", "show", DELETE, "--follow"]);
        assert!(told.contains("(100 %)"), "{told}");
        assert_eq!(free(&daemon), before + VERSIONED);
    }
}

/// Writes chunks of the drive again, which belong to no version.
fn write_versioned(daemon: &Daemon, chunks: u64) {
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    (0..chunks).for_each(|chunk| disk.write(chunk * 8, &[3; 4096]).expect("the drive serves"));
}

#[test]
fn a_cancelled_deletion_leaves_chunks_in_use_and_says_so() {
    let daemon = versioned("daemon");
    let before = free(&daemon);
    daemon.ok(&["snapshot", "delete", "disk", "monday"]);
    grows(&daemon, DELETE, 0);
    let cancelled = order(&daemon, &["cancel", DELETE]);
    assert_eq!(cancelled.state, JobState::Cancelled);
    assert!(cancelled.detail.contains("its chunks stay in use until this is resumed"), "{cancelled:?}");
    let some = free(&daemon);
    assert!(some < before + VERSIONED);
    // The next deletion frees them, too.
    daemon.ok(&["snapshot", "create", "disk", "tuesday"]);
    assert_eq!(free(&daemon), some);
    order(&daemon, &["pace", DELETE, "--mib-s", "0"]);
    daemon.ok(&["snapshot", "delete", "disk", "tuesday", "--follow"]);
    assert_eq!(free(&daemon), before + VERSIONED);
    assert_eq!(job(&daemon, DELETE).map(|job| job.state), Some(JobState::Done));
}

#[test]
fn a_deletion_whose_daemon_dies_is_complete_after_the_next_start() {
    let mut daemon = versioned("daemon");
    let before = free(&daemon);
    daemon.ok(&["snapshot", "delete", "disk", "monday"]);
    let begun = grows(&daemon, DELETE, 0);
    assert!(begun.done < begun.total, "{begun:?}");
    daemon.crash();
    daemon.restart();
    wait_for("the store", || daemon.run(&["snapshot", "status", "disk"]).status.success());
    assert_eq!(daemon.ok(&["snapshot", "list", "disk", "-o", "json"]).trim(), "[]");
    assert_eq!(free(&daemon), before + VERSIONED);
    let done = job(&daemon, DELETE).expect("the log has it");
    assert_eq!((done.state, done.done, done.total), (JobState::Done, VERSIONED, VERSIONED));
    let mut host = daemon.host("disk");
    let mut disk = namespace(&mut host, 1);
    let mut read = [0; 4096];
    disk.read(0, &mut read).expect("the drive serves");
    assert_eq!(read, [2; 4096]);
}
