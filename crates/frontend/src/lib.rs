//! Front-ends, in which commands arrive: the code that all of them share.
//!
//! A front-end receives the doorbell (or the capsule), gives the controller its turns and delivers
//! interrupts. A front-end depends on controllers and guest memory, and on neither functions nor targets. Each
//! kind is a crate of its own, which stands on this one:
//!
//! - `sluice-frontend-vfio-user`: NVMe controllers for virtual machines, over the vfio-user protocol.
//! - `sluice-frontend-tcp`: NVMe controllers for hosts on the network, over NVMe/TCP.
//!
//! The joint has two parts. A [`Frontend`] is a transport, with or without an NVMe controller behind it. An
//! [`NvmeFrontend`] has the controllers of a subsystem. A [`Drive`] is the task of a reactor that has one
//! subsystem and any number of front-ends. A drive with a single socket can migrate queue groups to
//! [`RemoteQueues`] on other reactors.
#![forbid(unsafe_code)]

mod deferred_drop;
pub mod descriptors;
mod drive;
pub mod folder;
mod frontends;
mod log_limit;
mod nvme;
pub mod record;
mod record_sink;
mod remote_queues;
mod token;

pub use deferred_drop::drop_later;
pub use drive::Drive;
pub use frontends::{Frontend, Frontends, Served};
pub use log_limit::LogLimit;
pub use nvme::{GroupClient, GroupOwner, NewFrontend, NvmeFrontend};
pub use record_sink::RecordSink;
pub use remote_queues::{Migration, RemoteHandle, RemoteQueues};
pub use token::{EVENT_BITS, FRONTENDS_MAX, FrontendToken};
