//! Firmware Image Download and Firmware Commit (Base 5.13, 5.12).
//!
//! The firmware is the daemon: it is upgraded by the operator, and no host can do that. There is one slot, it
//! is read-only (FRMW), and what runs is in it. An image is taken, so that a tool gets as far as the answer,
//! and no byte of it is kept; Commit says what is wrong.

use super::{Admin, Answer, Outcome};
use crate::TRANSFER_MAX;
use sluice_memory::Access;
use sluice_nvme::Status;

/// The one slot.
const SLOT: u32 = 1;

/// Bytes of the largest image that a tool may send.
const IMAGE_MAX: u64 = 64 << 20;

pub(super) fn download(admin: &Admin<'_>) -> Answer {
    let length = (u64::from(admin.entry.cdw10) + 1) * size_of::<u32>() as u64;
    let offset = u64::from(admin.entry.cdw11) * size_of::<u32>() as u64;
    if length > u64::from(TRANSFER_MAX) || offset + length > IMAGE_MAX {
        return Err(Status::INVALID_FIELD);
    }
    admin.data(length as usize, Access::Read)?;
    Ok(Outcome::Done(0))
}

pub(super) fn commit(admin: &Admin<'_>) -> Answer {
    let (slot, action) = (admin.entry.cdw10 & 7, admin.entry.cdw10 >> 3 & 7);
    match action {
        // Replace what is in a slot, and activate it or not: the first is read-only, others are not there.
        0 | 1 if slot == 0 => Err(Status::INVALID_FIRMWARE_IMAGE),
        0 | 1 => Err(Status::INVALID_FIRMWARE_SLOT),
        // Activate a slot, at the next reset or at once: what is in this one runs.
        2 | 3 if slot == SLOT => Ok(Outcome::Done(0)),
        2 | 3 => Err(Status::INVALID_FIRMWARE_SLOT),
        // There are no boot partitions.
        _ => Err(Status::INVALID_FIELD),
    }
}
