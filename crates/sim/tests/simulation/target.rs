//! Guarantee of the simulated target for atomic writes, observed through a stack.

use sluice_command::Stack;
use sluice_sim::{Action, DiskConfig, Random, SimDisk, SimTarget, StackHost, Tag, Workload};

const CONFIG: DiskConfig =
    DiskConfig { size: 8192, block_size: 512, atomic_write: 2048, volatile_cache: true };

/// Writes `blocks` blocks over zeroes, cuts the power at a random step, and counts the blocks that survive.
fn blocks_after_a_cut(seed: u64, blocks: u64) -> u64 {
    let mut random = Random::new(seed);
    let disk = SimDisk::new(CONFIG, random.split());
    let workload = Workload { depth: 8, blocks_max: 16, faults: &[] };
    let under = disk.clone();
    let build = move |engine: &_| {
        let node = sluice_command::StackBuilder::new().next_id();
        Stack::of(Box::new(SimTarget::new(under.clone(), Clone::clone(engine), node)))
    };
    let mut host = StackHost::new(random.next_u64(), workload, vec![disk], build);
    let tags = (1..=blocks).map(Tag).collect();
    assert!(host.submit(Action::Write { first: 3, tags, fua: false }));
    for _ in 0..random.below(2 * blocks) {
        host.answer();
    }
    host.power_cut();
    host.verify();
    (3..3 + blocks).filter(|&block| host.model.known(block) != Some(Tag::ZERO)).count() as u64
}

/// Conformance: Base 3.4.3, a write of the atomic unit is never seen half done after power was lost.
#[test]
fn a_write_of_the_atomic_unit_is_never_torn() {
    let found: Vec<u64> = (0..200).map(|seed| blocks_after_a_cut(seed, 4)).collect();
    assert!(found.iter().all(|&blocks| blocks == 0 || blocks == 4), "{found:?}");
    assert!(found.contains(&0) && found.contains(&4));
}

#[test]
fn a_longer_write_can_be_torn_at_any_block() {
    let found: Vec<u64> = (0..400).map(|seed| blocks_after_a_cut(seed, 5)).collect();
    assert!((0..=5).all(|blocks| found.contains(&blocks)), "{found:?}");
}
