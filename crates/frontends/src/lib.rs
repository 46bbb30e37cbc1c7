//! Front-ends, in which commands arrive.
//!
//! A front-end receives the doorbell (or the capsule), gives the controller its turns and delivers
//! interrupts. A front-end depends on controllers and guest memory, and on neither functions nor targets.
//!
//! - [`vfio_user`]: NVMe controllers for virtual machines, over the vfio-user protocol.
//! - [`tcp`]: NVMe controllers for hosts on the network, over NVMe/TCP.
//!
//! A [`Drive`] has any number of either, beside one subsystem. A drive with a single socket can migrate queue
//! groups to [`RemoteQueues`] on other reactors.
#![forbid(unsafe_code)]

mod deferred_drop;
mod descriptors;
mod drive;
pub mod folder;
mod log_limit;
mod remote_queues;
pub mod tcp;
pub mod vfio_user;

pub use drive::Drive;
pub use log_limit::LogLimit;
pub use remote_queues::{Migration, RemoteHandle, RemoteQueues};
