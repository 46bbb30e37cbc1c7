//! Sets of storage that survive the loss of members. [`parity`] has arrays with parities.
//!
//! Copies that stay equal: a metadata log, a dirty-region log, member generations, and resync.
//!
//! A *set* has members 0 to n, each with the same contents, and a log on its own storage. [`Mirror`] decides
//! where and when a write goes, when it is complete, and which bytes are copied from which member to which.
//! It does no I/O and has no clock: it returns requests as [`Step`]s, and receives their results. So a
//! storage function, a layer in the daemon, or a simulation that cuts the power at every step can drive it.
//!
//! These guarantees hold as long as the log is durable when its writes are reported as durable:
//!
//! - Before a write is issued, its regions are marked in the log as possibly different. The mark is cleared
//!   when the region has had no write for a while, and all members were flushed since.
//! - A member that missed a write is marked there before that write is acknowledged. The members that have
//!   the write get a higher generation before that, too. The outdated member is neither read nor copied from
//!   until it was copied to.
//! - Of two writes that overlap, the second begins when the first has ended: their order is the same
//!   everywhere.
//! - While a piece is copied, no write goes there. Pieces are small, and the copy rate is limited while the
//!   host writes.
#![forbid(unsafe_code)]

mod background;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod jobs;
mod journal;
mod log;
mod member_state;
mod members;
mod mirror;
pub mod parity;
mod regions;
mod set;
mod status;
mod writes;

pub use background::Check;
pub use jobs::RESYNC_JOB;
pub use log::{BLOCK, LOG_IO_MAX, LOG_MIN};
pub use members::{MEMBERS_MAX, Members};
pub use mirror::{Config, Mirror, Step, region_bytes};
pub use set::UNSEEN;
pub use status::Status;
pub use writes::{Begun, Ended, WriteId};

#[cfg(test)]
mod tests;
