//! Checks of a fused pair.

use crate::model::Subsystem;
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};

/// Checks that the entries are a Compare and a Write of the same blocks.
pub(crate) fn check_entries(first: &SubmissionEntry, second: &SubmissionEntry) -> Result<(), Status> {
    let same_blocks =
        (first.nsid, first.slba(), first.blocks()) == (second.nsid, second.slba(), second.blocks());
    let opcodes = (first.opcode, second.opcode) == (opcode::COMPARE, opcode::WRITE);
    match same_blocks && opcodes && first.flags >> 6 != 3 && second.flags >> 6 != 3 {
        true => Ok(()),
        false => Err(Status::INVALID_FIELD),
    }
}

/// Checks that both commands of this controller have a path to the namespace, and that its reservation permits
/// them. An error has the status of each of the two.
pub(crate) fn check_access(subsystem: &Subsystem, number: u8, nsid: u32) -> Result<(), (Status, Status)> {
    let absent = Subsystem::status_of_inactive(nsid);
    let there = subsystem.get(nsid).filter(|namespace| !namespace.is_leaving());
    let namespace = there.ok_or((absent, absent))?;
    namespace.check_open().map_err(|status| (status, Status::ABORTED_FAILED_FUSED))?;
    let may = |opcode| subsystem.check_access(number, namespace, opcode);
    may(opcode::COMPARE).map_err(|status| (status, Status::ABORTED_FAILED_FUSED))?;
    may(opcode::WRITE).map_err(|status| (Status::ABORTED_FAILED_FUSED, status))
}
