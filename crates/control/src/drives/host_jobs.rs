//! Work that hosts ordered from the controller of a drive: Format NVM and Sanitize.
//!
//! The operator can list it, and not end it: NVMe has no command that cancels either. Its progress is known to
//! the hosts alone, in Identify Namespace (FPI) and in the Sanitize Status log page.

use super::Drives;
use super::jobs::{JobState, JobView, OF_HOST, SEPARATOR};
use crate::state::{Formatting, HostState, Sanitized, SanitizedState};
use sluice_jobs::Verb;
use sluice_spec::error::ApiError;
use std::sync::TryLockError;

/// NSID of work that concerns all namespaces.
const ALL: u32 = 0;

impl Drives {
    /// Returns the work of a drive's hosts. Returns none while the state of the hosts is being stored.
    pub(super) fn host_jobs(&self, drive: &str) -> Vec<JobView> {
        let hosted = self.hosted(drive);
        let found = match hosted.try_lock() {
            Ok(found) => found,
            Err(TryLockError::Poisoned(found)) => found.into_inner(),
            Err(TryLockError::WouldBlock) => return Vec::new(),
        };
        views(drive, &found.state)
    }
}

fn views(drive: &str, state: &HostState) -> Vec<JobView> {
    let formats = state.formatting.iter().map(|format: &Formatting| {
        let detail = format!("Format NVM by a host, to blocks of {} bytes", format.block_size);
        view(drive, format.nsid, "format", JobState::Running, detail)
    });
    let sanitizes = state.sanitized.iter().map(|sanitize: &Sanitized| {
        let job = match sanitize.state {
            SanitizedState::Running => JobState::Running,
            SanitizedState::Done => JobState::Done,
            SanitizedState::Failed | SanitizedState::GivenUp => JobState::Failed,
        };
        view(drive, ALL, "sanitize", job, "Sanitize by a host, of all namespaces".to_owned())
    });
    formats.chain(sanitizes).collect()
}

fn view(drive: &str, nsid: u32, job: &str, state: JobState, detail: String) -> JobView {
    JobView {
        id: [drive, &nsid.to_string(), &OF_HOST.to_string(), job].join(&SEPARATOR.to_string()),
        drive: drive.to_owned(),
        nsid,
        function: "controller".to_owned(),
        job: job.to_owned(),
        state,
        detail,
        ..JobView::default()
    }
}

/// Returns the error for an order that concerns the work of a host.
pub(super) fn refusal(job: &JobView, verb: Verb) -> ApiError {
    ApiError::conflict(format!("{} cannot be given the order `{}`: a host ordered it", job.id, verb.word()))
        .hint("NVMe has no command that pauses or cancels it; its progress is in the host's log pages")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_a_host_is_listed_and_takes_no_orders() {
        let format = Formatting { drive: "disk".to_owned(), nsid: 2, block_size: 4096, targets: Vec::new() };
        let sanitize =
            |state| Sanitized { drive: "disk".to_owned(), cdw10: 2, pattern: 0, state, targets: Vec::new() };
        let with = |state| HostState {
            formatting: vec![format.clone()],
            sanitized: vec![sanitize(state)],
            ..HostState::default()
        };
        let of = |state| {
            let views = views("disk", &with(state));
            views.iter().map(|view| (view.id.clone(), view.state)).collect::<Vec<_>>()
        };
        let format = ("disk:2:0:format".to_owned(), JobState::Running);
        let sanitize = |state| ("disk:0:0:sanitize".to_owned(), state);
        assert_eq!(of(SanitizedState::Running), [format.clone(), sanitize(JobState::Running)]);
        assert_eq!(of(SanitizedState::Done), [format.clone(), sanitize(JobState::Done)]);
        assert_eq!(of(SanitizedState::Failed), [format, sanitize(JobState::Failed)]);
        let views = views("disk", &with(SanitizedState::Running));
        assert!(views.iter().all(|view| view.accepts.is_empty()), "{views:?}");
        let refused = refusal(&views[0], Verb::Cancel);
        assert_eq!(refused.error, "disk:2:0:format cannot be given the order `cancel`: a host ordered it");
    }
}
