//! Format NVM and Sanitize as jobs: paused, resumed, refused to be cancelled, killed, each with a progress that
//! grows.

use crate::common::{Daemon, namespace, wait_for};
use crate::jobs::{grows, job, order};
use sluice_control::drives::{JobState, JobView};
use sluice_host::Controller;
use sluice_nvme::SubmissionEntry;
use sluice_nvme::opcode::admin;

const SIZE: u64 = 1 << 30;

/// Bytes of a step.
const STEP: u64 = 32 << 20;

const BLOCK_ERASE: u32 = 2;

/// Returns a drive; with `slow`, each step of an erasure takes a while.
fn drive(slow: bool) -> String {
    let functions = if slow { "functions = [ { kind = \"delay\", write_us = 300_000 } ]\n" } else { "" };
    format!(
        "[[drive]]\nname = \"disk\"\n[[drive.namespace]]\ntarget = \"file\"\npath = \"disk.img\"\n\
         size = \"1GiB\"\n{functions}"
    )
}

/// Starts an erasure, of which `name` is the job.
fn begin(host: &mut Controller, name: &str) {
    if name == "sanitize" {
        let entry = SubmissionEntry { opcode: admin::SANITIZE, cdw10: BLOCK_ERASE, ..Default::default() };
        host.admin(entry).expect("it begins");
        return;
    }
    let entry = SubmissionEntry { opcode: admin::FORMAT_NVM, nsid: 1, cdw10: 1, ..Default::default() };
    host.admin_queue().submit(entry).expect("room");
    host.admin_queue().ring().expect("the daemon is there");
}

/// Returns the last blocks of the drive, which are erased last.
fn last(daemon: &Daemon) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let image = std::fs::File::open(daemon.folder.path().join("disk.img")).expect("the target");
    let mut last = vec![0; 8192];
    image.read_exact_at(&mut last, SIZE - 8192).expect("its end");
    last
}

fn known(daemon: &Daemon, id: &str) -> JobView {
    job(daemon, id).expect("the job is listed")
}

#[test]
fn an_erasure_is_paused_resumed_killed_and_goes_on() {
    for (name, id) in [("format", "disk:1:0:format"), ("sanitize", "disk:0:0:sanitize")] {
        let mut daemon = Daemon::start(&drive(true));
        let mut host = daemon.host("disk");
        namespace(&mut host, 1).write(SIZE / 512 - 16, &[7; 8192]).expect("it is in range");
        begin(&mut host, name);
        let begun = grows(&daemon, id, 0);
        assert_eq!(
            (begun.state, begun.total, begun.function.as_str()),
            (JobState::Running, SIZE, "controller")
        );

        // Only the step in flight may still end.
        let paused = order(&daemon, &["pause", id]);
        assert_eq!(paused.state, JobState::Paused);
        for _ in 0..50 {
            host.identify_namespace(1).expect("the controller serves");
        }
        let still = known(&daemon, id);
        assert_eq!((still.state, still.bytes_s), (JobState::Paused, 0));
        assert!(still.done <= paused.done + STEP && still.done < SIZE, "{paused:?} {still:?}");

        let why = daemon.fails(&["job", "cancel", id]);
        assert!(why.contains("cannot be cancelled"), "{why}");
        assert_eq!(known(&daemon, id).state, JobState::Paused);

        assert_eq!(order(&daemon, &["resume", id]).state, JobState::Running);
        let running = grows(&daemon, id, paused.done + STEP);
        assert!(running.done <= running.total, "{running:?}");
        let slow = order(&daemon, &["pace", id, "--mib-s", "5", "--priority", "low"]);
        assert_eq!(slow.pace.mib_s, Some(5));

        drop(host);
        daemon.crash();
        assert_eq!(last(&daemon), [7; 8192], "it was not erased yet");
        daemon.restart();
        let again = grows(&daemon, id, 0);
        assert!(again.state == JobState::Running && again.total == SIZE, "{again:?}");
        order(&daemon, &["pause", id]);
        daemon.crash();
        daemon.declare("", &drive(false));
        daemon.restart();
        // The pause is stored, and no block is erased.
        let mut host = daemon.host("disk");
        for _ in 0..50 {
            host.identify_namespace(1).expect("the controller serves");
        }
        let paused = known(&daemon, id);
        assert_eq!((paused.state, paused.done), (JobState::Paused, 0));
        assert_eq!(last(&daemon), [7; 8192]);
        order(&daemon, &["resume", id]);
        wait_for("the end of the erasure", || known(&daemon, id).state == JobState::Done);
        daemon.ok(&["job", "show", id, "--follow"]);
        let done = known(&daemon, id);
        assert_eq!((done.done, done.total, done.accepts), (SIZE, SIZE, vec![]));
        assert_eq!(last(&daemon), [0; 8192]);
        let why = daemon.fails(&["job", "pause", id]);
        assert!(why.contains("does not run"), "{why}");
        daemon.stop();
    }
}
