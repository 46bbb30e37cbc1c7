//! Random stacks over volumes of thin pools, on disks that tear and reorder writes until a flush.

use crate::layers::{BLOCKS_MAX, FAULTS, Plan, pool_disks};
use sluice_sim::{Random, StackHost, Workload, seeds};

/// Seeds that once failed.
const FAILED_ONCE: &[u64] = &[];

/// Returns a stack over volumes of a pool on each of `disks` disks.
fn plan(random: &mut Random, disks: usize, faults: bool) -> Plan {
    let mut legs = Vec::new();
    for disk in 0..disks {
        for volume in 0..random.between(1, 2) as u32 {
            let mut below = Plan::Target(disk);
            if faults && random.one_in(2) {
                below = below.under(random, true);
            }
            let mut leg = Plan::Thin { disk, volume, extents: random.between(1, 3), below: Box::new(below) };
            if random.one_in(3) {
                leg = leg.under(random, false);
            }
            legs.push(leg);
        }
    }
    match legs.len() {
        1 => legs.remove(0),
        _ if random.one_in(2) => Plan::Concat { legs },
        _ => Plan::Map { shift: 9 + random.below(7) as u32, seed: random.next_u64(), legs },
    }
}

fn run(seed: u64, faults: bool) -> u64 {
    let mut random = Random::new(seed);
    let count = random.between(1, 2) as usize;
    let plan = plan(&mut random, count, faults);
    let disks = pool_disks(&mut random, count);
    let workload = Workload {
        depth: random.between(1, 16) as u16,
        blocks_max: random.between(1, BLOCKS_MAX),
        faults: if faults { FAULTS } else { &[] },
    };
    let under = disks.clone();
    let mut host =
        StackHost::new(random.next_u64(), workload, disks, move |engine| plan.build(&under, engine));
    for _ in 0..random.between(1, 6) {
        host.run(random.below(600));
        match random.one_in(3) {
            true => host.crash(),
            false => host.power_cut(),
        }
        host.verify();
        host.run(random.below(200));
        host.drain();
        host.verify();
    }
    host.finished()
}

#[test]
fn volumes_keep_every_flushed_write_and_show_no_other_bytes() {
    let finished: u64 = seeds(FAILED_ONCE, 20).map(|seed| run(seed, false)).sum();
    assert!(finished > 1000, "only {finished} commands were tried");
}

#[test]
fn volumes_over_a_failing_device_have_the_old_or_the_new() {
    for seed in seeds(FAILED_ONCE, 20) {
        run(seed, true);
    }
}
