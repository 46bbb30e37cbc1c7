//! The devices behind a drive, as the API shows them.

use serde::{Deserialize, Serialize};
use sluice_targets::{NvmeStatus, NvmeTcpStatus};
use utoipa::ToSchema;

/// Where a range of an NVMe device is.
#[derive(Clone, Debug)]
pub struct DevicePlace {
    pub device: String,
    pub namespace: u32,
    pub first_block: u64,
}

/// A range of an NVMe device, and how it is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    pub nsid: u32,
    /// Where it is: a socket, a PCI address, a file of a device, or a subsystem's name and address.
    pub device: String,
    /// NSID there.
    #[serde(default)]
    pub namespace: u32,
    /// The range's first block, in the device's blocks.
    pub first_block: u64,
    /// It is there.
    pub connected: bool,
    /// Over a network: how good a path it is, if the controller reports that (ANA).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// Over a network: commands that it has now, or that wait for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<u64>,
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
    /// Over a network: bytes of data moved, and of those, how many were copied on the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_copied: Option<u64>,
}

impl DeviceView {
    pub fn new(nsid: u32, place: &DevicePlace, status: NvmeStatus) -> Self {
        let DevicePlace { device, namespace, first_block } = place.clone();
        let NvmeStatus { connected, sent, completed, copied, losses, interrupted, strays, events } = status;
        Self {
            nsid,
            device,
            namespace,
            first_block,
            connected,
            sent,
            completed,
            copied,
            losses,
            interrupted,
            strays,
            events,
            ..Self::default()
        }
    }

    /// A namespace of a subsystem on the network.
    pub fn over_tcp(nsid: u32, place: &DevicePlace, status: NvmeTcpStatus) -> Self {
        let DevicePlace { device, namespace, first_block } = place.clone();
        let NvmeTcpStatus { connected, sent, completed, losses, interrupted, events, .. } = status;
        let (bytes, bytes_copied) = (Some(status.bytes), Some(status.bytes_copied));
        let access = status.ana.map(|state| state.as_str().to_owned());
        Self {
            access,
            under_way: Some(status.under_way),
            nsid,
            device,
            namespace,
            first_block,
            connected,
            sent,
            completed,
            losses,
            interrupted,
            events,
            bytes,
            bytes_copied,
            ..Self::default()
        }
    }
}
