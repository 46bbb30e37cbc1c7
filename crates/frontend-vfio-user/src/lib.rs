//! NVMe controllers for virtual machines: a vfio-user server.
//!
//! A port is a socket `DIR/cntrl` for one controller, and part of a task of a reactor: a [`Socket`] of a drive, or
//! an [`Endpoint`] of its own. A port has no threads
//! and no timers of its own, and never blocks. A client (QEMU, Cloud Hypervisor, a host that polls) connects,
//! shares its memory with DMA_MAP, and drives the PCI function that it finds:
//!
//! | BAR0 | |
//! |---|---|
//! | 0x0000 | controller properties |
//! | 0x1000 | doorbells |
//! | 0x2000 | MSI-X table |
//! | 0x3000 | MSI-X pending bits |
//!
//! Doorbells arrive in one of two modes. *Trapped*: each write is a message, and the client is offered
//! Doorbell Buffer Config to save most of the messages. *Mapped*: the client maps the page and its stores
//! cause no event, so the reactor polls the page. [`DoorbellPolicy`] selects the mode.
//!
//! The acceptor (`accept`) admits a client. Its messages go through these files: `port` (when to look) →
//! `session` (one message, one answer) → `client` (which message) → `version`, `describe`, `dma`, `region`,
//! `interrupts`. An answer that has to wait is kept in `reset`. Objects whose release takes time go to the
//! crate's `deferred_drop`. Descriptors whose close may never end go to the port's `deferred_close`.
//! `populate` populates memory in advance, if the operator has configured that.
#![forbid(unsafe_code)]

mod accept;
mod client;
mod client_dma;
mod config_space;
mod deferred_close;
mod describe;
mod descriptor;
mod dma;
mod drain;
mod endpoint;
mod interrupts;
mod kept;
mod listener;
mod populate;
mod port;
mod record;
mod region;
mod rejected;
mod reset;
mod session;
mod set_up;
mod socket;
mod token;
mod version;

pub use config_space::PciIdentity;
pub use endpoint::Endpoint;
pub use listener::{Access, Listener, SOCKET_NAME};
pub use port::{Config, Status};
pub use record::{IncomingSocket, SocketRecord};
pub use socket::{SOCKETS_MAX, Socket};
use token::PORTS_MAX;

/// Policy for clients that would map the doorbells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellPolicy {
    /// Mapped by clients that send no capabilities, as hosts that poll do; trapped for all others.
    #[default]
    Auto,
    /// Mapped by no client.
    Trapped,
    /// Mapped by every client that takes descriptors.
    Mapped,
}

/// Counters of an endpoint since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Clients that were admitted.
    pub clients: u64,
    /// Clients that were rejected: another client was connected, or too many descriptors of earlier ones
    /// could not be closed.
    pub turned_away: u64,
    pub messages: u64,
    /// Messages answered with an error.
    pub refused: u64,
    /// Doorbells written over the socket.
    pub doorbells: u64,
    pub interrupts: u64,
    pub maps: u64,
    pub unmaps: u64,
    /// Device and function level resets, without resets by CC.EN.
    pub resets: u64,
}
