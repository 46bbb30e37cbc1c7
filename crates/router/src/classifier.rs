//! What a classifier is asked, and the native one that sends everything down the first path.

use crate::{Path, Verdict};
use sluice_command::{Request, Slot};
use sluice_nvme::{Status, SubmissionEntry};

/// When a classifier is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The command was checked and has not started.
    Submission,
    /// Its leg has finished with this status; the completion entry is not written yet.
    BeforeCompletion(Status),
}

/// The facts of a command at a hook; nothing in here can be written.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub hook: Hook,
    /// The entry as it was copied out of the submission queue, once.
    pub entry: &'a SubmissionEntry,
    /// The checked operation in bytes.
    pub request: &'a Request,
    /// Submission queue identifier.
    pub sq: u16,
    /// The 16 bits that the last verdict left.
    pub cookie: u16,
}

impl<'a> Facts<'a> {
    #[inline]
    pub(crate) fn new(hook: Hook, entry: &'a SubmissionEntry, slot: &'a Slot) -> Self {
        Self { hook, entry, request: &slot.request, sq: slot.origin.sq, cookie: slot.route.cookie }
    }
}

/// Decides where each command of a namespace goes.
///
/// Called on the reactor, once for every hook it asked for; it must not block. Its verdicts are not
/// trusted: an impossible one fails the command with an internal error and is counted.
pub trait Classifier {
    fn classify(&mut self, facts: &Facts<'_>) -> Verdict;
}

/// Every command takes the first path, and nobody is called again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direct;

impl Classifier for Direct {
    #[inline]
    fn classify(&mut self, _facts: &Facts<'_>) -> Verdict {
        Verdict::send(Path::FIRST)
    }
}
