//! The metadata log: a state of some bytes, and records of its changes since.
//!
//! The log has two halves. A half begins with a checkpoint of the whole state, followed by records. When a
//! half is full, a checkpoint is written to the other half, its header last; from then on the other half is
//! valid. The full half is the fallback until then.
//!
//! One write is in flight at a time, and each is durable before it is done (Force Unit Access). So a half has
//! records without a gap up to the last acknowledged one, and at most one more. The next process that opens
//! the log begins the other half first; no write ever follows a torn record. After a write that failed, its
//! effect is unknown: a checkpoint in the other half comes next. If the header of a checkpoint failed, zeros
//! are written over that header first, and the checkpoint is retried in the same half.
//!
//! The order of the writes, the choice of the half and the end of the log are those of
//! [`sluice_metadata::engine`]. This module has the format. No I/O is done here: [`Loader`] and [`Writer`]
//! return the reads and writes to do, and receive their results.

mod format;
mod load;
mod write;

pub use format::BLOCK;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use format::sign;
pub(crate) use format::{Magic, RECORD_BYTES, VERSION};
pub(crate) use load::{Loader, Outcome, Piece};
pub(crate) use write::Writer;

use sluice_metadata::engine::{Halves, IO_MAX};

/// Minimum size of a log, bytes.
pub const LOG_MIN: u64 = 512 << 10;

/// Maximum size of a half, bytes. The log's storage beyond two halves stays unused.
const HALF_MAX: u64 = 16 << 20;

/// Maximum size of one read or write of the log, bytes.
pub const LOG_IO_MAX: usize = IO_MAX;

/// Minimum number of record blocks in a half, beside its checkpoint.
const RECORDS_MIN: u64 = 16;

/// Returns the halves of a log of `log_bytes`. Records follow the state.
fn halves(log_bytes: u64) -> Halves {
    Halves { at: 0, blocks: (log_bytes / 2).min(HALF_MAX) / BLOCK as u64, reserved: 0 }
}

/// Returns the size of the largest state that a log of `log_bytes` can hold, bytes.
pub(crate) fn state_max(log_bytes: u64) -> u64 {
    halves(log_bytes).blocks.saturating_sub(1 + RECORDS_MIN) * BLOCK as u64
}
