//! Holder: a process that keeps the records and descriptors of drives while their daemon is gone.
//!
//! The daemon sends a record of a drive each time that the drive has changed: registers, features, the map of the
//! host's memory, and the descriptors of its sockets, its memory and its interrupts. If the daemon dies, the
//! sockets stay open, so no virtual machine notices more than a pause. The next daemon takes the records and goes
//! on. The holder interprets no record, writes nothing, and has no configuration but the path of its socket.
#![forbid(unsafe_code)]

mod client;
mod closing;
mod message;
mod server;

pub use client::{HeldDrive, Holder, HolderError, Keeping};
pub use server::{Limits, Server};
