//! A random stack, described, so that it can be built again after a crash.

use super::{Liar, Lie, Pools, Split};
use sluice_command::{NodeId, Stack, StackBuilder};
use sluice_functions::{
    Concat, Delay, DelayConfig, Fault, Map, MapChunk, MapTable, Outcome, Pass, PassConfig, Rule, Stripe,
    StripeConfig, When,
};
use sluice_nvme::Status;
use sluice_sim::{DiskConfig, Random, SimDisk, SimEngine, SimTarget};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Target(usize),
    Pass {
        watch: bool,
        below: Box<Plan>,
    },
    Delay {
        config: DelayConfig,
        below: Box<Plan>,
    },
    Fault {
        seed: u64,
        rules: Vec<Rule>,
        below: Box<Plan>,
    },
    Split {
        boundary: u64,
        below: Box<Plan>,
    },
    Stripe {
        chunk: u64,
        legs: Vec<Plan>,
    },
    Concat {
        legs: Vec<Plan>,
    },
    /// All chunks of the legs in an order of the seed.
    Map {
        shift: u32,
        seed: u64,
        legs: Vec<Plan>,
    },
    Liar {
        lie: Lie,
        below: Box<Plan>,
    },
    /// A volume of the pool on a disk, with this number and this size in extents.
    Thin {
        disk: usize,
        volume: u32,
        extents: u64,
        below: Box<Plan>,
    },
}

pub(crate) const BLOCK: u32 = 512;
pub(crate) const BLOCKS_MAX: u64 = 8;
/// Statuses of [`Plan::random`]'s faults.
pub(crate) const FAULTS: &[Status] = &[
    Status::INTERNAL_ERROR,
    Status::NAMESPACE_NOT_READY,
    Status::UNRECOVERED_READ_ERROR,
    Status::WRITE_FAULT,
];

impl Plan {
    /// Returns a stack over `disks` disks with about `height` functions above each.
    pub(crate) fn random(random: &mut Random, disks: usize, height: u32, faults: bool) -> Plan {
        let mut legs: Vec<Plan> = (0..disks).map(Plan::Target).collect();
        for leg in &mut legs {
            for _ in 0..random.below(u64::from(height) / 2 + 1) {
                *leg = leg.clone().under(random, faults);
            }
        }
        let mut plan = match legs.len() {
            1 => legs.remove(0),
            _ if random.one_in(3) => Plan::Concat { legs },
            _ if random.one_in(2) => {
                let shift = BLOCK.trailing_zeros() + random.below(3) as u32;
                Plan::Map { shift, seed: random.next_u64(), legs }
            }
            _ => Plan::Stripe { chunk: u64::from(BLOCK) << random.below(3), legs },
        };
        for _ in 0..random.between(0, u64::from(height) - u64::from(height) / 2) {
            plan = plan.under(random, faults);
        }
        plan
    }

    /// Returns functions over one disk that do not fan out: transfers may be of any length.
    pub(crate) fn unsplit(random: &mut Random, height: u64, faults: bool) -> Plan {
        let mut plan = Plan::Target(0);
        while plan.depth() <= height && !random.one_in(4) {
            let over = plan.clone().under(random, faults);
            plan = if over.splits() == 0 { over } else { plan };
        }
        plan
    }

    fn depth(&self) -> u64 {
        match self {
            Plan::Target(_) => 1,
            Plan::Stripe { legs, .. } | Plan::Concat { legs } | Plan::Map { legs, .. } => {
                1 + legs.iter().map(Plan::depth).max().unwrap_or(0)
            }
            Plan::Pass { below, .. } | Plan::Delay { below, .. } => 1 + below.depth(),
            // The home of the pool has a layer of its own.
            Plan::Thin { below, .. } => 2 + below.depth(),
            Plan::Fault { below, .. } | Plan::Split { below, .. } | Plan::Liar { below, .. } => {
                1 + below.depth()
            }
        }
    }

    pub(crate) fn under(self, random: &mut Random, faults: bool) -> Plan {
        let below = Box::new(self);
        match random.below(if faults { 6 } else { 4 }) {
            0 => Plan::Pass { watch: false, below },
            1 => Plan::Pass { watch: true, below },
            2 => {
                let mut some_ns = || random.below(3) * random.below(100_000);
                let config = DelayConfig {
                    read_ns: some_ns(),
                    write_ns: some_ns(),
                    flush_ns: some_ns(),
                    held_max: 1 + random.below(200) as usize,
                };
                Plan::Delay { config, below }
            }
            // Each multiplies the children that a command can have.
            3 if below.splits() < 2 => Plan::Split { boundary: u64::from(BLOCK) << random.below(3), below },
            3 => *below,
            _ => {
                let rules = (0..random.between(1, 3)).map(|_| any_rule(random)).collect();
                Plan::Fault { seed: random.next_u64(), rules, below }
            }
        }
    }

