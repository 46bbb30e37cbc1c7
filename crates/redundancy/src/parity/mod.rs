//! Arrays with one or two parities: RAID-5 and RAID-6, with a journal against the write hole.
//!
//! An *array* has members 0 to n, and a log on its own storage. [`Parity`] divides a command of the host into
//! *operations*, each on a rectangle of rows and columns of one stripe. It does no I/O, has no clock and no
//! memory for data: it returns requests as [`Step`]s, and receives their results. Only
//! [`compute`](Parity::compute) works on data, in memory of its user.
//!
//! These guarantees hold as long as the log is durable when its writes are reported as durable:
//!
//! - The new content of all cells of a change is in the journal before the first cell is written. After a
//!   crash the journal is replayed, so a change is done as a whole or not at all, also if a member is lost
//!   then.
//! - The journal has, with each change, the members that do not get it. A member that missed a change is stale
//!   in that region, after any crash, until it was written again.
//! - Two operations on the same rows are done one after the other.
//! - A change of the number of parities is in the log before a change of data is made with it.
//! - When more members fail than there are parities, the array stops. It is opened again as after a crash.
#![forbid(unsafe_code)]

mod array;
mod background;
mod code;
mod commands;
mod flush;
mod geometry;
mod member;
mod mode;
mod notes;
mod open;
mod ops;
mod plan;
mod rebuild;
mod ring;
mod state;
mod status;
mod write;

pub use array::{Access, ArrayConfig, End, Fault, Parity, Step, array_region_bytes};
pub use commands::{CommandId, HostCommand};
pub use geometry::Geometry;
pub use ring::BATCH_MAX;
pub use status::{ArrayCheck, ArrayStatus};
pub use write::BatchPart;

/// Maximum rows of an operation with data, bytes.
pub const ROWS_MAX: u64 = 64 << 10;

/// Bytes of the log that hold the state of the members. The journal follows.
pub const NOTES_BYTES: u64 = 1 << 20;

/// Minimum size of an array's log, bytes.
pub const ARRAY_LOG_MIN: u64 = NOTES_BYTES + ring::RING_MIN * crate::BLOCK as u64;

/// Number of an operation from [`Step::Memory`] to [`Step::Free`].
pub type OpId = u32;

#[cfg(test)]
mod tests;
