//! The vfio-user wire format and its socket, for both ends.
//!
//! vfio-user carries the ioctls of the kernel's VFIO as messages over a UNIX stream socket: region and
//! interrupt information, region reads and writes, DMA mappings. So a PCI device can live in another process.
//! The *client* is the virtual machine monitor (or `crates/host`), the *server* is the device. This crate
//! contains the layout of every message and moves messages without ever blocking; its users execute them.
//!
//! - [`Header`] and [`Command`]: the 16 bytes before every message.
//! - [`version`], [`dma`], [`device`], [`region`], [`irq`]: the payloads.
//! - [`Connection`]: a non-blocking socket that receives and sends whole messages with their file
//!   descriptors.
//!
//! All received bytes are hostile: sizes are bounded before memory is allocated, payloads are copied out by
//! length-checked readers, and no byte sequence makes this crate panic.
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("vfio-user is in the byte order of the machine, and Sluice runs on little-endian ones only");

mod command;
mod connection;
pub mod device;
pub mod dma;
mod error;
mod header;
pub mod irq;
mod receiver;
pub mod region;
mod sender;
pub mod version;

pub use command::Command;
pub use connection::{Connection, Unfinished};
pub use error::Error;
pub use header::Header;
pub use receiver::{Message, Receiver};
pub use rustix::io::Errno;
pub use sender::Sender;

/// The most data that one region or DMA access may carry, in bytes; the `max_data_xfer_size` that this
/// end announces.
pub const MAX_DATA_TRANSFER: usize = 64 << 10;

/// The longest message that is received or sent, header included, in bytes. The limit has room for data and
/// the structures before it; a message without data is much shorter.
pub const MAX_MESSAGE_SIZE: usize = MAX_DATA_TRANSFER + 4096;

/// The most file descriptors that come with one message; the `max_msg_fds` that this end announces.
pub const MAX_MESSAGE_FDS: usize = 16;

/// The most bytes that wait for a peer to read them before the connection is closed.
pub const MAX_UNSENT: usize = 4 * MAX_MESSAGE_SIZE;

/// Descriptors that may wait for room in a socket: each is one of this process.
pub const MAX_UNSENT_FDS: usize = 64;
