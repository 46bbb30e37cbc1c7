//! Functions that come with Sluice and are written against the function SDK.
//!
//! Each implements [`Service`] in its own module and has one line in [`SERVICES`].

mod atomic;
mod checksum;
mod encrypt;
mod local_cache;
mod mirrored;
mod parity;
mod pass;
mod poison;
mod replicate;
mod sealed;
mod service;
pub mod snapshot;
pub mod store;

#[cfg(any(test, feature = "fuzz"))]
pub use atomic::fuzz as atomic_log;
pub use encrypt::Encrypt;
#[cfg(any(test, feature = "fuzz"))]
pub use local_cache::fuzz as local_cache_table;
pub use parity::{ArrayState, ArrayStatusView};
pub use replicate::{LogState, MemberState, Replicate, SetCheck, SetOrder, SetState, SetStatus};
pub use service::{Changes, Farewell, Item, Metric, OnLoss, Order, Record, Service, SizeOf};
pub use store::{StoreOrder, StoreStatus, VersionStatus};

use sluice_crypt::Given;
use sluice_uif::{Function, Options};

/// The services that there are.
pub const SERVICES: &[Record] = &[
    Record::of::<pass::PassFunction>(),
    Record::of::<Encrypt>(),
    Record::of::<Replicate>(),
    Record::of::<replicate::Equals>(),
    Record::of::<parity::ParityFunction>(),
    Record::of::<checksum::Checksum>(),
    Record::of::<atomic::Atomic>(),
    Record::of::<local_cache::LocalCache>(),
    Record::of::<poison::Poison>(),
    Record::of::<snapshot::Snapshot>(),
];

/// Returns the record of a service.
pub fn service(name: &str) -> Option<&'static Record> {
    SERVICES.iter().find(|service| service.name == name)
}

/// Makes a service. `given` holds the contents of the descriptors that its process was started with.
///
/// # Errors
/// There is no such function, or its options are not valid.
pub fn make(name: &str, options: &Options, given: &Given) -> Result<Box<dyn Function>, String> {
    match service(name) {
        Some(service) => (service.make)(options, given),
        None => {
            let names: Vec<&str> = SERVICES.iter().map(|service| service.name).collect();
            Err(format!("there is no function `{name}`; there are {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests;
