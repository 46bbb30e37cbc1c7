//! NVMe controllers for virtual machines: a vfio-user server.
//!
//! A port is a socket `DIR/cntrl` for one controller, and part of a task of a reactor: no threads,
//! no timers of its own, nothing that waits. A client (QEMU, Cloud Hypervisor, a host that polls)
//! connects, lends its memory with DMA_MAP, and drives the PCI function that it finds:
//!
//! | BAR0 | |
//! |---|---|
//! | 0x0000 | controller properties |
//! | 0x1000 | doorbells |
//! | 0x2000 | MSI-X table |
//! | 0x3000 | MSI-X pending bits |
//!
//! Doorbells reach us in one of two modes. *Trapped*: each write is a message, and the client is offered
//! Doorbell Buffer Config to save most of them. *Mapped*: the client maps the page, and nothing tells us
//! of its stores, so the reactor looks. [`DoorbellPolicy`] says who gets which.
//!
//! A client comes through the `door`. Its messages go through these files: `port` (when to look) →
//! `session` (one message, one answer) → `client` (which message) → `version`, `describe`, `dma`,
//! `region`, `interrupts`. What cannot be answered at once waits in `reset`. What is let go of and may
//! take time goes to the crate's `release`, and what may never end to the port's `closer`. Memory is brought in beforehand
//! by `populate`, where the operator says so.

mod accept;
mod client;
mod client_dma;
mod config_space;
mod deferred_close;
mod describe;
mod descriptor;
mod device;
mod dma;
mod drain;
mod endpoint;
mod interrupts;
mod listener;
mod populate;
mod port;
mod region;
mod rejected;
mod reset;
mod session;
mod set_up;
mod token;
mod version;

pub use config_space::PciIdentity;
pub use device::Device;
pub use endpoint::Endpoint;
pub use listener::{Access, Listener, SOCKET_NAME};
pub(crate) use port::Port;
pub use port::{Config, Status};
pub(crate) use token::{PORTS_MAX, Token};

/// Who may map the doorbells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellPolicy {
    /// Clients that send no capabilities, which is what hosts that poll do. All others trap.
    #[default]
    Auto,
    /// Nobody.
    Trapped,
    /// Everybody.
    Mapped,
}

/// What an endpoint has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Clients that were let in.
    pub clients: u64,
    /// Clients that came while there was one, or while too much of earlier ones could not be closed.
    pub turned_away: u64,
    pub messages: u64,
    /// Messages answered with an error.
    pub refused: u64,
    /// Doorbells written over the socket.
    pub doorbells: u64,
    pub interrupts: u64,
    pub maps: u64,
    pub unmaps: u64,
    /// Device and function level resets; not those by CC.EN.
    pub resets: u64,
}
