//! The snapshot function against a model: random commands, orders, restarts, faults and power cuts.

mod plan;
mod seat;

use plan::Plan;
use sluice_sim::seeds;

/// A drive that works for a while, with versions, and is what the model says.
#[test]
fn a_drive_and_its_versions_are_what_they_were() {
    for seed in seeds(&[], 40) {
        let mut plan = Plan::new(seed);
        for _ in 0..12 {
            plan.life(100);
            plan.restart();
        }
        plan.look_at_everything();
        assert!(plan.hits() > 0 || seed != 0, "some commands go past the function");
    }
}

/// Who reads a version sees what it was, until it is deleted, whatever becomes of the drive meanwhile.
#[test]
fn a_version_is_read_while_the_drive_goes_on() {
    for seed in seeds(&[], 40) {
        let mut plan = Plan::new(seed);
        for _ in 0..6 {
            plan.watch_one();
            plan.life(150);
        }
        plan.watch_to_the_end();
        plan.look_at_everything();
    }
}

/// The same with a store that becomes larger under it.
#[test]
fn a_version_is_read_while_its_store_grows() {
    for seed in seeds(&[], 8) {
        let mut plan = Plan::new(seed);
        plan.grow_under_a_reader();
        plan.watch_to_the_end();
        plan.look_at_everything();
    }
}

/// A store that becomes too small fails commands, and has the drive again when it is large enough.
#[test]
fn a_store_that_becomes_smaller_fails_what_is_under_way() {
    for seed in seeds(&[], 40) {
        let mut plan = Plan::new(seed);
        for _ in 0..6 {
            plan.life(60);
            plan.shrink_and_grow();
        }
        plan.look_at_everything();
    }
}

/// The same with a store that fails, at random.
#[test]
fn a_store_that_fails_fails_commands_and_loses_nothing() {
    for seed in seeds(&[], 40) {
        let mut plan = Plan::new(seed);
        for _ in 0..4 {
            plan.fail(0.02, 0.01);
            plan.life(300);
            plan.fail(0.0, 0.0);
            plan.life(20);
            plan.restart();
        }
        plan.look_at_everything();
    }
}

/// The same with power cuts at random.
#[test]
fn a_power_cut_leaves_what_was_flushed_and_every_version() {
    for seed in seeds(&[], 60) {
        let mut plan = Plan::new(seed);
        for _ in 0..5 {
            plan.life(120);
            plan.cut();
            plan.look_at_everything();
        }
    }
}

/// Each of the writes of metadata that a run has, and each of its flushes, fails though it is done, and every
/// flush after it. The next process, or the power that returns, finds everything.
#[test]
fn an_error_at_every_write_of_metadata() {
    for seed in seeds(&[], 3) {
        let mut whole = Plan::new(seed);
        whole.life(250);
        for (at, luck) in (1..=whole.metadata_writes()).flat_map(|at| (0..4).map(move |luck| (at, luck))) {
            let mut plan = Plan::with_luck(seed, luck);
            plan.fail_from(at);
            plan.life(250);
            match luck {
                0 => plan.kill(),
                _ => plan.cut(),
            }
            plan.look_at_everything();
            // And it goes on from there.
            plan.life(20);
            plan.cut();
            plan.look_at_everything();
        }
    }
}

/// One flush fails wherever there is one, and what it was to make durable is gone. The next ones
/// succeed, and what is written after it makes sense without.
#[test]
fn a_flush_that_fails_is_not_made_good_by_the_next() {
    for seed in seeds(&[], 4) {
        let mut whole = Plan::new(seed);
        whole.life(250);
        for at in 1..=whole.metadata_writes() {
            let mut plan = Plan::new(seed);
            plan.lose_after(at, false);
            plan.life(250);
            plan.cut();
            plan.look_at_everything();
        }
    }
}

