//! Front-ends, in which commands arrive.
//!
//! A front-end receives the doorbell (or the capsule), gives the controller its turns and delivers
//! interrupts. A front-end depends on controllers and guest memory, and on neither functions nor targets.
//!
//! - [`vfio_user`]: NVMe controllers for virtual machines, over the vfio-user protocol.
//! - [`tcp`]: NVMe controllers for hosts on the network, over NVMe/TCP.
//!
//! A [`Drive`] has any number of front-ends, beside one subsystem. It holds each as an [`NvmeFrontend`] object. A
//! drive with a single socket can migrate queue groups to [`RemoteQueues`] on other reactors.
#![forbid(unsafe_code)]

extern crate self as sluice_frontend;

mod deferred_drop;
pub mod descriptors;
mod drive;
pub mod folder;
mod frontends;
mod log_limit;
mod nvme;
mod remote_queues;
pub mod tcp;
mod token;
pub mod vfio_user;

pub use deferred_drop::drop_later;
pub use drive::Drive;
pub use frontends::{Frontend, Frontends, Served};
pub use log_limit::LogLimit;
pub use nvme::{GroupClient, GroupOwner, NewFrontend, NvmeFrontend};
pub use remote_queues::{Migration, RemoteHandle, RemoteQueues};
pub use token::{EVENT_BITS, FRONTENDS_MAX, FrontendToken};
