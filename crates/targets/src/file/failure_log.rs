//! What the kernel refused, in the log: a status of NVMe has lost the reason.

use std::io;
use std::path::Path;

use sluice_command::Request;

/// Between two messages about one file, ns.
const PAUSE_NS: u64 = 1_000_000_000;

/// What of the failures of one file is written.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    next_ns: u64,
    left_out: u64,
}

impl FailureLog {
    /// The kernel answered a request with this errno.
    #[cold]
    pub(super) fn failed(&mut self, path: &Path, request: &Request, errno: i32, now_ns: u64) {
        let Some(left_out) = self.admit(now_ns) else { return };
        let Request { operation, offset, length, .. } = *request;
        let (path, error) = (path.display(), io::Error::from_raw_os_error(errno));
        tracing::error!(%path, ?operation, offset, length, %error, left_out, "the kernel refuses an operation");
    }

    /// How many failures were left out since the last message, if there may be another now.
    fn admit(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns < self.next_ns {
            self.left_out += 1;
            return None;
        }
        self.next_ns = now_ns.saturating_add(PAUSE_NS);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_in_a_second_is_written_and_the_others_are_counted() {
        let mut failure_log = FailureLog::default();
        let at = [0, 1, PAUSE_NS - 1, PAUSE_NS, 3 * PAUSE_NS];
        assert_eq!(at.map(|now_ns| failure_log.admit(now_ns)), [Some(0), None, None, Some(2), Some(0)]);
    }
}
