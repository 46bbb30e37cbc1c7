//! Firmware Image Download and Firmware Commit (Base 5.13, 5.12).
//!
//! The firmware is the daemon, which only the operator upgrades. There is one read-only slot (FRMW), which
//! holds the running firmware. A download is accepted and dropped, so that a tool gets as far as the Commit,
//! which returns the error.

use crate::admin::{Answer, Outcome};
use crate::model::request::Admin;
use crate::state::limits::TRANSFER_MAX;
use sluice_memory::Access;
use sluice_nvme::Status;

/// Only slot.
const SLOT: u32 = 1;

/// Bytes of the largest image that a tool may send.
const IMAGE_MAX: u64 = 64 << 20;

pub(crate) fn download(admin: &Admin<'_>) -> Answer {
    let length = (u64::from(admin.entry.cdw10) + 1) * size_of::<u32>() as u64;
    let offset = u64::from(admin.entry.cdw11) * size_of::<u32>() as u64;
    if length > u64::from(TRANSFER_MAX) || offset + length > IMAGE_MAX {
        return Err(Status::INVALID_FIELD);
    }
    admin.data(length as usize, Access::Read)?;
    Ok(Outcome::Done(0))
}

pub(crate) fn commit(admin: &Admin<'_>) -> Answer {
    let (slot, action) = (admin.entry.cdw10 & 7, admin.entry.cdw10 >> 3 & 7);
    match action {
        // Replace a slot's image, and activate it or not: the first slot is read-only, others do not exist.
        0 | 1 if slot == 0 => Err(Status::INVALID_FIRMWARE_IMAGE),
        0 | 1 => Err(Status::INVALID_FIRMWARE_SLOT),
        // Activate a slot, at the next reset or at once: the image of this slot runs already.
        2 | 3 if slot == SLOT => Ok(Outcome::Done(0)),
        2 | 3 => Err(Status::INVALID_FIRMWARE_SLOT),
        // There are no boot partitions.
        _ => Err(Status::INVALID_FIELD),
    }
}
