//! Traces of single commands.

use super::Drives;
use serde::{Deserialize, Serialize};
pub use sluice_controller::TRACE_EVERY;
use sluice_controller::{TraceChoice, TraceRing, TracedCommand};
use sluice_spec::error::ApiError;
use std::sync::Arc;
use utoipa::ToSchema;

/// A traced command. Times are in nanoseconds since its fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceView {
    /// Time of its fetch since the begin of the trace, nanoseconds.
    pub fetched_ns: u64,
    /// Number of the controller in the drive, counted from 0.
    pub controller: u8,
    /// Submission queue.
    pub queue: u16,
    pub cid: u16,
    pub opcode: u8,
    /// Name of the opcode, or the opcode in hexadecimal.
    pub operation: String,
    pub nsid: u32,
    /// First block and number of blocks, of a command with blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slba: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<u32>,
    /// Time of the classifier's verdict, if the drive has a classifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classified_ns: Option<u64>,
    /// Path of the command, or of its first leg.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<u8>,
    /// Time at which the command, or its first leg, was sent to its functions and its target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_ns: Option<u64>,
    /// Time at which it was back from them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returned_ns: Option<u64>,
    /// Time at which its completion entry was written.
    pub completed_ns: u64,
    /// Name of the status, of a command that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Commands that were to be traced and were not, until now: too many at a time, or the reader was too slow.
    pub dropped: u64,
}

impl TraceView {
    /// Returns the view of a command, with the number of dropped ones.
    pub fn new(of: TracedCommand, dropped: u64) -> Self {
        let has_blocks = of.has_blocks();
        Self {
            fetched_ns: of.fetched_ns,
            controller: of.controller,
            queue: of.sq,
            cid: of.cid,
            opcode: of.opcode,
            operation: of.operation().map_or_else(|| format!("{:#04x}", of.opcode), str::to_owned),
            nsid: of.nsid,
            slba: has_blocks.then_some(of.slba),
            blocks: has_blocks.then_some(of.blocks),
            classified_ns: of.classified_ns,
            path: of.sent_ns.map(|_| of.path),
            sent_ns: of.sent_ns,
            returned_ns: of.returned_ns,
            completed_ns: of.completed_ns,
            error: (!of.status.is_success())
                .then(|| of.status.name().map_or_else(|| format!("{:#06x}", of.status.0), str::to_lowercase)),
            dropped,
        }
    }
}

/// Trace of a drive's commands, which ends when this is dropped, or is not read for five seconds.
#[derive(Debug)]
pub struct DriveTrace(Arc<TraceRing>);

impl DriveTrace {
    /// Takes the oldest command that was not taken, and keeps the trace on.
    pub fn take(&self) -> Option<TraceView> {
        self.0.renew();
        self.0.take().map(|command| TraceView::new(command, self.0.dropped()))
    }

    /// Returns whether no further command follows: the drive was closed.
    pub fn is_over(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Drop for DriveTrace {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Drives {
    /// Begins a trace of a drive's commands.
    pub fn begin_trace(&self, name: &str, every: u32, slow_us: u64) -> Result<DriveTrace, ApiError> {
        if every == 0 {
            return Err(ApiError::invalid("every: one command of none cannot be traced"));
        }
        let choice = TraceChoice { every, slow_ns: slow_us.saturating_mul(1000) };
        let ring = self.entry(name)?.running?.begin_trace(choice)?;
        tracing::info!("drive {name}: its commands are traced");
        Ok(DriveTrace(ring))
    }
}
