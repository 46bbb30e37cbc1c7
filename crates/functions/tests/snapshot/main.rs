//! The snapshot function against a model: random commands, orders, restarts, faults and power cuts.

mod instance;
mod plan;

use plan::Plan;
use sluice_sim::seeds;

/// Checks a drive that runs for a while, with versions, against the model.
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

/// Checks that a reader of a version sees its contents until it is deleted, while the drive changes.
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

/// Checks a reader of a version while the store becomes larger.
#[test]
fn a_version_is_read_while_its_store_grows() {
    for seed in seeds(&[], 8) {
        let mut plan = Plan::new(seed);
        plan.grow_under_a_reader();
        plan.watch_to_the_end();
        plan.look_at_everything();
    }
}

/// Checks a store that becomes too small: commands fail, and the drive is complete when the store is large
/// enough again.
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

/// Checks a store that fails at random: commands fail, and nothing is lost.
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

/// Checks power cuts at random.
#[test]
fn a_power_cut_leaves_what_was_flushed_and_every_version() {
    for seed in seeds(&[87], 60) {
        let mut plan = Plan::new(seed);
        for _ in 0..5 {
            plan.life(120);
            plan.cut();
            plan.look_at_everything();
        }
    }
}

/// Fails each of the writes of metadata that a run has, and each of its flushes, though it is done, and every
/// flush after it. The next process, or the restored power, finds everything.
#[test]
fn an_error_at_every_write_of_metadata() {
    for seed in seeds(&[], 3) {
        let mut whole = Plan::new(seed);
        whole.life(250);
        for (at, variant) in
            (1..=whole.metadata_writes()).flat_map(|at| (0..4).map(move |variant| (at, variant)))
        {
            let mut plan = Plan::with_variant(seed, variant);
            plan.fail_from(at);
            plan.life(250);
            match variant {
                0 => plan.kill(),
                _ => plan.cut(),
            }
            plan.look_at_everything();
            // The drive continues from there.
            plan.life(20);
            plan.cut();
            plan.look_at_everything();
        }
    }
}

/// Fails one flush at every place where there is one, and loses the data that it was to make durable. The
/// next flushes succeed, and the data written after it is valid without the lost data.
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

/// Fails a flush of the host, and cuts the power before the log is written anew for another reason.
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

/// Checks a log that the next function reads from a cache only.
#[test]
fn a_log_that_a_flush_did_not_write_is_written_by_the_next_function() {
    for seed in seeds(&[206], 60) {
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

/// Checks that a failed flush of the function, after which a host's data may be lost, is reported to the host
/// once.
#[test]
fn a_flush_that_fails_is_reported_to_the_host_once() {
    for seed in seeds(&[], 20) {
        let mut plan = Plan::new(seed);
        plan.lose_what_is_copied();
        assert_eq!([(); 3].map(|()| plan.flushes()), [false, true, true]);
    }
}

/// Checks the same with a power cut soon after.
#[test]
fn nothing_that_was_flushed_is_lost_while_a_flush_that_failed_is_made_good() {
    for seed in seeds(&[], 3) {
        let mut whole = Plan::new(seed);
        whole.life(250);
        for (at, more) in (1..=whole.metadata_writes()).flat_map(|at| [1, 2, 5, 8].map(|more| (at, more))) {
            let mut plan = Plan::with_variant(seed, more);
            plan.lose_after(at, more % 4 == 1);
            plan.cut_at(at + more);
            plan.life(250);
            plan.cut();
            plan.look_at_everything();
        }
    }
}

/// Cuts the power of the machine with the store alone; its next flush fails. A Flush of the host fails, too,
/// and data that was flushed before is complete, with every version.
#[test]
fn a_store_that_loses_power_alone_loses_nothing_that_was_flushed() {
    for seed in seeds(&[], 3) {
        let mut whole = Plan::new(seed);
        whole.life(250);
        for (at, variant) in
            (1..=whole.metadata_writes()).flat_map(|at| (0..3).map(move |variant| (at, variant)))
        {
            let mut plan = Plan::with_variant(seed, variant);
            plan.lose_power_after(at);
            plan.life(250);
            match variant {
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

/// Checks that chunks which were being copied are lost, and are not taken for copied.
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

/// Checks that zeroing a chunk is as durable as a Write Zeroes of it that is acknowledged.
#[test]
fn zeros_that_were_there_before_are_durable_when_they_are_to_be() {
    for seed in seeds(&[], 8) {
        let mut plan = Plan::new(seed);
        assert!(plan.zeroes_wait_for_the_disk());
        plan.cut();
        plan.look_at_everything();
    }
}

/// Cuts the power at each of the writes of metadata that a run has, and each of its flushes.
#[test]
fn a_power_cut_at_every_write_of_metadata() {
    for seed in seeds(&[], 3) {
        let mut whole = Plan::new(seed);
        whole.life(250);
        for (at, variant) in
            (1..=whole.metadata_writes()).flat_map(|at| (0..4).map(move |variant| (at, variant)))
        {
            let mut plan = Plan::with_variant(seed, variant);
            plan.cut_at(at);
            plan.life(250);
            plan.cut();
            plan.look_at_everything();
            // The drive continues from there.
            plan.life(20);
            plan.cut();
            plan.look_at_everything();
        }
    }
}

/// Cuts the power in the same places and tears sectors: a torn block of metadata is never taken for a whole one. Seed 7
/// fails without the checksum of a block.
#[test]
fn a_power_cut_that_tears_a_sector_of_metadata() {
    for seed in seeds(&[7], 0) {
        let mut whole = Plan::new(seed);
        whole.life(250);
        for (at, variant) in
            (1..=whole.metadata_writes()).flat_map(|at| (0..2).map(move |variant| (at, variant)))
        {
            let mut plan = Plan::with_variant(seed, variant);
            plan.tear();
            plan.cut_at(at);
            plan.life(250);
            plan.cut();
            plan.look_at_everything();
            plan.life(20);
            plan.cut();
            plan.look_at_everything();
        }
    }
}
