//! One connection, which is one queue: from received bytes to commands, and from completions to sent bytes.
//!
//! Received bytes are decoded in `receive`, commands are executed in `execute`, `authenticate` and `property`,
//! and responses are sent by `transmit`. Each command has one of the `slots`, and its data is in the `memory` of
//! the connection.

pub(crate) mod authenticate;
mod capsule;
mod close_reason;
mod connection;
mod execute;
mod memory;
mod property;
mod receive;
mod reclaim;
mod record;
mod slots;
mod transmit;

pub(crate) use close_reason::CloseReason;
pub(crate) use connection::{Connection, Context};
pub(crate) use memory::QueueMemory;
pub(crate) use reclaim::SILENCE_NS;
pub(crate) use record::{put_address, read_address};
pub(crate) use slots::Outcome;
pub(crate) use transmit::Agreed;
