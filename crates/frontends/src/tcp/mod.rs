//! NVMe controllers for hosts on the network: an NVMe/TCP target.
//!
//! A [`Listener`] is a thread that lets hosts in: it accepts connections, initializes them, takes their
//! Connect command and finds the drive in the [`Directory`]; who asks for
//! the discovery service stays with it (`discovery`). The connection then goes to the reactor of the
//! drive, where its [`Drive`](crate::Drive) has a controller for each host (`hosts`, `room`). The connections of one
//! host that belong together are an *association*; each connection is one queue.
//!
//! The controller knows nothing of capsules. Its room is to it what a guest with its driver is: it has
//! queue pairs and buffers in memory of its own, a file for each connection (`memory`). A capsule becomes an
//! entry of a submission queue (`receive` → `execute` → `connection`), a completion entry becomes a response
//! (`connection` → `transmit`).
//!
//! A host that has a key proves on each of its queues that it has it (`gate`, `authenticate`); what that takes
//! is computed on a thread beside (`notary`), for those who send it in turns (`docket`). Who has proved nothing yet keeps
//! nobody else out for long (`hosts`, `lobby`).
//!
//! Everything a connection needs it has to itself, and when that is used up it is not read from: a slot for
//! each command, with a buffer for its data in the slot or in the connection's pool. So a host that floods,
//! stalls or lies costs itself alone.

mod access_control;
mod association;
mod association_slot;
mod auth_state;
mod auth_worker;
mod authenticate;
mod capsule;
mod close_reason;
mod connect;
mod connection;
mod crowd;
mod directory;
mod discovery;
mod execute;
mod fair_queue;
mod hosts;
mod icreq;
mod linger;
mod listener;
mod memory;
mod origin;
mod pending;
mod property;
mod psk_lookup;
mod receive;
mod reclaim;
mod slots;
mod token;
mod transmit;
mod wire;

pub(crate) use auth_worker::AuthResult;
pub use directory::{Directory, Entry, KnownHost};
pub(crate) use hosts::Hosts;
pub use hosts::{Config, Status};
pub use listener::Listener;
pub(crate) use token::Token;

use sluice_controller::{IN_CAPSULE_MAX, TRANSFER_MAX};
use sluice_nvme_tcp::{IcResp, Limits};

/// What hosts have to keep to.
const LIMITS: Limits = Limits { in_capsule_max: IN_CAPSULE_MAX, data_max: TRANSFER_MAX, alignment: 4 };

/// What hosts are told of that; they choose the digests.
fn ic_resp(digests: sluice_nvme_tcp::Digests) -> IcResp {
    IcResp { alignment: LIMITS.alignment, digests, h2c_data_max: LIMITS.data_max }
}
