//! NVMe controllers for hosts on the network: an NVMe/TCP target.
//!
//! A [`Listener`] (`accept`) accepts connections, initializes them, reads their Connect commands and finds the drives in
//! the [`Directory`]. Connections to the discovery service stay with it (`discovery`). Other connections go
//! to the reactor of the drive, where [`Hosts`] has a controller for each host (`assoc`). The connections of one
//! host that belong together are an *association*; each connection is one queue (`conn`).
//!
//! The controller does not process capsules. The front-end drives it as a guest with its NVMe driver would:
//! with queue pairs and buffers in its own memory, one file for each connection (`conn::memory`). A capsule
//! becomes a submission queue entry (`receive` → `execute` → `connection`). A completion queue entry becomes a
//! response (`connection` → `transmit`).
//!
//! A host that has a key authenticates on each of its queues (`auth::state`, `conn::authenticate`). A separate
//! thread (`auth::worker`) does the computation, for the addresses in turns (`auth::fair_queue`).
//! Unauthenticated hosts keep others out only briefly (`assoc::hosts`, `assoc::pending`).
//!
//! Each connection has its own resources: a slot for each command, with a buffer in the slot or in the pool
//! of the connection. Nothing is received while they are used up. So a host that floods, stalls or lies harms
//! only itself.
#![forbid(unsafe_code)]

mod accept;
mod assoc;
mod auth;
mod conn;
mod directory;
mod discovery;
mod origin;
mod token;

pub use accept::Listener;
pub use assoc::{Config, Hosts, HostsRecord, IncomingHosts, Keys, Status};
pub use directory::{Directory, Entry, KnownHost};

use sluice_controller::{IN_CAPSULE_MAX, TRANSFER_MAX};
use sluice_nvme_tcp::{IcResp, Limits};

/// Limits that hosts must keep to.
const LIMITS: Limits = Limits { in_capsule_max: IN_CAPSULE_MAX, data_max: TRANSFER_MAX, alignment: 4 };

/// Returns the ICResp that announces these limits. The host chooses the digests.
fn ic_resp(digests: sluice_nvme_tcp::Digests) -> IcResp {
    IcResp { alignment: LIMITS.alignment, digests, h2c_data_max: LIMITS.data_max }
}
