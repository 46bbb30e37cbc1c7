//! Copies that stay equal: a metadata log, a dirty-region log, member generations, and resync.
//!
//! A *set* has members 0 to n, each with the same contents, and a log somewhere. [`Mirror`] decides: where a
//! write goes and when it may, when it is over, what has to be copied from where to where. It does no I/O and
//! has no clock: it says what it wants as [`Step`]s, and is told what came of them. So it can be driven by a
//! storage function, by a layer in the daemon, or by a simulation that cuts the power at every step.
//!
//! What it promises, as long as the log is durable when it is said to be:
//!
//! - Before a write goes out, the log says that the members may differ in its regions. It stops saying so when
//!   no write has been there for a while, and all members were flushed since.
//! - A member that missed a write is marked there before that write is acknowledged, and those that have it
//!   get a higher generation. It is not read, and nothing is copied from it, until it was copied to.
//! - Of two writes that overlap, the second begins when the first is over: their order is the same everywhere.
//! - While a piece is copied, no write goes there. Pieces are small, and no faster than is allowed while the
//!   host writes.
#![forbid(unsafe_code)]

mod background;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod journal;
mod log;
mod members;
mod mirror;
mod regions;
mod set;
mod standing;
mod status;
mod writes;

pub use background::Check;
pub use log::{BLOCK, LOG_IO_MAX, LOG_MIN};
pub use members::{MEMBERS_MAX, Members};
pub use mirror::{Config, Mirror, Step, region_bytes};
pub use set::UNSEEN;
pub use status::Status;
pub use writes::{Begun, Ended, WriteId};

#[cfg(test)]
mod tests;
