//! Losses of acknowledged writes that were reported to a function and perhaps not to a host yet.
//!
//! Only the function holds such a loss until the next Flush of a host fails for it. A function that ends
//! before, by a crash, a restart or a move, does not pass the loss on to the next one. So the layer fails
//! that Flush.

use sluice_command::{Operation, Request};
use sluice_nvme::Status;

#[derive(Debug, Default)]
pub(super) struct UnreportedLoss {
    /// Time of the last report to the function that was not followed by a report to a host.
    since_ns: Option<u64>,
    /// Whether the function that held a loss is gone.
    owed: bool,
}

impl UnreportedLoss {
    /// Returns whether `status` means that acknowledged writes of a layer below may be lost.
    pub(super) fn is_loss(request: &Request, status: Status) -> bool {
        let is_failed_flush = request.operation == Operation::Flush && !status.is_success();
        (is_failed_flush || status.same_code(Status::WRITES_LOST)) && !status.is_of_host()
    }

    /// Notes that a loss is reported to the function.
    pub(super) fn raise(&mut self, now_ns: u64) {
        self.since_ns = Some(now_ns);
    }

    /// Notes a loss whose function is gone already.
    pub(super) fn owe(&mut self) {
        self.owed = true;
    }

    /// Notes that the function is gone.
    pub(super) fn orphan(&mut self) {
        self.owed |= self.since_ns.take().is_some();
    }

    /// Returns whether the end of a Flush must be [checked](Self::flushed).
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.owed || self.since_ns.is_some()
    }

    /// Returns whether the next Flush of a host fails for a loss.
    pub(super) fn is_owed(&self) -> bool {
        self.owed
    }

    /// Returns the status for the host of a Flush that ends; the function was sent the Flush last at
    /// `sent_ns`.
    pub(super) fn flushed(&mut self, status: Status, sent_ns: u64) -> Status {
        if status.same_code(Status::WRITE_FAULT) {
            *self = Self::default();
        } else if status.is_success() && self.owed {
            self.owed = false;
            return Status::WRITE_FAULT;
        } else if status.is_success() && self.since_ns.is_some_and(|since_ns| since_ns < sent_ns) {
            // The loss was reported to the function before, and it has another copy of the data.
            self.since_ns = None;
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_that_a_function_took_with_it_fails_one_flush() {
        let mut unreported_loss = UnreportedLoss::default();
        assert!(!unreported_loss.is_open());
        unreported_loss.raise(5);
        assert_eq!(
            unreported_loss.flushed(Status::SUCCESS, 5),
            Status::SUCCESS,
            "perhaps it was answered before"
        );
        unreported_loss.orphan();
        assert!(unreported_loss.is_owed());
        assert_eq!(
            unreported_loss.flushed(Status::INTERNAL_ERROR, 6),
            Status::INTERNAL_ERROR,
            "that says nothing of it"
        );
        assert_eq!(unreported_loss.flushed(Status::SUCCESS, 7), Status::WRITE_FAULT);
        assert_eq!(unreported_loss.flushed(Status::SUCCESS, 8), Status::SUCCESS);
    }

    #[test]
    fn a_function_that_has_told_a_host_or_has_a_copy_takes_nothing_with_it() {
        for (status, sent_ns) in [(Status::WRITE_FAULT, 3), (Status::SUCCESS, 6)] {
            let mut unreported_loss = UnreportedLoss::default();
            unreported_loss.raise(5);
            assert_eq!(unreported_loss.flushed(status, sent_ns), status);
            unreported_loss.orphan();
            assert!(!unreported_loss.is_open());
        }
    }
}
