//! Functions that are only a layer: their modules and their registry.
//!
//! A further function is a module here with its layer, its options, which implement [`Kind`](crate::Kind), and
//! its tests; a line in [`layers!`](macro@crate::layers); and a section of docs/reference/functions.md.

pub(crate) mod cache;
mod concat;
mod delay;
mod fault;
mod fault_options;
mod fault_rule;
mod map;
mod parts;
mod pass;
mod priority;
mod qos;
mod range;
mod readonly;
mod stripe;

pub use cache::{Cache, CacheCounters, CacheOptions};
pub use concat::{Concat, ConcatOptions};
pub use delay::{Delay, DelayConfig, DelayOptions};
pub use fault::{Fault, FaultControl, RuleCount};
pub use fault_options::{FaultOptions, OperationName, OutcomeName};
pub use fault_rule::{Outcome, Rule, When};
pub use map::{Map, MapChunk, MapEntry, MapOptions, MapPlacement, MapTable};
pub use pass::{Pass, PassConfig, PassCounters, PassOptions};
pub use priority::{Device, Devices, Priority, PriorityClass, PriorityOptions, Share};
pub use qos::{GroupRefused, GroupStatus, Groups, Member, Qos, QosControl, QosLimits, QosOptions, QosWaits};
pub use range::{Range, RangeConfig, RangeOptions};
pub use readonly::{ReadOnly, ReadOnlyOptions};
pub use stripe::{Stripe, StripeConfig, StripeOptions};

/// Calls a macro with the functions that are only a layer: a name, and the type of the options, which
/// implements [`Kind`](crate::Kind). `L` stands for the description of a layer below.
#[macro_export]
macro_rules! layers {
    ($with:ident) => {
        $with! {
            Pass(PassOptions)
            Delay(DelayOptions)
            Fault(FaultOptions)
            Qos(QosOptions)
            Priority(PriorityOptions)
            Cache(CacheOptions)
            Range(RangeOptions)
            ReadOnly(ReadOnlyOptions)
            Stripe(StripeOptions<L>)
            Concat(ConcatOptions<L>)
            Map(MapOptions<L>)
        }
    };
}

#[cfg(test)]
#[path = "../../tests/bench/mod.rs"]
#[allow(dead_code)] // The tests of this folder use a part of it.
mod bench;
