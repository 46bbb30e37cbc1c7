//! Random stacks of functions over simulated disks. Every command comes back exactly once, its status is
//! kept, and reads return a permitted result, before and after crashes and power cuts.

use crate::layers::{BLOCKS_MAX, FAULTS, Lie, Plan, disks};
use sluice_sim::{Random, StackHost, Workload, seeds};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds that once failed.
const FAILED_ONCE: &[u64] = &[];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Calamity {
    Crash,
    PowerCut,
}

/// Runs a random stack for some hundred steps, with calamities in between.
fn run(seed: u64, faults: bool, calamity: Calamity) -> u64 {
    let mut random = Random::new(seed);
    let count = random.between(1, 3) as usize;
    let height = random.between(1, 6) as u32;
    let plan = Plan::random(&mut random, count, height, faults);
    run_plan(&mut random, &plan, count, faults, calamity)
}

fn run_plan(random: &mut Random, plan: &Plan, count: usize, faults: bool, calamity: Calamity) -> u64 {
    let disks = disks(random, count);
    let workload = Workload {
        depth: random.between(1, 32) as u16,
        blocks_max: random.between(1, BLOCKS_MAX),
        faults: if faults { FAULTS } else { &[] },
    };
    let under = disks.clone();
    let mut host =
        StackHost::new(random.next_u64(), workload, disks, move |engine| plan.build(&under, engine));
    for _ in 0..random.between(1, 6) {
        host.run(random.below(300));
        match calamity {
            Calamity::Crash => host.crash(),
            Calamity::PowerCut => host.power_cut(),
        }
        host.verify();
        host.run(random.below(100));
        host.drain();
        host.verify();
    }
    host.finished()
}

#[test]
fn every_acknowledged_write_survives_a_crash() {
    let finished: u64 = seeds(FAILED_ONCE, 200).map(|seed| run(seed, false, Calamity::Crash)).sum();
    assert!(finished > 1000, "only {finished} commands were tried");
}

/// Conformance: Base 7.1, what was written before a Flush is durable after it.
#[test]
fn every_flushed_write_survives_a_power_cut() {
    for seed in seeds(FAILED_ONCE, 300) {
        run(seed, false, Calamity::PowerCut);
    }
}

#[test]
fn failed_commands_leave_the_old_or_the_new() {
    for seed in seeds(FAILED_ONCE, 300) {
        run(seed, true, Calamity::PowerCut);
    }
}

/// Checks that the model objects: a model that never does proves nothing.
#[test]
fn the_model_detects_every_false_result() {
    for lie in [Lie::ForgetFlush, Lie::ForgetFua, Lie::LoseWrite, Lie::ReadElsewhere, Lie::ShortWrite] {
        let caught = (0..40).filter(|&seed| catch(seed, lie)).count();
        assert!(caught > 10, "{lie:?} was caught in {caught} of 40 runs");
    }
}

/// Returns whether the run ends because a read returned a forbidden result.
fn catch(seed: u64, lie: Lie) -> bool {
    let plan = Plan::Liar { lie, below: Box::new(Plan::Target(0)) };
    let attempt = || run_plan(&mut Random::new(seed), &plan, 1, false, Calamity::PowerCut);
    let Err(panic) = catch_unwind(AssertUnwindSafe(attempt)) else { return false };
    panic.downcast_ref::<String>().is_some_and(|message| message.contains("it may be"))
}
