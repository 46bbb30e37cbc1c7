//! Compare (NVM Command Set 3.2.2): reads a chunk into private memory, compares it with the host's data, and
//! continues with the next chunk.

use crate::command::{Step, transfer};
use crate::model::Namespace;
use crate::state::limits::TRANSFER_MAX;
use crate::state::{chunk, data_pointer};
use sluice_command::{Operation, Slot};
use sluice_memory::{Access, SegmentList, SharedRegion, Space};
use sluice_nvme::{Status, SubmissionEntry};

/// Checks a Compare and prepares its first chunk.
pub(crate) fn check(
    slot: &mut Slot,
    number: usize,
    staging: &SharedRegion,
    namespace: &Namespace,
    entry: &SubmissionEntry,
    space: &Space,
) -> Result<(), Status> {
    let whole = transfer::range(Operation::Read, namespace, entry)?;
    if whole.length > u64::from(TRANSFER_MAX) {
        return Err(Status::INVALID_FIELD);
    }
    let steps = slot.steps.get_or_insert_default();
    steps.progress = 0;
    // This is also set while the data is on its way, so that no stale request of another command is visible.
    slot.request = whole;
    let walked = data_pointer::walk(space, entry, whole.length as u32, Access::Read, &mut steps.aside);
    walked.inspect_err(|_| forget_memory(slot))?;
    chunk::read(slot, number, staging, whole.offset, whole.length)
}

/// Clears the segments, so that the next command in this slot, which may never end, does not seem to use this
/// memory.
pub(crate) fn forget_memory(slot: &mut Slot) {
    if let Some(steps) = &mut slot.steps {
        steps.aside.clear();
    }
}

/// Compares a chunk that was read. Returns the next chunk, or the end.
pub(crate) fn next(slot: &mut Slot, number: usize, staging: &SharedRegion) -> Step {
    let status = match step(slot, number, staging) {
        Ok(true) => return Step::Send,
        Ok(false) => Status::SUCCESS,
        Err(status) => status,
    };
    forget_memory(slot);
    Step::Finish(status, 0)
}

/// Compares a chunk that was read. Returns whether another one is to be read.
pub(crate) fn step(slot: &mut Slot, number: usize, staging: &SharedRegion) -> Result<bool, Status> {
    if !slot.status.is_success() {
        return Err(slot.status);
    }
    let Some(steps) = &mut slot.steps else { return Err(Status::INTERNAL_ERROR) };
    let length = slot.request.length as usize;
    if !equal(&steps.aside, steps.progress as usize, &slot.data, length) {
        return Err(Status::COMPARE_FAILURE);
    }
    steps.progress += length as u32;
    let left = steps.aside.len_bytes() - steps.progress as usize;
    if left == 0 {
        // Statistics count the whole command as read.
        slot.request.length = u64::from(steps.progress);
        return Ok(false);
    }
    let offset = slot.request.end();
    chunk::read(slot, number, staging, offset, left as u64)?;
    Ok(true)
}

/// Compares `length` bytes of `theirs` from `offset` with `ours`, on copies.
#[inline(never)]
fn equal(theirs: &SegmentList, offset: usize, ours: &SegmentList, length: usize) -> bool {
    let (mut left, mut right) = ([0; 4096], [0; 4096]);
    let mut at = 0;
    while at < length {
        let part = (length - at).min(left.len());
        theirs.copy_to(offset + at, &mut left[..part]);
        ours.copy_to(at, &mut right[..part]);
        if left[..part] != right[..part] {
            return false;
        }
        at += part;
    }
    true
}
