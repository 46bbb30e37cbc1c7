//! Sanitize (Base 5.24) and the Sanitize Status log page (Base 5.16.1.25): erases every namespace of the
//! drive. No other command is executed before the end, over resets and restarts of the daemon.
//!
//! The erasure reaches the data below this drive as far as its layers do. A drive whose layers may keep more,
//! such as older versions of its data, does not support the command.

use crate::erase::{self, Erasure, Pass, Purpose};
use crate::mailbox::Notice;
use crate::uncorrectable::UncorrectableRanges;
use crate::{Namespace, Subsystem};
use sluice_command::Passthrough;
use sluice_nvme::log::{SanitizeStatus, sstat};
use sluice_nvme::opcode::admin;
use sluice_nvme::{Status, SubmissionEntry};

/// Last sanitize operation that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SanitizeRecord {
    /// Command dword 10 of the operation.
    pub cdw10: u32,
    /// Overwrite Pattern.
    pub pattern: u32,
    pub state: SanitizeState,
}

/// State of a sanitize operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SanitizeState {
    Running,
    Done,
    /// Failure: only another Sanitize is allowed.
    Failed,
    /// Failure that the host has left by Exit Failure Mode.
    GivenUp,
}

/// Identify's SANICAP: block erase and overwrite. There is no cryptographic erase, since no layer has a key
/// to destroy. Blocks are not modified afterwards, and are not deallocated if the host requests that.
const CAPABILITIES: u32 = 1 << 1 | 1 << 2 | 0b01 << 30;

/// Sanitize Action, CDW10 bits 2:0.
mod action {
    pub(super) const EXIT_FAILURE_MODE: u32 = 1;
    pub(super) const BLOCK_ERASE: u32 = 2;
    pub(super) const OVERWRITE: u32 = 3;
}

/// Bits of CDW10.
const UNRESTRICTED_EXIT: u32 = 1 << 3;
const INVERT_BETWEEN_PASSES: u32 = 1 << 8;
const NO_DEALLOCATE: u32 = 1 << 9;

/// State of the last sanitize operation.
#[derive(Debug, Default)]
pub(crate) struct Sanitize {
    last: Option<SanitizeRecord>,
    /// Number of modifications at its end. Unknown after a restart.
    written: Option<u64>,
}

/// Returns SANICAP: zero if the drive does not support the command.
pub(crate) fn capabilities(subsystem: &Subsystem) -> u32 {
    let can_be = |it: &Namespace| {
        !it.characteristics().keeps_versions
            && it.is_erasable()
            && !it.is_read_only()
            && it.passthrough() == Passthrough::NONE
    };
    let mut namespaces = subsystem.namespaces();
    let has_some = subsystem.namespaces().next().is_some();
    if has_some && namespaces.all(can_be) { CAPABILITIES } else { 0 }
}

/// Returns the status of commands while they are not allowed.
pub(crate) fn refusal(subsystem: &Subsystem) -> Option<Status> {
    match subsystem.sanitize.last?.state {
        SanitizeState::Running => Some(Status::SANITIZE_IN_PROGRESS),
        SanitizeState::Failed => Some(Status::SANITIZE_FAILED),
        SanitizeState::Done | SanitizeState::GivenUp => None,
    }
}

/// Refuses the admin commands that are not allowed now (Base 5.24, "Command Restrictions").
pub(crate) fn permits(subsystem: &Subsystem, entry: &SubmissionEntry) -> Result<(), Status> {
    match entry.opcode {
        admin::FORMAT_NVM
        | admin::FIRMWARE_DOWNLOAD
        | admin::FIRMWARE_COMMIT
        | admin::DEVICE_SELF_TEST
        | admin::NAMESPACE_MANAGEMENT
        | admin::NAMESPACE_ATTACHMENT => refusal(subsystem).map_or(Ok(()), Err),
        _ => Ok(()),
    }
}

