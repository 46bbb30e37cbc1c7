//! The function `atomic` against the model: power cuts at every moment, and no write is ever seen in part.

use super::rig::Rig;
use super::{assert_mixed, live, live_with_failures};
use sluice_command::Operation;
use sluice_sim::seeds;

/// Runs load for a fixed number of steps. Returns false if the power fails.
fn run(rig: &mut Rig, steps: u64) -> bool {
    (0..steps).all(|_| match rig.random.below(3) {
        0 => {
            rig.submit();
            true
        }
        _ => rig.turn(),
    })
}

/// Lets time pass until the drive serves again after failures.
fn settle(rig: &mut Rig) {
    (rig.faults, rig.log_faults) = (0.0, 0.0);
    for _ in 0..1000 {
        rig.drain();
        let good = rig.good;
        rig.submit_at(Operation::Read, 0, 1);
        rig.drain();
        if rig.good > good {
            return;
        }
        rig.turn();
    }
    panic!("it does not serve again: {:?}", rig.tell("metrics"));
}

#[test]
fn an_atomic_drive_is_what_was_written() {
    for seed in seeds(&[], 20) {
        let mut rig = Rig::atomic(seed);
        for _ in 0..4 {
            live(&mut rig, 500);
        }
        rig.drain();
        rig.read_all();
        assert_eq!(rig.failed, 0);
        let metrics = rig.tell("metrics").expect("it has some");
        for name in ["logged_total", "straight_total", "checkpoints_total"] {
            assert!(!metrics.contains(&format!("{name} 0\n")), "{metrics}");
        }
    }
}

#[test]
fn crashes_and_power_cuts_leave_whole_writes() {
    for seed in seeds(&[], 30) {
        let mut rig = Rig::atomic(seed);
        for _ in 0..6 {
            live(&mut rig, 300);
            let cut = rig.random.one_in(2);
            rig.kill_daemon(cut);
            rig.read_all();
        }
        assert_eq!(rig.failed, 0);
    }
}

/// Cuts the power at every write and flush of a run, of the data and of the log, and reads everything after it.
#[test]
fn a_power_cut_at_every_write_and_flush() {
    for seed in seeds(&[], 1) {
        let mut whole = Rig::atomic(seed);
        let before = whole.changes;
        run(&mut whole, 400);
        assert!(whole.changes > before + 100, "it has writes: {}", whole.changes);
        for at in before + 1..=whole.changes {
            let mut rig = Rig::atomic(seed);
            rig.cut_change = Some(at);
            assert!(!run(&mut rig, 400), "the power fails at {at}");
            rig.cut_change = None;
            rig.kill_daemon(true);
            rig.read_all();
            // A second cut: entries that were written again are not durable twice.
            run(&mut rig, 60);
            rig.kill_daemon(true);
            rig.read_all();
        }
    }
}

/// Cuts the power at every write and flush of a recovery.
#[test]
fn a_power_cut_at_every_step_of_a_recovery() {
    let mut cuts = 0;
    for seed in seeds(&[], 8) {
        for step in 1.. {
            let mut rig = Rig::atomic(seed);
            run(&mut rig, 500);
            rig.end_daemon(true);
            rig.cut_change = Some(rig.changes + step);
            if rig.serves() {
                break;
            }
            cuts += 1;
            rig.cut_change = None;
            rig.kill_daemon(true);
            rig.read_all();
        }
    }
    assert!(cuts > 30, "{cuts}");
}

/// Fails requests to the data, each of which may be done in part: reads never show that.
#[test]
fn failures_below_never_show_a_part() {
    let run = |seed| live_with_failures(&mut Rig::atomic(seed), |_| [0.0, 0.01], settle);
    assert_mixed(seeds(&[], 20).map(run));
}

/// Fails requests to the log, each of which may be done in part or as a whole, and to the data at the same time.
/// A write that failed may be there after the next start, as a whole.
#[test]
fn failures_of_the_log_never_show_a_part() {
    let faults = |round| [0.03, if round % 2 == 0 { 0.0 } else { 0.005 }];
    let run = |seed| live_with_failures(&mut Rig::atomic(seed), faults, settle);
    assert_mixed(seeds(&[], 20).map(run));
}

/// Loses the writes of the data's layer that are not durable, while the function runs: the log has them.
#[test]
fn a_loss_below_leaves_whole_writes_and_fails_one_flush() {
    for seed in seeds(&[], 20) {
        let mut rig = Rig::atomic(seed);
        for _ in 0..3 {
            live(&mut rig, 300);
            rig.lose_power_below();
            // All but one of these reads are executed below before the function can act on the loss.
            for first in (0..160).step_by(32) {
                rig.submit_at(Operation::Read, first, 32);
            }
            rig.drain();
            let failed = rig.failed;
            rig.submit_at(Operation::Flush, 0, 0);
            rig.drain();
            assert_eq!(rig.failed, failed + 1, "a Flush fails");
            rig.read_all();
        }
    }
}

/// Changes the limit between two openings: the log is written to the places first.
#[test]
fn another_limit_begins_another_log() {
    for seed in seeds(&[], 10) {
        let mut rig = Rig::atomic(seed);
        for limit in [4, 8, 16] {
            live(&mut rig, 300);
            rig.set_limit(limit);
            rig.kill_daemon(true);
            rig.read_all();
        }
        assert_eq!(rig.failed, 0);
    }
}

/// Exchanges the storage below under the function, as a replaced target does: the log is that of the new storage.
#[test]
fn a_log_follows_storage_that_is_exchanged_under_the_function() {
    for seed in seeds(&[], 10) {
        let mut rig = Rig::atomic(seed);
        for number in 0..3 {
            live(&mut rig, 300);
            rig.drain();
            rig.exchange_storage(0, 70 + number);
            assert!(rig.serves());
            rig.drain_all();
            live(&mut rig, 100);
            rig.kill_daemon(true);
            rig.read_all();
        }
        assert_eq!(rig.failed, 0);
    }
}

/// Refuses a log that belongs to other data, and one that is something else. Nothing is written.
#[test]
fn a_wrong_log_is_refused() {
    let mut rig = Rig::atomic(5);
    (0..).find(|_| {
        run(&mut rig, 20);
        let used = rig.tell("metrics").expect("it has some");
        !used.contains("slots_used 0\n")
    });
    rig.end_daemon(true);
    let (data, log) = (rig.image(0), rig.image(1));
    let former = rig.exchange_storage(0, 99);
    assert!(!rig.serves(), "it is other storage");
    assert!(rig.image(0) == data && rig.image(1) == log);
    rig.exchange_storage(0, former);
    rig.end_daemon(true);
    rig.disks[1].lock().write(0, &[7; 8192]);
    assert!(!rig.serves(), "it is something else");
    rig.end_daemon(true);
    rig.disks[1].lock().write(0, &log[..8192]);
    assert!(rig.serves());
    rig.read_all();
}
