//! Dataset Management (NVM Command Set 3.2.3): its ranges, one after the other.
//!
//! The addresses of this command are in its data, so it is unpacked before the router. The layers receive one
//! deallocate for each range, checked like any other address.

use crate::command::{Next, Step};
use crate::model::Namespace;
use crate::state::data_pointer;
use sluice_command::{Deallocated, Operation, Range, Request, Slot};
use sluice_memory::{Access, SegmentList, Space};
use sluice_nvme::{Status, SubmissionEntry};

/// Bytes of a range on the wire.
const RANGE: usize = 16;

/// Ranges of one command (NR is 0's based in one byte).
const RANGES_MAX: usize = 256;

/// Attribute - Deallocate, CDW11 bit 2. The two integral dataset hints change nothing here.
const DEALLOCATE: u32 = 1 << 2;

/// Copies and checks the ranges, and prepares the first. Context attributes of a range are hints.
#[inline(never)]
pub(crate) fn check(
    slot: &mut Slot,
    namespace: &Namespace,
    entry: &SubmissionEntry,
    space: &Space,
) -> Result<Next, Status> {
    // A command without work is counted as what it is, too.
    slot.request = Request { operation: Operation::Deallocate, ..Request::default() };
    let count = (entry.cdw10 as usize & 0xff) + 1;
    let characteristics = namespace.characteristics();
    let mut wire = [0; RANGES_MAX * RANGE];
    let wire = &mut wire[..count * RANGE];
    let mut data = SegmentList::new();
    data_pointer::walk(space, entry, wire.len() as u32, Access::Read, &mut data)?;
    if data.copy_to(0, wire) != wire.len() {
        return Err(Status::DATA_TRANSFER_ERROR);
    }
    let steps = slot.steps.get_or_insert_default();
    steps.progress = 0;
    steps.ranges.clear();
    let deallocate = entry.cdw11 & DEALLOCATE != 0;
    if deallocate && characteristics.read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED);
    }
    for range in wire.as_chunks::<RANGE>().0 {
        let [low, slba]: [u64; 2] = zerocopy::transmute!(*range);
        // The low half of the first word has context attributes, the high half the block count.
        let blocks = low >> 32;
        // Uncorrectable blocks stay so until they are written.
        namespace.check(Operation::Deallocate, slba, blocks)?;
        if deallocate && blocks > 0 && characteristics.deallocated != Deallocated::Unsupported {
            let shift = namespace.block_shift();
            let (nsid, offset, length) = (namespace.nsid(), slba << shift, blocks << shift);
            steps.ranges.push(Range { nsid, offset, length });
        }
    }
    Ok(if prepare(slot) { Next::Send } else { Next::Nothing })
}

/// Makes the command the deallocate of its next range. Returns false if there is none.
fn prepare(slot: &mut Slot) -> bool {
    let Some(steps) = &mut slot.steps else { return false };
    let Some(&Range { offset, length, .. }) = steps.ranges.get(steps.progress as usize) else { return false };
    steps.progress += 1;
    slot.request = Request { operation: Operation::Deallocate, offset, length, ..Request::default() };
    true
}

/// Returns the next range, or the end.
pub(crate) fn next(slot: &mut Slot) -> Step {
    let status = slot.status;
    match status.is_success() && prepare(slot) {
        true => Step::Send,
        false => Step::Finish(status, 0),
    }
}
