//! Associations: the hosts of a drive, each with a controller and its connections.
//!
//! [`Hosts`] is the front-end of a drive. It decides about each Connect command (`access_control`, `pending`) and
//! has a `slot` with a controller for each `association`.

mod access_control;
mod association;
mod hosts;
mod pending;
mod record;
mod slot;

pub use hosts::{Config, Hosts, Status};
pub use record::{HostsRecord, IncomingHosts, Keys};
