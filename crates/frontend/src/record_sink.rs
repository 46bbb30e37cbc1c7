//! Sink for a drive's records.

use crate::Drive;
use std::fmt;

/// Sink for a drive's records outside of this process, so that another process can continue the drive if this one
/// dies.
pub trait RecordSink: Send + fmt::Debug {
    /// Keeps a record of the drive, for whose front-ends something waits. Called on the drive's reactor: it must
    /// not block. Returns false if the drive is not kept any more.
    fn keep(&mut self, drive: &mut Drive, now_ns: u64) -> bool;
}
