//! Write Uncorrectable (NVM Command Set 3.2.7): checks, and writes over uncorrectable blocks.

use crate::command::{Step, transfer};
use crate::model::Namespace;
use crate::state::uncorrectable::bytes;
use sluice_command::{Operation, Slot};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};

/// Checks a Write Uncorrectable. Nothing goes to the layers.
#[cold]
pub(crate) fn check(slot: &mut Slot, namespace: &Namespace, entry: &SubmissionEntry) -> Result<(), Status> {
    if namespace.is_read_only() {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    slot.request = transfer::range(Operation::Write, namespace, entry)?;
    Ok(())
}

/// Turns a write of uncorrectable blocks into one that removes the ranges when it is done.
#[cold]
pub(crate) fn note_write(slot: &mut Slot, namespace: &Namespace) {
    if namespace.is_uncorrectable(&bytes(slot)) {
        slot.origin.opcode = opcode::WRITE_UNCORRECTABLE;
        // Otherwise a power cut could bring back data from before the Write Uncorrectable.
        slot.request.fua = true;
    }
}

/// Returns the next step of a command that changes ranges, after its last step in the layers.
pub(crate) fn next(slot: &Slot) -> Step {
    match slot.status.is_success() {
        true => Step::ChangeRanges,
        false => Step::Finish(slot.status, 0),
    }
}
