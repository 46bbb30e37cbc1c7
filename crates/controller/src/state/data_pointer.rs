//! Flags and data pointer of a command.

use sluice_memory::{Access, SegmentList, Space, walk_prp, walk_sgl};
use sluice_nvme::{DataTransfer, Status, SubmissionEntry};

/// Translates the data pointer of a command to checked segments. After a failure the space holds the list of
/// memory that the client could provide.
#[inline]
pub(crate) fn walk(
    space: &Space,
    entry: &SubmissionEntry,
    length: u32,
    access: Access,
    data: &mut SegmentList,
) -> Result<(), Status> {
    let walked = walk_pointer(space, entry, length, access, data);
    if walked == Err(Status::DATA_TRANSFER_ERROR) {
        survey(space, entry, length, access);
    }
    walked
}

#[cold]
fn survey(space: &Space, entry: &SubmissionEntry, length: u32, access: Access) {
    space.survey(|| {
        // The walk ends where a list is missing, or where no client memory can help.
        let _ = walk_pointer(space, entry, length, access, &mut SegmentList::new());
    });
}

#[inline]
fn walk_pointer(
    space: &Space,
    entry: &SubmissionEntry,
    length: u32,
    access: Access,
    data: &mut SegmentList,
) -> Result<(), Status> {
    match entry.data_transfer() {
        DataTransfer::Prp => {
            walk_prp(space, entry.dptr[0], entry.dptr[1], length, space.page_size(), access, data)
        }
        _ => walk_sgl(space, entry.dptr, length, access, data),
    }
}

/// Checks the fused bits and the reserved form of the data pointer, which no command here may have.
#[inline]
pub(crate) fn check_flags(entry: &SubmissionEntry) -> Result<(), Status> {
    // FUSE in bits 1:0, PSDT = 11b in bits 7:6; bits 5:2 are reserved and ignored.
    if entry.fuse() != 0 || entry.flags >> 6 == 3 {
        return Err(Status::INVALID_FIELD);
    }
    Ok(())
}
