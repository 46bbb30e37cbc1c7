//! What the health and error logs are made of (Base 5.16.1.2, 5.16.1.3).

use crate::Statistics;
use sluice_command::{Operation, Origin, Request};
use sluice_nvme::log::ErrorInformation;
use sluice_nvme::{Status, SubmissionEntry};
use std::collections::VecDeque;

/// Entries of the Error Information log; Identify's ELPE is one less.
pub(crate) const ERROR_ENTRIES: usize = 64;

/// Number of operations.
const OPERATIONS: usize = Operation::Deallocate as usize + 1;

/// Counters and the last errors of one controller.
#[derive(Debug)]
pub(crate) struct Health {
    /// I/O commands that succeeded, and what they moved, by operation.
    succeeded: [Moved; OPERATIONS],
    /// I/O commands that failed.
    failed: u64,
    /// The newest first.
    errors: VecDeque<ErrorInformation>,
    /// Errors ever recorded.
    error_count: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    commands: u64,
    bytes: u64,
}

impl Health {
    pub(crate) fn new() -> Self {
        Self {
            succeeded: Default::default(),
            failed: 0,
            errors: VecDeque::with_capacity(ERROR_ENTRIES),
            error_count: 0,
        }
    }

    /// An I/O command has finished.
    #[inline]
    pub(crate) fn completed(&mut self, request: &Request, status: Status) {
        if status.is_success() {
            let moved = &mut self.succeeded[request.operation as usize];
            moved.commands += 1;
            moved.bytes += request.length;
        } else {
            self.failed += 1;
        }
    }

    /// A command has failed: an entry for the Error Information log.
    #[cold]
    pub(crate) fn error(&mut self, entry: &SubmissionEntry, origin: &Origin, status: Status) {
        let mut error = ErrorInformation::new(status);
        error.sq_id = origin.sq;
        error.cid = origin.cid;
        error.nsid = entry.nsid;
        error.opcode = entry.opcode;
        self.record(error);
    }

    /// A doorbell was rung that is not there, or with a value that cannot be.
    pub(crate) fn doorbell_error(&mut self, queue: u16) {
        tracing::debug!(queue, "invalid doorbell write");
        self.record(ErrorInformation::new(Status::INVALID_QUEUE_IDENTIFIER));
    }

    fn record(&mut self, mut error: ErrorInformation) {
        self.error_count += 1;
        error.error_count = self.error_count;
        self.errors.truncate(ERROR_ENTRIES - 1);
        self.errors.push_front(error);
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics {
            commands: self.succeeded.iter().map(|moved| moved.commands).sum::<u64>() + self.failed,
            errors: self.failed,
            bytes_read: self.succeeded[Operation::Read as usize].bytes,
            bytes_written: self.succeeded[Operation::Write as usize].bytes,
        }
    }
}
