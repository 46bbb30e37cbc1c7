//! Layers that only tests need: they fan out, or they lie.

mod liar;
mod plan;
mod split;
mod stripe;

pub(crate) use liar::{Liar, Lie};
pub(crate) use plan::{BLOCKS_MAX, FAULTS, Plan, disks};
pub(crate) use split::Split;
pub(crate) use stripe::Stripe;
