//! The classifier's answer.

use sluice_nvme::Status;

/// A way a classifier can choose: an entry into the namespace's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path(pub u8);

impl Path {
    /// Through the whole stack.
    pub const FIRST: Path = Path(0);
}

/// What happens to the command next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Start its leg down this path; only possible at submission.
    Send(Path),
    /// Complete it with this status, now.
    Complete(Status),
}

/// A decision, the hooks to be called again at, and 16 bits of the classifier's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub decision: Decision,
    /// Call again before the completion is written.
    pub before_completion: bool,
    /// Handed back at the next hook.
    pub cookie: u16,
}

impl Verdict {
    /// Down `path`, and finished when that is.
    #[inline]
    pub fn send(path: Path) -> Self {
        Self { decision: Decision::Send(path), before_completion: false, cookie: 0 }
    }

    /// Finished here, with this status.
    #[inline]
    pub fn complete(status: Status) -> Self {
        Self { decision: Decision::Complete(status), before_completion: false, cookie: 0 }
    }

    /// The same, but called again before the completion is written, with these 16 bits.
    #[inline]
    pub fn and_call_before_completion(self, cookie: u16) -> Self {
        Self { before_completion: true, cookie, ..self }
    }
}
