//! Jobs of a set: their progress, and the effect of orders.

use super::rig::{Rig, SIZE};
use super::start;
use crate::{Members, RESYNC_JOB};
use sluice_jobs::{PaceChange, Report, State, Verb};

const NONE: PaceChange = PaceChange { mib_s: None, share: None, priority: None };

fn order(rig: &mut Rig, verb: Verb, name: &str) -> Result<Report, String> {
    rig.mirror.order_job(verb, name, NONE, rig.now_ns)
}

fn resync(rig: &Rig) -> Report {
    let jobs = rig.mirror.jobs();
    jobs.into_iter().find(|job| job.name == RESYNC_JOB).expect("it has run")
}

/// Runs until so many bytes of the copy are done.
fn copy(rig: &mut Rig, bytes: u64) {
    while rig.mirror.jobs().iter().all(|job| job.done < bytes) {
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
}

/// Returns a set that has copied a quarter of itself.
fn begun(members: usize, promotes: bool) -> Rig {
    let mut rig = Rig::new(5, members, promotes);
    start(&mut rig);
    copy(&mut rig, SIZE / 4);
    rig
}

/// Runs for a time in which an unpaused copy would end, with writes of the host.
fn let_it_rest(rig: &mut Rig) {
    for _ in 0..40 {
        rig.write();
        (0..50).for_each(|_| {
            rig.turn();
        });
        rig.let_time_go_by();
    }
}

#[test]
fn progress_grows_up_to_the_total() {
    let mut rig = Rig::new(3, 2, false);
    start(&mut rig);
    let mut last = 0;
    while rig.mirror.jobs().iter().all(|job| job.state != State::Done) {
        if !rig.turn() {
            rig.let_time_go_by();
        }
        if let Some(job) = rig.mirror.jobs().first() {
            // Regions that were copied in vain are part of the run, too.
            assert!(job.done >= last && job.done <= job.total && job.total >= SIZE, "{job:?}");
            last = job.done;
        }
    }
    let job = resync(&rig);
    assert_eq!((job.done, job.total, job.detail.as_str()), (last, last, ""));
}

#[test]
fn a_copy_whose_member_is_lost_waits_for_it() {
    let mut rig = begun(2, true);
    rig.up[1] = false;
    rig.mirror.lose(1);
    while rig.turn() {}
    let job = resync(&rig);
    assert_eq!((job.state, job.detail.as_str()), (State::Running, "waits for {1}, which is lost"));
    assert!(job.total > job.done, "{job:?}");
    rig.mirror.take_out(1).expect("the other has everything");
    while rig.turn() {}
    assert_eq!(resync(&rig).state, State::Cancelled);
    rig.up[1] = true;
    order(&mut rig, Verb::Resume, RESYNC_JOB).expect("it was cancelled");
    rig.come_to_rest();
    assert_eq!(resync(&rig).state, State::Done);
}

#[test]
fn a_paused_copy_does_nothing_while_the_host_writes() {
    let mut rig = begun(2, false);
    assert_eq!(resync(&rig).detail, "from member 0 to {1}");
    order(&mut rig, Verb::Pause, RESYNC_JOB).expect("it runs");
    while rig.turn() {}
    let (paused, acknowledged) = (resync(&rig), rig.acknowledged);
    assert_eq!((paused.state, paused.bytes_s), (State::Paused, 0));
    let_it_rest(&mut rig);
    assert_eq!(resync(&rig).done, paused.done);
    assert!(rig.acknowledged > acknowledged + 20);
    order(&mut rig, Verb::Resume, RESYNC_JOB).expect("it is paused");
    copy(&mut rig, paused.done + 1);
    rig.come_to_rest();
    assert_eq!(resync(&rig).state, State::Done);
}

#[test]
fn a_cancelled_copy_leaves_the_member_out_until_it_is_resumed_and_goes_on_there() {
    for promotes in [false, true] {
        let mut rig = begun(2, promotes);
        let report = order(&mut rig, Verb::Cancel, RESYNC_JOB).expect("it runs");
        assert_eq!(report.state, State::Cancelled);
        assert_eq!(report.detail, "{1} is out of sync until this is resumed, and gets no writes");
        while !rig.mirror.is_noted() {
            if !rig.turn() {
                rig.let_time_go_by();
            }
        }
        let status = rig.mirror.status();
        assert_eq!((status.out, status.state(), status.state_of(1)), (Members::one(1), "out", "out"));
        let_it_rest(&mut rig);
        // The log has that it is out, and what it lacks.
        rig.restart(true);
        start(&mut rig);
        assert_eq!((rig.mirror.status().out, rig.mirror.jobs()), (Members::one(1), Vec::new()));
        let lacks = rig.mirror.status().stale_bytes;
        assert!((1..=SIZE).contains(&lacks), "{lacks}");
        rig.come_to_rest();
        assert!(rig.mirror.status().copied_bytes <= lacks);
    }
}

#[test]
fn a_copy_that_is_resumed_after_a_cancel_goes_on() {
    let mut rig = begun(3, true);
    let done = order(&mut rig, Verb::Cancel, RESYNC_JOB).expect("it runs").done;
    while rig.turn() {}
    let report = order(&mut rig, Verb::Resume, RESYNC_JOB).expect("it was cancelled");
    assert_eq!((report.state, report.done, rig.mirror.status().out), (State::Running, done, Members::NONE));
    rig.come_to_rest();
    let job = resync(&rig);
    assert!(job.state == State::Done && job.done > done, "{job:?}");
    for verb in [Verb::Pause, Verb::Resume, Verb::Cancel] {
        assert_eq!(order(&mut rig, verb, RESYNC_JOB), Err("the job resync is done".to_owned()));
    }
}

#[test]
fn a_comparison_is_paused_cancelled_and_resumed() {
    let mut rig = Rig::new(1, 2, false);
    start(&mut rig);
    rig.come_to_rest();
    rig.mirror.check();
    while rig.mirror.status().check.done < SIZE / 2 {
        rig.turn();
    }
    order(&mut rig, Verb::Pause, "check").expect("it runs");
    while rig.turn() {}
    let paused = rig.mirror.status().check;
    let_it_rest(&mut rig);
    assert_eq!(rig.mirror.status().check, paused);
    let report = order(&mut rig, Verb::Cancel, "check").expect("it is paused");
    assert_eq!((report.state, rig.mirror.status().check.running), (State::Cancelled, false));
    while rig.turn() {}
    rig.rot(1, SIZE - 512);
    order(&mut rig, Verb::Resume, "check").expect("it was cancelled");
    while rig.mirror.status().check.running {
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    let check = rig.mirror.jobs().into_iter().find(|job| job.name == "check").expect("it has run");
    assert_eq!((check.state, check.done, check.total), (State::Done, SIZE, SIZE));
    assert_eq!(check.detail, "1 pieces differ, 0 cannot be read");
}

#[test]
fn a_comparison_that_loses_a_member_fails() {
    let mut rig = Rig::new(1, 2, false);
    start(&mut rig);
    rig.come_to_rest();
    rig.mirror.check();
    while rig.mirror.status().check.done < SIZE / 2 {
        rig.turn();
    }
    rig.up[1] = false;
    order(&mut rig, Verb::Pause, "check").expect("it runs");
    while rig.mirror.status().losses == 0 {
        rig.write();
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    order(&mut rig, Verb::Resume, "check").expect("it is paused");
    while rig.mirror.status().check.running {
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    let check = rig.mirror.jobs().into_iter().find(|job| job.name == "check").expect("it has run");
    assert!(check.state == State::Failed && check.done < SIZE, "{check:?}");
}

#[test]
fn a_pace_limits_a_copy_without_a_busy_host() {
    let mut rig = Rig::new(7, 2, false);
    let change = PaceChange { mib_s: Some(1), ..NONE };
    rig.mirror.order_job(Verb::Pace, RESYNC_JOB, change, 0).expect("a pace can be set at any time");
    start(&mut rig);
    let began_ns = rig.now_ns;
    copy(&mut rig, SIZE);
    let (due_ns, passed_ns) = (SIZE * 1_000_000_000 / (1 << 20), rig.now_ns - began_ns);
    assert!(passed_ns > due_ns / 10 * 9, "{passed_ns} ns, not {due_ns}");
}

/// Checks that the resume of a copy reverses no other order.
#[test]
fn a_member_that_was_taken_out_stays_out_when_a_copy_is_resumed() {
    let mut rig = begun(3, true);
    rig.come_to_rest();
    rig.mirror.take_out(1).expect("another has everything");
    rig.mirror.bring_back(Members::one(2), true);
    while resync(&rig).state != State::Running {
        if !rig.turn() {
            rig.let_time_go_by();
        }
    }
    order(&mut rig, Verb::Cancel, RESYNC_JOB).expect("it runs");
    let cancelled = rig.mirror.status().out;
    assert!(cancelled.contains(1) && cancelled.contains(2), "{cancelled:?}");
    order(&mut rig, Verb::Resume, RESYNC_JOB).expect("it was cancelled");
    let resumed = rig.mirror.status().out;
    assert!(resumed.contains(1) && !resumed.contains(2), "{resumed:?}");
}

/// Checks that a comparison waits for a copy that runs. Beside a paused copy it skips the regions that are stale.
#[test]
fn a_comparison_waits_for_a_copy_unless_that_is_paused() {
    let mut rig = begun(2, false);
    rig.mirror.check();
    copy(&mut rig, SIZE / 2);
    assert_eq!(rig.mirror.status().check.done, 0);
    order(&mut rig, Verb::Pause, RESYNC_JOB).expect("it runs");
    for _ in 0..10_000 {
        if rig.mirror.status().check.running && !rig.turn() {
            rig.let_time_go_by();
        }
    }
    let check = rig.mirror.status().check;
    assert_eq!((check.running, check.done, check.different), (false, SIZE, 0));
    assert_eq!(resync(&rig).state, State::Paused);
}
