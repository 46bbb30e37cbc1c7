//! Format NVM (Base 5.14; NVM Command Set 4.1.3): erases a namespace, and gives it blocks of another size.
//!
//! Commands to the namespace fail with Format in Progress meanwhile. The host's command completes when the
//! format is done and persisted. A reset of the controller takes that command, but the format goes on: half a
//! format would leave neither the old data nor the requested state.

use crate::jobs::background;
use crate::model::erasing::formats;
use crate::model::{Controller, Namespace, Subsystem, erasing};
use crate::state::erasure::{Erasure, Pass, Purpose};
use crate::state::format::{FormatRecord, FormatState};
use crate::state::mailbox::Notice;
use crate::state::uncorrectable::UncorrectableRanges;
use sluice_jobs::State;
use sluice_nvme::{NSID_ALL, Status, SubmissionEntry};

/// Time for commands in flight to end. A command that takes longer is with a target that may never answer.
const WAIT_NS: u64 = 8_000_000_000;

/// Begins a format. Its command must [wait](Erasure::wait) for the end.
pub(crate) fn begin(
    controller: &Controller,
    subsystem: &mut Subsystem,
    entry: &SubmissionEntry,
    now_ns: u64,
) -> Result<(), Status> {
    let (nsid, block_size) = check(controller, subsystem, entry)?;
    if let Some(erasure) = &subsystem.jobs().erasure {
        return Err(erasure.status());
    }
    if subsystem.jobs().management.is_busy() {
        return Err(Status::COMMAND_SEQUENCE_ERROR);
    }
    tracing::info!(nsid, block_size, "a host formats a namespace");
    let erasure = erasure(subsystem, nsid, block_size, now_ns, now_ns.saturating_add(WAIT_NS));
    subsystem.await_copies();
    subsystem.jobs_mut().erasure = Some(erasure);
    subsystem.note_format_start(entry, now_ns);
    subsystem.announce(Notice::Formatted(nsid));
    Ok(())
}

/// Closes a namespace and returns its erasure.
fn erasure(subsystem: &mut Subsystem, nsid: u32, block_size: u32, now_ns: u64, until_ns: u64) -> Erasure {
    let namespace = subsystem.get_mut(nsid);
    namespace.into_iter().for_each(|namespace| namespace.close(Status::FORMAT_IN_PROGRESS));
    let passes = vec![Pass::Zeroes { deallocate: true }, Pass::Flush];
    Erasure::new(Purpose::Format { nsid, block_size }, vec![nsid], passes, now_ns, until_ns)
}

/// Checks a Format NVM. Returns the NSID and the new block size.
fn check(
    controller: &Controller,
    subsystem: &Subsystem,
    entry: &SubmissionEntry,
) -> Result<(u32, u32), Status> {
    let format = (entry.cdw10 & 0xf | entry.cdw10 >> 8 & 0x30) as usize;
    let (protection, erase) = (entry.cdw10 >> 5 & 7, entry.cdw10 >> 9 & 7);
    // Both without an erase and with one of user data, no former data is returned afterwards.
    if entry.nsid == NSID_ALL || erase > 1 {
        return Err(Status::INVALID_FIELD);
    }
    let namespace = subsystem.active(controller.number(), entry.nsid).ok_or(Status::INVALID_NAMESPACE)?;
    let found = formats(namespace).find(|(index, _)| *index == format);
    let (_, block_size) = found.ok_or(Status::INVALID_FORMAT)?;
    if protection != 0 || !namespace.is_erasable() {
        return Err(Status::INVALID_FORMAT);
    }
    match namespace.is_read_only() {
        true => Err(Status::NAMESPACE_WRITE_PROTECTED),
        false => Ok((entry.nsid, block_size)),
    }
}

