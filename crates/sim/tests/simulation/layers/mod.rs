//! Layers for tests only: they fan out, or report false results.

mod liar;
mod plan;
mod split;
mod thin;

pub(crate) use liar::{Liar, Lie};
pub(crate) use plan::{BLOCKS_MAX, FAULTS, Plan, disks};
pub(crate) use split::Split;
pub(crate) use thin::{Pools, pool_disks};
