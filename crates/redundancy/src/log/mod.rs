//! The metadata log: a state of some bytes, and records of how it changed since.
//!
//! The log has two halves. A half begins with a checkpoint, the whole state, and goes on with records. When it
//! is full, a checkpoint is written to the other half, the header last; from then on that one counts. What
//! was there before is the fallback until then.
//!
//! One write is under way at a time, and each is durable before it is done (Force Unit Access). So a half has
//! records without a gap up to the last that was acknowledged, and at most one more. Whoever opens a log
//! begins the other half before anything else; nothing is ever written behind a torn record. After a write
//! that failed, nobody knows what of it is there: the next thing is a checkpoint, in the other half. If it was
//! the header of one, zeros are written over it first, and the checkpoint is tried again where it was.
//!
//! No I/O is done here: [`Loader`] and [`Writer`] say what they want read or written, and are told.

mod format;
mod load;
mod write;

pub use format::BLOCK;
pub(crate) use format::RECORD_BYTES;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use format::sign;
pub(crate) use load::{Loader, Outcome, Piece};
pub(crate) use write::Writer;

/// Bytes of a log at least.
pub const LOG_MIN: u64 = 512 << 10;

/// Bytes of a half at most: what is beyond stays unused.
const HALF_MAX: u64 = 16 << 20;

/// Bytes that are read or written at once, at most.
pub const LOG_IO_MAX: usize = 64 << 10;

/// Blocks of records that a half has room for at least, beside its checkpoint.
const RECORDS_MIN: u64 = 16;

/// Bytes of a half of a log of so many bytes.
pub(crate) fn half_bytes(log_bytes: u64) -> u64 {
    (log_bytes / 2).min(HALF_MAX) / BLOCK as u64 * BLOCK as u64
}

/// Bytes of the largest state that a log of so many bytes can hold.
pub(crate) fn state_max(log_bytes: u64) -> u64 {
    half_bytes(log_bytes).saturating_sub((1 + RECORDS_MIN) * BLOCK as u64)
}