/// Takes a Sanitize. Returns whether its command must [wait](Erasure::wait) until its begin is persisted.
pub(crate) fn begin(subsystem: &mut Subsystem, entry: &SubmissionEntry, now_ns: u64) -> Result<bool, Status> {
    let (cdw10, pattern) = (entry.cdw10, entry.cdw11);
    let last = subsystem.sanitize.last;
    let failed = last.filter(|last| last.state == SanitizeState::Failed);
    let leaves = cdw10 & 7 == action::EXIT_FAILURE_MODE;
    if capabilities(subsystem) == 0 && !(leaves && failed.is_some()) {
        return Err(Status::INVALID_OPCODE);
    }
    if let Some(erasure) = &subsystem.erasure {
        return Err(erasure.status());
    }
    if subsystem.management.is_busy() {
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
    subsystem.erasure = Some(erasure(subsystem, record, passes, now_ns));
    Ok(true)
}

fn erasure(subsystem: &Subsystem, record: SanitizeRecord, passes: Vec<Pass>, now_ns: u64) -> Erasure {
    let nsids = subsystem.namespaces().map(Namespace::nsid).collect();
    Erasure::new(Purpose::Sanitize(record), nsids, passes, now_ns, u64::MAX)
}

/// Returns the passes of an operation, each followed by a flush.
fn passes(record: SanitizeRecord) -> Vec<Pass> {
    let deallocates = record.cdw10 & NO_DEALLOCATE == 0;
    if record.cdw10 & 7 != action::OVERWRITE {
        return vec![Pass::Zeroes { deallocate: deallocates }, Pass::Flush];
    }
    let count = match record.cdw10 >> 4 & 0xf {
        0 => 16,
        count => count,
    };
    let inverts = record.cdw10 & INVERT_BETWEEN_PASSES != 0;
    let pattern = |pass| if inverts && pass % 2 == 1 { !record.pattern } else { record.pattern };
    (0..count).flat_map(|pass| [Pass::Pattern(pattern(pass)), Pass::Flush]).collect()
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
    subsystem.sanitize.last = Some(record);
    if record.state == SanitizeState::Running {
        let mut erasure = erasure(subsystem, record, passes(record), now_ns);
        erasure.begin();
        subsystem.erasure = Some(erasure);
        tracing::info!("a sanitize operation begins again");
    }
    close_or_open(subsystem);
}

/// Closes all namespaces, or opens them except for one that is being formatted.
fn close_or_open(subsystem: &mut Subsystem) {
    let refusal = refusal(subsystem);
    let formatted = match subsystem.erasure.as_ref().map(|erasure| erasure.purpose) {
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
    let Some(mut erasure) = subsystem.erasure.take() else { return };
    if let Some(status) = erasure.failure() {
        tracing::error!(?status, "a sanitize operation failed");
    }
    let begins = matches!(record.state, SanitizeState::Running | SanitizeState::GivenUp);
    if let Some(command) = erasure.take_command() {
        subsystem.slab.slot_mut(&command).status =
            if well { Status::SUCCESS } else { Status::INTERNAL_ERROR };
        subsystem.done.push(command);
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
    let before = subsystem.sanitize.last.replace(SanitizeRecord { state, ..record });
    let ran = before.is_some_and(|before| before.state == SanitizeState::Running);
    match state {
        SanitizeState::Running => {
            tracing::info!(cdw10 = record.cdw10, "a host sanitizes the drive");
            erasure.begin();
            subsystem.erasure = Some(erasure);
            subsystem.note_sanitize_start(record, now_ns);
            subsystem.mailboxes.announce(Notice::Sanitizing);
        }
        _ if ran => {
            if state == SanitizeState::Done {
                subsystem
                    .each_namespace(|namespace| namespace.set_uncorrectable(UncorrectableRanges::default()));
            }
            subsystem.sanitize.written =
                (state == SanitizeState::Done).then(|| subsystem.health.modifications());
            subsystem.note_sanitize_end(now_ns);
            subsystem.mailboxes.announce(Notice::Sanitized);
        }
        _ => {}
    }
    close_or_open(subsystem);
}

/// Returns the Sanitize Status log page.
pub(crate) fn log(subsystem: &Subsystem) -> SanitizeStatus {
    let mut page = SanitizeStatus::new();
    let Some(last) = subsystem.sanitize.last else { return page };
    page.cdw10 = last.cdw10;
    page.status = match last.state {
        SanitizeState::Running => sstat::IN_PROGRESS,
        SanitizeState::Done => sstat::COMPLETED,
        SanitizeState::Failed | SanitizeState::GivenUp => sstat::FAILED,
    };
    let is_overwrite = last.cdw10 & 7 == action::OVERWRITE;
    let all = passes(last).iter().filter(|pass| matches!(pass, Pass::Pattern(_))).count();
    let running = subsystem.erasure.as_ref().filter(|_| last.state == SanitizeState::Running);
    let done =
        running.map_or(if last.state == SanitizeState::Done { all } else { 0 }, Erasure::patterns_done);
    if is_overwrite {
        page.status |= (done as u16) << sstat::PASSES_SHIFT;
    }
    if let Some(erasure) = running {
        let (done, all) = erasure.progress(|nsid| erase::bytes_of(subsystem, nsid));
        page.progress = (done * 65_535 / all.max(1)).min(65_534) as u16;
    }
    if subsystem.sanitize.written == Some(subsystem.health.modifications()) {
        page.status |= sstat::GLOBAL_DATA_ERASED;
    }
    page
}

impl Subsystem {
    /// Restores the last sanitize operation before the first turn.
    pub fn resume_sanitize(&mut self, record: SanitizeRecord, now_ns: u64) {
        resume(self, record, now_ns);
        self.next_deadline_ns = now_ns;
    }
}
