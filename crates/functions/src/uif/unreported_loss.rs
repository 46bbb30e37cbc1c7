//! Losses of acknowledged writes that a function was told of, and has perhaps not told a host yet.
//!
//! A function is the only one that holds such a loss until the next Flush of a host fails for it. When the function ends
//! before, by a crash, a restart or a move, the next one does not know of it. So the layer fails that Flush.

use sluice_command::{Operation, Request};
use sluice_nvme::Status;

#[derive(Debug, Default)]
pub(super) struct UnreportedLoss {
    /// When the function was last told of a loss that no host was told of since.
    since_ns: Option<u64>,
    /// The function that was told of one is gone.
    owed: bool,
}

impl UnreportedLoss {
    /// True if `status` says that writes may be lost which a layer below has acknowledged.
    pub(super) fn is_loss(request: &Request, status: Status) -> bool {
        let is_failed_flush = request.operation == Operation::Flush && !status.is_success();
        (is_failed_flush || status.same_code(Status::WRITES_LOST)) && !status.is_of_host()
    }

    /// The function is told of a loss.
    pub(super) fn raise(&mut self, now_ns: u64) {
        self.since_ns = Some(now_ns);
    }

    /// The function that is to be told of a loss is gone.
    pub(super) fn owe(&mut self) {
        self.owed = true;
    }

    /// The function is gone.
    pub(super) fn orphan(&mut self) {
        self.owed |= self.since_ns.take().is_some();
    }

    /// True if a Flush that ends is to be [looked at](Self::flushed).
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.owed || self.since_ns.is_some()
    }

    /// True if a loss waits for the next Flush of a host.
    pub(super) fn is_owed(&self) -> bool {
        self.owed
    }

    /// A Flush of a host ends, which the function was last sent at `sent_ns`. Returns the status for the host.
    pub(super) fn flushed(&mut self, status: Status, sent_ns: u64) -> Status {
        if status.same_code(Status::WRITE_FAULT) {
            *self = Self::default();
        } else if status.is_success() && self.owed {
            self.owed = false;
            return Status::WRITE_FAULT;
        } else if status.is_success() && self.since_ns.is_some_and(|since_ns| since_ns < sent_ns) {
            // The function was told before, and has another copy of what was lost.
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
