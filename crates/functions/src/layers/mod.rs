//! Functions that are only a layer.

mod concat;
mod delay;
mod fault;
mod fault_rule;
mod parts;
mod pass;
mod range;
mod stripe;

pub use concat::Concat;
pub use delay::{Delay, DelayConfig};
pub use fault::{Fault, FaultControl, RuleCount};
pub use fault_rule::{Outcome, Rule, When};
pub use pass::{Pass, PassConfig, PassCounters};
pub use range::{Range, RangeConfig};
pub use stripe::{Stripe, StripeConfig};
