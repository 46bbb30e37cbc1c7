//! Log messages about failed commands, since a guest may hide the errors of its drive from its user.

use sluice_nvme::{Status, SubmissionEntry};
use std::time::{Duration, Instant};

/// Time between two messages of one controller.
const PAUSE: Duration = Duration::from_secs(1);

/// State of the limit on messages of one controller.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    written: Option<Instant>,
    left_out: u64,
}

impl Failures {
    /// Logs the failure of an I/O command.
    #[cold]
    pub(crate) fn report(&mut self, subnqn: &str, entry: &SubmissionEntry, status: Status) {
        if !is_of_storage(status) {
            return;
        }
        let Some(left_out) = self.admit(Instant::now()) else { return };
        let (nsid, opcode, slba) = (entry.nsid, entry.opcode, entry.slba());
        tracing::error!(subnqn, nsid, opcode, slba, ?status, left_out, "a command of a drive failed");
    }

    /// Returns the number of failures since the last message, if another message is permitted now.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.written.is_some_and(|before| now.saturating_duration_since(before) < PAUSE) {
            self.left_out += 1;
            return None;
        }
        self.written = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Returns whether a status is an error below the drive; a host causes all other errors itself.
fn is_of_storage(status: Status) -> bool {
    [
        Status::WRITE_FAULT,
        Status::UNRECOVERED_READ_ERROR,
        Status::INTERNAL_ERROR,
        Status::CAPACITY_EXCEEDED,
        Status::NAMESPACE_NOT_READY,
        Status::INTERNAL_PATH_ERROR,
    ]
    .into_iter()
    .any(|it| status.same_code(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_in_a_second_is_written_and_the_others_are_counted() {
        let mut failures = Failures::default();
        let start = Instant::now();
        assert_eq!(failures.admit(start), Some(0));
        assert_eq!([1, 999].map(|ms| failures.admit(start + Duration::from_millis(ms))), [None, None]);
        assert_eq!(failures.admit(start + PAUSE), Some(2));
        assert_eq!(failures.admit(start + 3 * PAUSE), Some(0));
    }

    #[test]
    fn hosts_write_nothing_by_their_own_mistakes() {
        assert!(is_of_storage(Status::WRITE_FAULT) && is_of_storage(Status::CAPACITY_EXCEEDED));
        for of_host in [Status::INVALID_FIELD, Status::LBA_OUT_OF_RANGE, Status::COMPARE_FAILURE] {
            assert!(!is_of_storage(of_host), "{of_host:?}");
        }
    }
}
