//! Sanitize (Base 5.24) and the Sanitize Status log page (Base 5.16.1.25): erases every namespace of the
//! drive. No other command is executed before the end, over resets and restarts of the daemon.
//!
//! The erasure reaches the data below this drive as far as its layers do. A drive whose layers may keep more,
//! such as older versions of its data, does not support the command.

use crate::jobs::background;
use crate::model::erasing::{capabilities, refusal};
use crate::model::{Namespace, Subsystem};
use crate::state::erasure::{Erasure, Pass, Purpose};
use crate::state::mailbox::Notice;
use crate::state::sanitize::{SanitizeRecord, SanitizeState, UNRESTRICTED_EXIT, action, passes};
use crate::state::uncorrectable::UncorrectableRanges;
use sluice_jobs::State;
use sluice_nvme::{Status, SubmissionEntry};

/// Takes a Sanitize. Returns whether its command must [wait](Erasure::wait) until its begin is persisted.
pub(crate) fn begin(subsystem: &mut Subsystem, entry: &SubmissionEntry, now_ns: u64) -> Result<bool, Status> {
    let (cdw10, pattern) = (entry.cdw10, entry.cdw11);
    let last = subsystem.jobs_mut().sanitize.last;
    let failed = last.filter(|last| last.state == SanitizeState::Failed);
    let leaves = cdw10 & 7 == action::EXIT_FAILURE_MODE;
    if capabilities(subsystem) == 0 && !(leaves && failed.is_some()) {
        return Err(Status::INVALID_OPCODE);
    }
    if let Some(erasure) = &subsystem.jobs().erasure {
        return Err(erasure.status());
    }
    if subsystem.jobs().management.is_busy() {
        return Err(Status::COMMAND_SEQUENCE_ERROR);
    }
    // A failed operation in restricted mode has no unrestricted exit.
    let was_restricted = failed.is_some_and(|failed| failed.cdw10 & UNRESTRICTED_EXIT == 0);
    if was_restricted && (leaves || cdw10 & UNRESTRICTED_EXIT != 0) {
        return Err(Status::SANITIZE_FAILED);
    }
    let (record, passes) = match cdw10 & 7 {
        action::EXIT_FAILURE_MODE => match last {
            Some(failed) if failed.state == SanitizeState::Failed => {
                (SanitizeRecord { state: SanitizeState::GivenUp, ..failed }, Vec::new())
            }
            // There is no failure to leave.
            _ => return Ok(false),
        },
        action::BLOCK_ERASE | action::OVERWRITE => {
            let record = SanitizeRecord { cdw10, pattern, state: SanitizeState::Running };
            (record, passes(record))
        }
        _ => return Err(Status::INVALID_FIELD),
    };
    subsystem.jobs_mut().erasure = Some(erasure(subsystem, record, passes, now_ns));
    Ok(true)
}

fn erasure(subsystem: &Subsystem, record: SanitizeRecord, passes: Vec<Pass>, now_ns: u64) -> Erasure {
    let nsids = subsystem.namespaces().map(Namespace::nsid).collect();
    Erasure::new(Purpose::Sanitize(record), nsids, passes, now_ns, u64::MAX)
}

/// Restores the last sanitize operation of an earlier daemon. An unfinished one begins again.
pub(crate) fn resume(subsystem: &mut Subsystem, record: SanitizeRecord, now_ns: u64) {
    let mut record = record;
    if record.state == SanitizeState::Running && capabilities(subsystem) == 0 {
        tracing::error!(
            "a sanitize operation cannot be ended: the drive has layers now that may keep older data"
        );
        record.state = SanitizeState::Failed;
    }
    subsystem.jobs_mut().sanitize.last = Some(record);
    if record.state == SanitizeState::Running {
        let mut erasure = erasure(subsystem, record, passes(record), now_ns);
        erasure.begin();
        subsystem.jobs_mut().erasure = Some(erasure);
        tracing::info!("a sanitize operation begins again");
    }
    close_or_open(subsystem);
}

/// Closes all namespaces, or opens them except for one that is being formatted.
fn close_or_open(subsystem: &mut Subsystem) {
    let refusal = refusal(subsystem);
    let formatted = match subsystem.jobs().erasure.as_ref().map(|erasure| erasure.purpose) {
        Some(Purpose::Format { nsid, .. }) => Some(nsid),
        _ => None,
    };
    subsystem.each_namespace(|namespace| match refusal {
        Some(status) => namespace.close(status),
        None if formatted == Some(namespace.nsid()) => {}
        None => namespace.open(),
    });
}

/// Continues the operation after a record was persisted, or could not be.
pub(crate) fn persisted(subsystem: &mut Subsystem, record: SanitizeRecord, well: bool, now_ns: u64) {
    let Some(mut erasure) = subsystem.jobs_mut().erasure.take() else { return };
    if let Some(status) = erasure.failure() {
        tracing::error!(?status, "a sanitize operation failed");
    }
    let begins = matches!(record.state, SanitizeState::Running | SanitizeState::GivenUp);
    if let Some(command) = erasure.take_command() {
        subsystem.decide(command, if well { Status::SUCCESS } else { Status::INTERNAL_ERROR });
    }
    if begins && !well {
        // An operation must not begin unless it is persisted.
        return;
    }
    // An operation whose end is not persisted is not done: it would begin again after a restart.
    let state = match record.state {
        SanitizeState::Done if !well => SanitizeState::Failed,
        state => state,
    };
    let before = subsystem.jobs_mut().sanitize.last.replace(SanitizeRecord { state, ..record });
    let ran = before.is_some_and(|before| before.state == SanitizeState::Running);
    match state {
        SanitizeState::Running => {
            tracing::info!(cdw10 = record.cdw10, "a host sanitizes the drive");
            erasure.begin();
            subsystem.jobs_mut().erasure = Some(erasure);
            subsystem.note_sanitize_start(record, now_ns);
            subsystem.announce(Notice::Sanitizing);
        }
        _ if ran => {
            if state == SanitizeState::Done {
                subsystem
                    .each_namespace(|namespace| namespace.set_uncorrectable(UncorrectableRanges::default()));
            }
            subsystem.jobs_mut().sanitize.written =
                (state == SanitizeState::Done).then(|| subsystem.health().modifications());
            let ended = if state == SanitizeState::Done { State::Done } else { State::Failed };
            background::note_end(subsystem, &erasure, ended);
            subsystem.note_sanitize_end(now_ns);
            subsystem.announce(Notice::Sanitized);
        }
        _ => {}
    }
    close_or_open(subsystem);
}

impl Subsystem {
    /// Restores the last sanitize operation before the first turn.
    pub fn resume_sanitize(&mut self, record: SanitizeRecord, now_ns: u64) {
        resume(self, record, now_ns);
        self.make_due(now_ns);
    }
}
