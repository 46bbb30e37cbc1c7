//! The devices behind a drive, as the API shows them.

use serde::{Deserialize, Serialize};
use sluice_targets::NvmeStatus;
use utoipa::ToSchema;

/// A range of an NVMe device, and how it is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    pub nsid: u32,
    /// Where it is: a socket, a PCI address, or a file of a device.
    pub device: String,
    /// The range's first block, in the device's blocks.
    pub first_block: u64,
    /// It is there.
    pub connected: bool,
    /// Commands sent to it.
    pub sent: u64,
    /// Commands that it has completed.
    pub completed: u64,
    /// Of those that were sent, how many had their data copied.
    pub copied: u64,
    /// How often it was lost.
    pub losses: u64,
    /// Commands that it had when it was lost.
    pub interrupted: u64,
    /// Completions that belonged to no command.
    pub strays: u64,
    /// Events that it reported by itself; the log says which.
    pub events: u64,
}

impl DeviceView {
    pub(crate) fn new(nsid: u32, device: String, first_block: u64, status: NvmeStatus) -> Self {
        let NvmeStatus { connected, sent, completed, copied, losses, interrupted, strays, events } = status;
        Self {
            nsid,
            device,
            first_block,
            connected,
            sent,
            completed,
            copied,
            losses,
            interrupted,
            strays,
            events,
        }
    }
}
