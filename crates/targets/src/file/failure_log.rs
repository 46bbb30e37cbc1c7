//! Log of refusals by the kernel, whose reasons are lost in an NVMe status.

use std::io;
use std::path::Path;

use sluice_command::Request;

/// Minimum time between two messages about one file, ns.
const PAUSE_NS: u64 = 1_000_000_000;

/// Rate limiter for the failures of one file.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    next_ns: u64,
    left_out: u64,
}

impl FailureLog {
    /// Logs that the kernel failed a request with this errno, unless the last message is too recent.
    #[cold]
    pub(super) fn failed(&mut self, path: &Path, request: &Request, errno: i32, now_ns: u64) {
        let Some(left_out) = self.admit(now_ns) else { return };
        let Request { operation, offset, length, .. } = *request;
        let (path, error) = (path.display(), io::Error::from_raw_os_error(errno));
        tracing::error!(%path, ?operation, offset, length, %error, left_out, "the kernel refuses an operation");
    }

    /// Returns the number of failures left out since the last message, if another message is due.
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
