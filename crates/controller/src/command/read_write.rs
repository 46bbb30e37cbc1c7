//! Write Zeroes, and commands without a namespace.

use crate::command::transfer::range;
use crate::model::{Namespace, Subsystem};
use crate::state::data_pointer;
use sluice_command::{Operation, Slot};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};

/// Returns the status of a command that names no active namespace. Invalid flags and opcodes come first,
/// since the NSID of such a command has no meaning.
pub(crate) fn without_namespace(entry: &SubmissionEntry, deallocates: bool) -> Status {
    if let Err(status) = data_pointer::check_flags(entry) {
        return status;
    }
    match entry.opcode {
        opcode::READ
        | opcode::WRITE
        | opcode::FLUSH
        | opcode::WRITE_ZEROES
        // The broadcast NSID is refused, too: Flush could take it, but Identify reports that this controller
        // does not (VWC bits 2:1, Base 7.1).
        | opcode::COMPARE
        | opcode::RESERVATION_REGISTER
        | opcode::RESERVATION_REPORT
        | opcode::RESERVATION_ACQUIRE
        | opcode::RESERVATION_RELEASE
        | opcode::WRITE_UNCORRECTABLE
        | opcode::VERIFY => Subsystem::status_of_inactive(entry.nsid),
        opcode::DATASET_MANAGEMENT if deallocates => Subsystem::status_of_inactive(entry.nsid),
        _ => Status::INVALID_OPCODE,
    }
}

/// Checks a Write Zeroes, which moves no data and is not limited by MDTS (NVM Command Set 3.2.8).
pub(crate) fn write_zeroes(
    slot: &mut Slot,
    namespace: &Namespace,
    entry: &SubmissionEntry,
) -> Result<(), Status> {
    if namespace.is_read_only() {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    slot.request = range(Operation::WriteZeroes, namespace, entry)?;
    slot.request.deallocate = entry.deac();
    Ok(())
}
