//! Questions about Format NVM and Sanitize: block sizes, progress, refusals, and the log page.

use crate::model::{Namespace, Subsystem};
use crate::state::erasure::{Erasure, Pass, Purpose};
use crate::state::format::BLOCK_SIZES;
use crate::state::sanitize::{CAPABILITIES, SanitizeState, action, passes};
use sluice_command::Passthrough;
use sluice_nvme::log::{SanitizeStatus, sstat};
use sluice_nvme::opcode::admin;
use sluice_nvme::{Status, SubmissionEntry};

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
    match subsystem.jobs.sanitize.last?.state {
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

/// Returns the Sanitize Status log page.
pub(crate) fn log(subsystem: &Subsystem) -> SanitizeStatus {
    let mut page = SanitizeStatus::new();
    let Some(last) = subsystem.jobs.sanitize.last else { return page };
    page.cdw10 = last.cdw10;
    page.status = match last.state {
        SanitizeState::Running => sstat::IN_PROGRESS,
        SanitizeState::Done => sstat::COMPLETED,
        SanitizeState::Failed | SanitizeState::GivenUp => sstat::FAILED,
    };
    let is_overwrite = last.cdw10 & 7 == action::OVERWRITE;
    let all = passes(last).iter().filter(|pass| matches!(pass, Pass::Pattern(_))).count();
    let running = subsystem.jobs.erasure.as_ref().filter(|_| last.state == SanitizeState::Running);
    let done =
        running.map_or(if last.state == SanitizeState::Done { all } else { 0 }, Erasure::patterns_done);
    if is_overwrite {
        page.status |= (done as u16) << sstat::PASSES_SHIFT;
    }
    if let Some(erasure) = running {
        let (done, all) = erasure.progress(|nsid| bytes_of(subsystem, nsid));
        page.progress = (done * 65_535 / all.max(1)).min(65_534) as u16;
    }
    if subsystem.jobs.sanitize.written == Some(subsystem.health.modifications()) {
        page.status |= sstat::GLOBAL_DATA_ERASED;
    }
    page
}

/// Returns the possible block sizes of a namespace, each with the index of its LBA format. An impossible one
/// keeps its index, as not available (NVM Command Set 4.1.5.1), so that an index means the same block size
/// everywhere.
pub(crate) fn formats(namespace: &Namespace) -> impl Iterator<Item = (usize, u32)> {
    let below = namespace.characteristics();
    let (now, fixed) = (namespace.block_size(), namespace.is_block_size_fixed());
    let is_possible = move |size: &u32| {
        below.block_size <= *size && u64::from(*size) <= below.size && (!fixed || *size == now)
    };
    BLOCK_SIZES.into_iter().enumerate().filter(move |(_, size)| is_possible(size))
}

/// Returns the remaining percentage of a running format, with bit 7 set (Identify's FPI).
pub(crate) fn progress_indicator(subsystem: &Subsystem, nsid: u32) -> u8 {
    const SUPPORTED: u8 = 1 << 7;
    let concerned = subsystem.jobs.erasure.as_ref().filter(|erasure| is_format_of(erasure, nsid));
    SUPPORTED
        | concerned.map_or(0, |erasure| {
            let (done, all) = erasure.progress(|nsid| bytes_of(subsystem, nsid));
            // A namespace that was made smaller can have more bytes done than in total.
            let percent = (done * 100 / all.max(1)).min(100) as u8;
            // A format is not finished before its command is.
            (100 - percent).max(1)
        })
}

fn is_format_of(erasure: &Erasure, nsid: u32) -> bool {
    matches!(erasure.purpose, Purpose::Format { nsid: of, .. } if of == nsid)
}

/// Returns the bytes of a namespace that can be erased, including bytes behind its last block.
pub(crate) fn bytes_of(subsystem: &Subsystem, nsid: u32) -> u64 {
    subsystem.get(nsid).map_or(0, all_bytes)
}

fn all_bytes(namespace: &Namespace) -> u64 {
    let below = namespace.characteristics();
    below.size - below.size % u64::from(below.block_size)
}
