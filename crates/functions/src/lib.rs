//! Storage functions, one module each.
//!
//! A function is a [`Layer`](sluice_command::Layer) between the router and a target. The functions in
//! `layers` are only that: [`Pass`] forwards commands and watches their return. [`Delay`] parks them for a
//! time. [`Fault`] fails, shortens or holds some of them, in tests and in the field. [`Range`] moves them.
//! [`Stripe`] and [`Concat`] make one drive of several layers.
//!
//! The functions in `services` are written against the function SDK, and run in the daemon or in a process of
//! their own: [`Encrypt`], [`Replicate`] and [`snapshot`]. [`host`] is the layer of such a function.
#![forbid(unsafe_code)]

mod counter;
mod describe;
mod eviction;
pub mod host;
mod kind;
mod layers;
mod random;
mod services;

pub use describe::{Description, ItemView, MetricView, describe, kinds, table};
pub use kind::{Kind, OpenCx, Prepared, SetShape, Shape};
pub use layers::*;
pub use random::Random;
#[cfg(any(test, feature = "fuzz"))]
pub use services::atomic_log;
#[cfg(any(test, feature = "fuzz"))]
pub use services::local_cache_table;
pub use services::{
    ArrayState, ArrayStatusView, Changes, Encrypt, Farewell, Item, LogState, MemberState, Metric, OnLoss,
    Order, Record, Replicate, SERVICES, Service, SetCheck, SetOrder, SetState, SetStatus, SizeOf, StoreOrder,
    StoreStatus, VersionStatus, make, service, snapshot, store,
};