    /// Returns the number of layers that fan out, on the longest way down.
    fn splits(&self) -> u32 {
        match self {
            Plan::Target(_) => 0,
            Plan::Split { below, .. } | Plan::Thin { below, .. } => 1 + below.splits(),
            Plan::Stripe { legs, .. } | Plan::Concat { legs } | Plan::Map { legs, .. } => {
                1 + legs.iter().map(Plan::splits).max().unwrap_or(0)
            }
            Plan::Pass { below, .. } | Plan::Delay { below, .. } => below.splits(),
            Plan::Fault { below, .. } | Plan::Liar { below, .. } => below.splits(),
        }
    }

    pub(crate) fn build(&self, disks: &[SimDisk], engine: &SimEngine) -> Stack {
        let mut builder = StackBuilder::new();
        self.add(&mut builder, disks, engine, &mut Pools::default());
        builder.build()
    }

    fn add(
        &self,
        builder: &mut StackBuilder,
        disks: &[SimDisk],
        engine: &SimEngine,
        pools: &mut Pools,
    ) -> NodeId {
        let mut under = |plan: &Plan| plan.add(builder, disks, engine, pools);
        let below: Vec<NodeId> = match self {
            Plan::Target(_) => Vec::new(),
            Plan::Pass { below, .. } | Plan::Delay { below, .. } | Plan::Fault { below, .. } => {
                vec![under(below)]
            }
            Plan::Split { below, .. } | Plan::Liar { below, .. } | Plan::Thin { below, .. } => {
                vec![under(below)]
            }
            Plan::Stripe { legs, .. } | Plan::Concat { legs } | Plan::Map { legs, .. } => {
                legs.iter().map(&mut under).collect()
            }
        };
        let parts_max = BLOCKS_MAX as u32;
        let added = match self {
            Plan::Target(disk) => {
                let node = builder.next_id();
                builder.add(Box::new(SimTarget::new(disks[*disk].clone(), engine.clone(), node)), &below)
            }
            Plan::Pass { watch, .. } => {
                builder.add(Box::new(Pass::new(PassConfig { watch: *watch })), &below)
            }
            Plan::Delay { config, .. } => builder.add(Box::new(Delay::new(*config)), &below),
            Plan::Fault { seed, rules, .. } => {
                builder.add(Box::new(Fault::new(*seed, rules.clone())), &below)
            }
            Plan::Split { boundary, .. } => {
                builder.add(Box::new(Split { boundary: *boundary, parts_max }), &below)
            }
            Plan::Stripe { chunk, legs } => {
                let data_max = BLOCKS_MAX * u64::from(BLOCK);
                let config = StripeConfig { chunk: *chunk, legs: legs.len() as u64, data_max };
                builder.add(Box::new(Stripe::new(config)), &below)
            }
            Plan::Concat { legs } => builder.add(Box::new(Concat::new(legs.len())), &below),
            Plan::Map { shift, seed, .. } => {
                let sizes: Vec<u64> = below.iter().map(|node| builder.size_of(*node)).collect();
                let table = Arc::new(mixed_table(*shift, *seed, &sizes));
                builder.add(Box::new(Map::new(table, below.len())), &below)
            }
            Plan::Liar { lie, .. } => builder.add(Box::new(Liar::new(*lie)), &below),
            Plan::Thin { disk, volume, extents, .. } => {
                let (thin, home) = pools.open(*disk, &disks[*disk], *volume, *extents);
                let volume = builder.add(Box::new(thin), &below).expect("a stack within its limits");
                builder.fix(below[0]);
                builder.add(Box::new(home), &[volume])
            }
        };
        added.expect("a stack within its limits")
    }
}

/// Returns a table of all chunks of layers of these sizes, in an order of the seed.
fn mixed_table(shift: u32, seed: u64, sizes: &[u64]) -> MapTable {
    let of = |(target, size): (usize, &u64)| (0..size >> shift).map(move |chunk| MapChunk { target, chunk });
    let mut chunks: Vec<MapChunk> = sizes.iter().enumerate().flat_map(of).collect();
    let mut random = Random::new(seed);
    let mut mixed = Vec::new();
    while !chunks.is_empty() {
        mixed.push(Some(chunks.swap_remove(random.below(chunks.len() as u64) as usize)));
    }
    MapTable::new(shift, mixed)
}

fn any_rule(random: &mut Random) -> Rule {
    let status = *random.pick(FAULTS);
    let outcome = match random.below(3) {
        0 => Outcome::Fail(status),
        1 => Outcome::FailAfterwards(status),
        _ => Outcome::Short(random.below(4) * 300),
    };
    let start = random.below(64) * 300;
    Rule {
        bytes: random.one_in(2).then(|| start..start + random.below(64) * 300),
        skip: random.below(20),
        when: When::Chance(0.15),
        ..Rule::new(outcome)
    }
}

/// Creates disks for a plan, all of the same configuration.
pub(crate) fn disks(random: &mut Random, count: usize) -> Vec<SimDisk> {
    let config = DiskConfig {
        size: u64::from(BLOCK) * random.between(4, 24) * 4,
        block_size: BLOCK,
        atomic_write: BLOCK << random.below(4),
        volatile_cache: !random.one_in(4),
    };
    (0..count).map(|_| SimDisk::new(config, random.split())).collect()
}
