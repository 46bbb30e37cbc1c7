//! Verify (NVM Command Set 3.2.7): reads a chunk into private memory, drops it, and continues with the next
//! chunk.

use crate::command::{Step, transfer};
use crate::model::Namespace;
use crate::state::chunk;
use crate::state::limits::TRANSFER_MAX;
use sluice_command::{Operation, Slot};
use sluice_memory::SharedRegion;
use sluice_nvme::{Status, SubmissionEntry};

/// Checks a Verify and prepares its first chunk. The end of the whole range is stored in the steps'
/// destination.
pub(crate) fn check(
    slot: &mut Slot,
    number: usize,
    staging: &SharedRegion,
    namespace: &Namespace,
    entry: &SubmissionEntry,
) -> Result<(), Status> {
    let whole = transfer::range(Operation::Read, namespace, entry)?;
    if whole.length > u64::from(TRANSFER_MAX) {
        // The limit is that of Identify (VSL, NVM Command Set 4.1.5.4).
        return Err(Status::INVALID_FIELD);
    }
    slot.request = whole;
    slot.steps.get_or_insert_default().destination = whole.end();
    chunk::read(slot, number, staging, whole.offset, whole.length)
}

/// Returns the next chunk, or the end.
pub(crate) fn next(slot: &mut Slot, number: usize, staging: &SharedRegion) -> Step {
    let (status, at) = (slot.status, slot.request.end());
    let end = slot.steps.as_ref().map_or(at, |steps| steps.destination);
    if !status.is_success() || at >= end {
        // No data was sent to the host, so nothing counts as read.
        slot.request.length = 0;
        return Step::Finish(status, 0);
    }
    match chunk::read(slot, number, staging, at, end - at) {
        Ok(()) => Step::Send,
        Err(status) => Step::Finish(status, 0),
    }
}
