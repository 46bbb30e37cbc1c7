//! Storage functions, one module each.
//!
//! A function is a [`Layer`](sluice_command::Layer) between the router and a target. [`Pass`] forwards
//! commands and watches their return. [`Delay`] parks them for a time. [`Fault`] fails, shortens or holds
//! some of them, in tests and in the field. [`Range`] moves them. [`Stripe`] and [`Concat`] make one drive of
//! several layers.
//!
//! Other functions are written against the function SDK, and run in the daemon or in a process of their own.
//! [`uif`] is their layer. [`Encrypt`], [`Replicate`] and [`snapshot`] come with Sluice.
#![forbid(unsafe_code)]

mod concat;
mod counter;
mod delay;
mod encrypt;
mod fault;
mod fault_rule;
mod mirrored;
mod parts;
mod pass;
mod random;
mod range;
mod replicate;
pub mod snapshot;
pub mod store;
mod stripe;
pub mod uif;

pub use concat::Concat;
pub use delay::{Delay, DelayConfig};
pub use encrypt::Encrypt;
pub use fault::{Fault, FaultControl, RuleCount};
pub use fault_rule::{Outcome, Rule, When};
pub use pass::{Pass, PassConfig, PassCounters};
pub use random::Random;
pub use range::{Range, RangeConfig};
pub use replicate::Replicate;
pub use stripe::{Stripe, StripeConfig};
