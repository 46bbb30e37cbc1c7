//! The function over members of which one part or another fails alone, while it goes on.

use super::interrupt;
use super::live;
use super::rig::Rig;
use sluice_sim::seeds;

/// Faults besides members that come and go.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    /// Power loss of one member, which reports the loss with its next answer.
    power: bool,
    /// Failed flush that loses the data it should make durable.
    flushes: bool,
    /// Write that times out on a member, and is done later.
    late: bool,
    /// Member that is another disk after a restart of the daemon.
    replaced: bool,
}

/// Counters of all runs of a test.
#[derive(Debug, Default)]
struct Happened {
    good: u64,
    failed: u64,
    power_losses: u64,
    lost_flushes: u64,
    timeouts: u64,
    replaced: u64,
}

/// Applies a random fault to one part.
fn happens(rig: &mut Rig, steps: Steps) {
    let member = rig.random.below(rig.members as u64) as usize;
    match rig.random.below(8) {
        0 | 1 if steps.power => rig.lose_power_of(member),
        2 | 3 if steps.flushes => rig.fail_next_flush_of(member),
        4 | 5 if steps.late => rig.parts.late = [None, Some(10), Some(100)][rig.random.below(3) as usize],
        6 => rig.up[member] = !rig.up[member],
        _ => rig.up.fill(true),
    }
}

/// Lets a read, or a request of the set itself, be the first to find a fault.
fn answer_first(rig: &mut Rig) {
    if rig.is_mirror && rig.random.one_in(2) {
        (0..4).for_each(|_| rig.submit_read());
    }
    (0..rig.random.below(60)).for_each(|_| rig.turn());
}

fn life(rig: &mut Rig, steps: Steps) {
    for _ in 0..rig.random.between(1, 5) {
        happens(rig, steps);
        answer_first(rig);
        live(rig);
        if rig.is_mirror {
            (0..8).for_each(|_| rig.submit_read());
            live(rig);
        }
    }
}

fn run(steps: Steps, failed_once: &[u64], count: u64) -> Happened {
    let mut happened = Happened::default();
    for seed in seeds(failed_once, count) {
        let mut rig =
            if seed.is_multiple_of(3) { Rig::new(seed) } else { Rig::mirror(seed, 2 + (seed % 2) as usize) };
        for _ in 0..8 {
            life(&mut rig, steps);
            if steps.replaced && rig.random.one_in(3) {
                let (member, cut) = (rig.random.below(rig.members as u64) as usize, rig.random.one_in(2));
                rig.kill_daemon_and_replace(member, cut);
                rig.read_all();
            } else {
                interrupt(&mut rig);
            }
        }
        rig.come_to_rest();
        happened.good += rig.good;
        happened.failed += rig.failed;
        happened.power_losses += rig.parts.power_losses;
        happened.lost_flushes += rig.parts.lost_flushes;
        happened.timeouts += rig.parts.timeouts;
        happened.replaced += rig.parts.replaced;
    }
    assert!(happened.good > happened.failed, "{happened:?}");
    happened
}

#[test]
fn a_member_that_loses_power_alone_loses_no_write_of_the_host() {
    let happened = run(Steps { power: true, ..Steps::default() }, &[], 8);
    assert!(happened.power_losses > 20, "{happened:?}");
}

/// Submits several reads to a member that lost power: the first answer reports that, and the others have old data.
#[test]
fn reads_in_flight_to_a_member_that_lost_power_return_data_of_another() {
    for seed in seeds(&[], 8) {
        let mut rig = Rig::mirror(seed, 2);
        rig.come_to_rest();
        for _ in 0..10 {
            (0..10).for_each(|_| rig.submit());
            while !rig.is_idle() {
                rig.turn();
            }
        }
        (0..8).for_each(|_| rig.submit_read());
        rig.lose_power_of(0);
        while !rig.is_idle() {
            rig.turn();
        }
        rig.come_to_rest();
    }
}

#[test]
fn a_flush_that_fails_and_loses_writes_is_told_to_the_host() {
    let happened = run(Steps { flushes: true, ..Steps::default() }, &[], 8);
    assert!(happened.lost_flushes > 10, "{happened:?}");
}

#[test]
fn a_write_that_times_out_and_is_done_later_is_read_nowhere() {
    let happened = run(Steps { late: true, ..Steps::default() }, &[], 8);
    assert!(happened.timeouts > 20, "{happened:?}");
}

#[test]
fn a_disk_that_is_another_after_a_restart_is_copied_to() {
    let happened = run(Steps { replaced: true, ..Steps::default() }, &[], 8);
    assert!(happened.replaced > 10, "{happened:?}");
}

#[test]
fn whatever_happens_to_one_member_after_the_other() {
    let happened = run(Steps { power: true, flushes: true, late: true, replaced: true }, &[16, 17], 8);
    assert!(happened.power_losses > 10 && happened.lost_flushes > 5, "{happened:?}");
    assert!(happened.timeouts > 10 && happened.replaced > 5, "{happened:?}");
}