/// The same with one of the host's, and a power cut before the log is written anew for another reason.
#[test]
fn a_flush_of_the_host_that_fails_is_not_made_good_by_the_next() {
    for seed in seeds(&[], 60) {
        for at in (1..=100).step_by(20) {
            let mut plan = Plan::new(seed);
            plan.lose_after(at, true);
            for _ in 0..100 {
                if !plan.has_lost() {
                    plan.life(5);
                }
            }
            plan.life(20);
            plan.cut();
            plan.look_at_everything();
        }
    }
}

/// What the next function reads may be in a cache only.
#[test]
fn a_log_that_a_flush_did_not_write_is_written_by_the_next_function() {
    for seed in seeds(&[], 60) {
        for before in [20, 60, 100] {
            let mut plan = Plan::new(seed);
            plan.life(before);
            plan.lose_from_a_cache();
            plan.life(20);
            plan.cut();
            plan.look_at_everything();
        }
    }
}

/// What a host wrote may be gone with a flush that was none of its own.
#[test]
fn a_flush_that_fails_is_told_to_the_host_once() {
    for seed in seeds(&[], 20) {
        let mut plan = Plan::new(seed);
        plan.lose_what_is_copied();
        assert_eq!([(); 3].map(|()| plan.flushes()), [false, true, true]);
    }
}

/// The same with the power failing soon after.
#[test]
fn nothing_that_was_flushed_is_lost_while_a_flush_that_failed_is_made_good() {
    for seed in seeds(&[], 3) {
        let mut whole = Plan::new(seed);
        whole.life(250);
        for (at, more) in (1..=whole.metadata_writes()).flat_map(|at| [1, 2, 5, 8].map(|more| (at, more))) {
            let mut plan = Plan::with_luck(seed, more);
            plan.lose_after(at, more % 4 == 1);
            plan.cut_at(at + more);
            plan.life(250);
            plan.cut();
            plan.look_at_everything();
        }
    }
}

/// The machine that has the store loses power alone, and its next flush says so. So does a Flush of the host, and what was flushed
/// before is there, with every version.
#[test]
fn a_store_that_loses_power_alone_loses_nothing_that_was_flushed() {
    for seed in seeds(&[], 3) {
        let mut whole = Plan::new(seed);
        whole.life(250);
        for (at, luck) in (1..=whole.metadata_writes()).flat_map(|at| (0..3).map(move |luck| (at, luck))) {
            let mut plan = Plan::with_luck(seed, luck);
            plan.lose_power_after(at);
            plan.life(250);
            match luck {
                0 => plan.look_at_everything(),
                1 => plan.kill(),
                _ => plan.cut(),
            }
            plan.look_at_everything();
            plan.life(20);
            plan.cut();
            plan.look_at_everything();
        }
    }
}

/// Chunks that were being copied are among what is gone, and are not taken for copied.
#[test]
fn a_flush_that_fails_takes_copies_with_it() {
    for seed in seeds(&[], 40) {
        let mut plan = Plan::new(seed);
        plan.lose_what_is_copied();
        plan.look_at_everything();
        plan.cut();
        plan.look_at_everything();
    }
}

/// What makes a chunk zeros is as durable as a Write Zeroes of them that is acknowledged.
#[test]
fn zeros_that_were_there_before_are_durable_when_they_are_to_be() {
    for seed in seeds(&[], 8) {
        let mut plan = Plan::new(seed);
        assert!(plan.zeroes_wait_for_the_disk());
        plan.cut();
        plan.look_at_everything();
    }
}

/// A power cut at each of the writes of metadata that a run has, and each of its flushes.
#[test]
fn a_power_cut_at_every_write_of_metadata() {
    for seed in seeds(&[], 3) {
        let mut whole = Plan::new(seed);
        whole.life(250);
        for (at, luck) in (1..=whole.metadata_writes()).flat_map(|at| (0..4).map(move |luck| (at, luck))) {
            let mut plan = Plan::with_luck(seed, luck);
            plan.cut_at(at);
            plan.life(250);
            plan.cut();
            plan.look_at_everything();
            // And it goes on from there.
            plan.life(20);
            plan.cut();
            plan.look_at_everything();
        }
    }
}
