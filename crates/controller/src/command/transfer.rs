//! Range and data of a Read or a Write.

use crate::model::Namespace;
use crate::state::data_pointer::walk;
use crate::state::limits::TRANSFER_MAX;
use sluice_command::{Operation, Request, Slot};
use sluice_memory::{Access, Space};
use sluice_nvme::{Status, SubmissionEntry};

/// Checks a Read or a Write: range, size, then the data pointer.
#[inline]
pub(crate) fn transfer(
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
    if operation == Operation::Write && namespace.is_read_only() {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    let length = slot.request.length as u32;
    walk(space, entry, length, access, &mut slot.data)
}

/// Returns the range of a command in bytes, inside the namespace.
#[inline]
pub(crate) fn range(
    operation: Operation,
    namespace: &Namespace,
    entry: &SubmissionEntry,
) -> Result<Request, Status> {
    let (slba, blocks) = (entry.slba(), u64::from(entry.blocks()));
    namespace.check(operation, slba, blocks)?;
    // Without metadata there is no protection information to check or insert (NVM Command Set 5.2): PRACT and
    // PRCHK are ignored for such a namespace.
    let shift = namespace.block_shift();
    Ok(Request {
        operation,
        fua: entry.fua(),
        deallocate: false,
        offset: slba << shift,
        length: blocks << shift,
    })
}
