//! Private memory of commands that read data for no host, a chunk at a time.
//!
//! Every command of a drive may be one of these at once. With chunks their memory is bounded by the drive's
//! staging memory, however large the commands are.

use crate::state::limits::COMMANDS_MAX;
use sluice_command::{Operation, Slot};
use sluice_memory::SharedRegion;
use sluice_nvme::Status;

/// Bytes read in one step.
pub(crate) const CHUNK: usize = 16 << 10;

/// Creates memory with a chunk for every slot; its pages are allocated when first used.
pub(crate) fn staging() -> std::io::Result<SharedRegion> {
    SharedRegion::new("sluice-staging", COMMANDS_MAX as usize * CHUNK)
}

/// Makes the command in slot `number` a read of its next chunk, of the `left` bytes from `offset` on.
pub(crate) fn read(
    slot: &mut Slot,
    number: usize,
    staging: &SharedRegion,
    offset: u64,
    left: u64,
) -> Result<(), Status> {
    let length = left.min(CHUNK as u64);
    slot.request.operation = Operation::Read;
    (slot.request.offset, slot.request.length) = (offset, length);
    slot.data.clear();
    let window = staging.segment(number * CHUNK, length as u32);
    slot.data.push(window).map_err(|_| Status::INTERNAL_ERROR)
}
