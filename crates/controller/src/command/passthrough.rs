//! Commands that a target passes to its device as their host wrote them, checked as far as possible.
//!
//! The target defines these commands, and the operator must list them. A command that names blocks (Verify,
//! Write Uncorrectable) is kept inside of its namespace like any other. Of a vendor specific command only the
//! place and the length of its data are defined (Base, "Common Command Format - Vendor Specific Commands").

use crate::command::transfer;
use crate::model::{Controller, Namespace, Subsystem};
use crate::state::data_pointer;
use sluice_command::{Operation, Request, Slot};
use sluice_memory::{Access, Space};
use sluice_nvme::{NSID_ALL, PAGE_SIZE, Status, SubmissionEntry, opcode};

/// Bytes of data of a vendor specific I/O command, and of an admin command that is passed on.
const IO_DATA_MAX: u64 = 64 << 10;

pub(crate) const ADMIN_DATA_MAX: u64 = PAGE_SIZE as u64;

/// First log page of the vendor's (Base 5.16.1).
const VENDOR_LOGS: u8 = 0xc0;

/// Checks an I/O command that its namespace passes on.
#[cold]
pub(crate) fn check(
    slot: &mut Slot,
    namespace: &Namespace,
    entry: &SubmissionEntry,
    space: &Space,
) -> Result<(), Status> {
    slot.request = match entry.opcode {
        opcode::io::VERIFY => transfer::range(Operation::Read, namespace, entry)?,
        opcode::io::WRITE_UNCORRECTABLE => transfer::range(Operation::WriteZeroes, namespace, entry)?,
        _ => Request { operation: Operation::Flush, ..Request::default() },
    };
    if slot.request.operation.modifies() && namespace.is_read_only() {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    slot.origin.raw = true;
    match slot.request.operation {
        Operation::Flush => find_data(slot, entry, data_dwords(entry), IO_DATA_MAX, space),
        _ => Ok(()),
    }
}

/// Returns the dwords of data of a vendor specific command, which are in its first parameter.
pub(crate) fn data_dwords(entry: &SubmissionEntry) -> u64 {
    entry.cdw10.into()
}

/// Translates the data pointer of a command; the opcode defines the direction (Base 3.3.3.1).
pub(crate) fn find_data(
    slot: &mut Slot,
    entry: &SubmissionEntry,
    dwords: u64,
    most: u64,
    space: &Space,
) -> Result<(), Status> {
    let access = match entry.opcode & 3 {
        0 => return Ok(()),
        1 => Access::Read,
        2 => Access::Write,
        _ => return Err(Status::INVALID_OPCODE),
    };
    match dwords * size_of::<u32>() as u64 {
        0 => Ok(()),
        bytes if bytes <= most => data_pointer::walk(space, entry, bytes as u32, access, &mut slot.data),
        _ => Err(Status::INVALID_FIELD),
    }
}

/// Returns the namespace whose target takes an admin command, if there is one.
pub(crate) fn taker(controller: &Controller, subsystem: &Subsystem, entry: &SubmissionEntry) -> Option<u32> {
    let is_vendors = match entry.opcode {
        opcode::admin::GET_LOG_PAGE => entry.cdw10 as u8 >= VENDOR_LOGS,
        opcode => opcode >= 0xc0,
    };
    let takes = |namespace: &&Namespace| namespace.passthrough().admin.contains(entry.opcode);
    let of_controller = entry.nsid == 0 || entry.nsid == NSID_ALL;
    let mut namespaces = subsystem.iter_active(controller.number());
    let found = is_vendors
        .then(|| namespaces.find(|each| takes(each) && (of_controller || each.nsid() == entry.nsid)));
    found.flatten().map(Namespace::nsid)
}
