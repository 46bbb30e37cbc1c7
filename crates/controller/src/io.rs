//! I/O commands of the NVM command set: checked here, and turned into requests (NVM Command Set 3).

use crate::turn::{check_flags, refuse};
use crate::{Controller, Namespace, TRANSFER_MAX, compare, dataset};
use sluice_command::{Command, Operation, Request, Slot};
use sluice_memory::{Access, SegmentList, Space, walk_prp, walk_sgl};
use sluice_nvme::{DataTransfer, PAGE_SIZE, Status, SubmissionEntry, opcode::io as opcode};

/// Takes an I/O command that was just fetched.
#[inline]
pub(crate) fn begin(
    controller: &mut Controller,
    command: Command,
    entry: &SubmissionEntry,
    space: &Space,
    now_ns: u64,
) {
    match check(controller, &command, entry, space) {
        Ok(()) if is_done(controller, &command, entry) => controller.done.push(command),
        Ok(()) => controller.subsystem.submit(entry.nsid, command, now_ns),
        Err(status) => refuse(controller, command, status),
    }
}

/// A Dataset Management that asks for nothing has nothing to send.
#[inline]
fn is_done(controller: &Controller, command: &Command, entry: &SubmissionEntry) -> bool {
    entry.opcode == opcode::DATASET_MANAGEMENT && dataset::is_empty(controller.subsystem.slab.slot(command))
}

#[inline]
fn check(
    controller: &mut Controller,
    command: &Command,
    entry: &SubmissionEntry,
    space: &Space,
) -> Result<(), Status> {
    check_flags(entry)?;
    let write_through = !controller.features.write_cache_enabled();
    let deallocates = controller.subsystem.deallocates();
    let Some((slot, number, namespace)) = controller.subsystem.parts(command, entry.nsid) else {
        return Err(without_namespace(controller, entry));
    };
    slot.origin.namespace = (entry.nsid - 1) as u16;
    match entry.opcode {
        opcode::READ => transfer(Operation::Read, Access::Write, slot, namespace, entry, space),
        opcode::WRITE => {
            transfer(Operation::Write, Access::Read, slot, namespace, entry, space)?;
            slot.request.fua |= write_through;
            Ok(())
        }
        opcode::FLUSH => {
            slot.request = Request { operation: Operation::Flush, ..Request::default() };
            Ok(())
        }
        opcode::WRITE_ZEROES => {
            write_zeroes(slot, namespace, entry)?;
            slot.request.fua |= write_through;
            Ok(())
        }
        opcode::COMPARE => compare::check(slot, number, &controller.staging, namespace, entry, space),
        opcode::DATASET_MANAGEMENT if deallocates => dataset::check(slot, namespace, entry, space),
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// What is wrong with a command that names no active namespace: an opcode that does not exist comes
/// first, since the NSID of such a command has no meaning.
#[cold]
fn without_namespace(controller: &Controller, entry: &SubmissionEntry) -> Status {
    match entry.opcode {
        opcode::READ
        | opcode::WRITE
        | opcode::FLUSH
        | opcode::WRITE_ZEROES
        // The broadcast NSID is refused too: Flush could take it, and Identify says that ours
        // does not (VWC bits 2:1, Base 7.1).
        | opcode::COMPARE => Status::INVALID_NAMESPACE,
        opcode::DATASET_MANAGEMENT if controller.subsystem.deallocates() => Status::INVALID_NAMESPACE,
        _ => Status::INVALID_OPCODE,
    }
}

/// A Read or a Write: range, size, then the data pointer.
#[inline]
fn transfer(
    operation: Operation,
    access: Access,
    slot: &mut Slot,
    namespace: &Namespace,
    entry: &SubmissionEntry,
    space: &Space,
) -> Result<(), Status> {
    slot.request = range(operation, namespace, entry)?;
    if slot.request.length > u64::from(TRANSFER_MAX) {
        return Err(Status::INVALID_FIELD);
    }
    if operation == Operation::Write && namespace.characteristics().read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    let length = slot.request.length as u32;
    walk(space, entry, length, access, &mut slot.data)
}

/// The range of a command in bytes, inside the namespace.
#[inline]
pub(crate) fn range(
    operation: Operation,
    namespace: &Namespace,
    entry: &SubmissionEntry,
) -> Result<Request, Status> {
    let (slba, blocks) = (entry.slba(), u64::from(entry.blocks()));
    if !namespace.contains(slba, blocks) {
        return Err(Status::LBA_OUT_OF_RANGE);
    }
    // Without metadata there is no protection information to check or insert (NVM Command Set 5.2):
    // PRACT and PRCHK of a namespace that is not formatted with it are ignored.
    let shift = namespace.block_shift();
    Ok(Request {
        operation,
        fua: entry.fua(),
        deallocate: false,
        offset: slba << shift,
        length: blocks << shift,
    })
}

/// The data pointer of an I/O command as checked segments.
#[inline]
pub(crate) fn walk(
    space: &Space,
    entry: &SubmissionEntry,
    length: u32,
    access: Access,
    data: &mut SegmentList,
) -> Result<(), Status> {
    match entry.data_transfer() {
        DataTransfer::Prp => walk_prp(space, entry.dptr[0], entry.dptr[1], length, PAGE_SIZE, access, data),
        _ => walk_sgl(space, entry.dptr, length, access, data),
    }
}

/// Write Zeroes moves no data and is not limited by MDTS (NVM Command Set 3.2.8).
fn write_zeroes(slot: &mut Slot, namespace: &Namespace, entry: &SubmissionEntry) -> Result<(), Status> {
    if namespace.characteristics().read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    slot.request = range(Operation::WriteZeroes, namespace, entry)?;
    slot.request.deallocate = entry.deac();
    Ok(())
}
