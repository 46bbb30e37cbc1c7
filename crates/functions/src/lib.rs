//! Storage functions, one module each.
//!
//! A function is a [`Layer`](sluice_command::Layer) between the router and a target. These three prove
//! the joint that later ones stand on: [`Pass`] forwards and watches commands come back, [`Delay`] parks
//! them for a time, [`Fault`] fails, shortens or holds some of them, in tests and in the field alike.
#![forbid(unsafe_code)]

mod counter;
mod delay;
mod fault;
mod fault_rule;
mod pass;
mod random;

pub use delay::{Delay, DelayConfig};
pub use fault::{Fault, FaultControl, RuleCount};
pub use fault_rule::{Outcome, Rule, When};
pub use pass::{Pass, PassConfig, PassCounters};
pub use random::Random;
