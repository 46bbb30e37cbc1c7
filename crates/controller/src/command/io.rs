//! I/O commands of the NVM command set: checks them by their opcode, and turns them into requests (NVM Command
//! Set 3).

use crate::command::transfer::{range, transfer};
use crate::command::{Next, compare, dataset, passthrough, reservation, uncorrectable, verify};
use crate::model::{Namespace, Subsystem};
use crate::state::data_pointer;
use crate::state::features::Features;
use crate::state::health::Health;
use sluice_command::{Operation, Request, Slot};
use sluice_memory::{Access, SharedRegion, Space};
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};

/// Context of a check.
#[derive(Clone, Copy)]
pub(crate) struct Check<'a> {
    pub(crate) entry: &'a SubmissionEntry,
    pub(crate) space: &'a Space,
    pub(crate) features: &'a Features,
    /// Whether the drive supports Dataset Management.
    pub(crate) deallocates: bool,
    /// Number of the command's slot.
    pub(crate) number: usize,
    /// Private memory of commands.
    pub(crate) staging: &'a SharedRegion,
}

/// Checks a command with its slot and its namespace, and counts effort that the request does not show. Returns
/// the next step.
#[inline(always)]
pub(crate) fn check(
    it: &Check<'_>,
    slot: &mut Slot,
    namespace: &Namespace,
    health: &mut Health,
) -> Result<Next, Status> {
    let Check { entry, space, features, deallocates, number, staging } = *it;
    data_pointer::check_flags(entry)?;
    match entry.opcode {
        opcode::READ => transfer(Operation::Read, Access::Write, slot, namespace, entry, space)?,
        opcode::WRITE => {
            transfer(Operation::Write, Access::Read, slot, namespace, entry, space)?;
            slot.request.fua |= !features.write_cache_enabled();
            if !namespace.is_plain() {
                uncorrectable::note_write(slot, namespace);
            }
        }
        opcode::FLUSH => {
            namespace.check_open()?;
            slot.request = Request { operation: Operation::Flush, ..Request::default() };
        }
        opcode::WRITE_ZEROES => {
            write_zeroes(slot, namespace, entry)?;
            slot.request.fua |= !features.write_cache_enabled();
            if !namespace.is_plain() {
                uncorrectable::note_write(slot, namespace);
            }
        }
        opcode::WRITE_UNCORRECTABLE if !namespace.passthrough().io.contains(entry.opcode) => {
            uncorrectable::check(slot, namespace, entry)?;
            return Ok(Next::Nothing);
        }
        opcode::COMPARE => {
            health.note_effort();
            compare::check(slot, number, staging, namespace, entry, space)?;
        }
        opcode::VERIFY if !namespace.passthrough().io.contains(opcode::VERIFY) => {
            verify::check(slot, number, staging, namespace, entry)?
        }
        opcode::DATASET_MANAGEMENT if deallocates => {
            health.note_effort();
            return dataset::check(slot, namespace, entry, space);
        }
        opcode::RESERVATION_REGISTER
        | opcode::RESERVATION_REPORT
        | opcode::RESERVATION_ACQUIRE
        | opcode::RESERVATION_RELEASE => {
            namespace.check_open()?;
            return reservation::check(slot, entry, space);
        }
        opcode if namespace.passthrough().io.contains(opcode) => {
            passthrough::check(slot, namespace, entry, space)?;
            return Ok(Next::Pass);
        }
        _ => return Err(Status::INVALID_OPCODE),
    }
    Ok(Next::Send)
}

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