/// Continues a format after a record was persisted, or could not be.
pub(crate) fn persisted(subsystem: &mut Subsystem, record: FormatRecord, well: bool, now_ns: u64) {
    let FormatRecord { nsid, block_size, state } = record;
    let failure = subsystem.jobs().erasure.as_ref().and_then(Erasure::failure);
    match state {
        FormatState::Running if !well => end(subsystem, Err(Status::INTERNAL_ERROR), now_ns),
        FormatState::Running => subsystem.jobs_mut().erasure.iter_mut().for_each(Erasure::begin),
        // Otherwise the next daemon would format the namespace again, with new data in it. So the namespace
        // stays closed.
        _ if !well => {
            let Some(erasure) = &mut subsystem.jobs_mut().erasure else { return };
            tracing::error!(nsid, "a namespace stays closed until its format is persisted");
            erasure.retry(now_ns);
            if let Some(command) = erasure.take_command() {
                subsystem.decide(command, Status::INTERNAL_ERROR);
            }
        }
        FormatState::Failed => end(subsystem, failure.map_or(Ok(()), Err), now_ns),
        FormatState::Done => {
            let namespace = subsystem.get_mut(nsid);
            let is_new = namespace.as_ref().is_some_and(|it| it.block_size() != block_size);
            if let Some(namespace) = namespace {
                namespace.set_block_size(block_size);
                // Every block was written.
                namespace.set_uncorrectable(UncorrectableRanges::default());
            }
            end(subsystem, Ok(()), now_ns);
            if is_new {
                subsystem.announce(Notice::NamespaceChanged(nsid));
            }
        }
    }
}

fn end(subsystem: &mut Subsystem, result: Result<(), Status>, now_ns: u64) {
    let Some(mut erasure) = subsystem.jobs_mut().erasure.take() else { return };
    let Purpose::Format { nsid, .. } = erasure.purpose else { return };
    subsystem.note_format_end(nsid, result, now_ns);
    background::note_end(subsystem, &erasure, if result.is_ok() { State::Done } else { State::Failed });
    match result {
        Ok(()) => {}
        Err(Status::COMMAND_SEQUENCE_ERROR) => {
            tracing::warn!(
                nsid,
                "a namespace was not formatted: commands in flight did not come to their end"
            );
        }
        Err(Status::ABORTED_PREEMPT) => {
            tracing::warn!(nsid, "a namespace was not formatted: another host preempted its host");
        }
        Err(status) if erasure.is_untouched() => {
            tracing::error!(nsid, ?status, "a namespace was not formatted, and keeps its data");
        }
        Err(status) => {
            tracing::error!(nsid, ?status, "a namespace could not be formatted, and may have lost data");
        }
    }
    // A drive with a failed sanitize operation stays closed.
    let refusal = erasing::refusal(subsystem);
    if let Some(namespace) = subsystem.get_mut(nsid) {
        match refusal {
            Some(status) => namespace.close(status),
            None => namespace.open(),
        }
    }
    if let Some(command) = erasure.take_command() {
        subsystem.decide(command, result.err().unwrap_or(Status::SUCCESS));
    }
}

impl Subsystem {
    /// Resumes a Format NVM that an earlier daemon did not finish. Call it before the first turn. Returns
    /// false if the format is no longer possible. The caller must then persist its failure, so that no later
    /// daemon applies it to other data.
    #[must_use]
    pub fn resume_format(&mut self, nsid: u32, block_size: u32, now_ns: u64) -> bool {
        let can_be = |it: &Namespace| {
            it.is_erasable() && !it.is_read_only() && formats(it).any(|(_, size)| size == block_size)
        };
        if !self.get(nsid).is_some_and(can_be) {
            tracing::error!(nsid, block_size, "a format cannot be ended: the namespace is another one now");
            return false;
        }
        tracing::info!(nsid, block_size, "a format begins again");
        let mut erasure = erasure(self, nsid, block_size, now_ns, u64::MAX);
        erasure.begin_again();
        self.jobs_mut().erasure = Some(erasure);
        self.make_due(now_ns);
        true
    }
}
