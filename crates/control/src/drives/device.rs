//! The devices behind a drive, as the API shows them.

use serde::{Deserialize, Serialize};
use sluice_targets::{NvmeStatus, NvmeTcpStatus};
use utoipa::ToSchema;

/// Location of a range of an NVMe device.
#[derive(Clone, Debug)]
pub struct DevicePlace {
    pub device: String,
    pub namespace: u32,
    pub first_block: u64,
}

/// A range of an NVMe device, with its status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    pub nsid: u32,
    /// Address of the device: a socket, a PCI address, a device file, or a subsystem's name and address.
    pub device: String,
    /// NSID on the device.
    #[serde(default)]
    pub namespace: u32,
    /// The range's first block, in the device's blocks.
    pub first_block: u64,
    /// Whether the device is connected.
    pub connected: bool,
    /// ANA state of the path, if the device is on the network and its controller reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// Commands in flight or waiting, if the device is on the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under_way: Option<u64>,
    /// Commands sent to the device.
    pub sent: u64,
    /// Commands completed by the device.
    pub completed: u64,
    /// Commands whose data was copied on the way.
    pub copied: u64,
    /// Number of times that the device was lost.
    pub losses: u64,
    /// Commands in flight when the device was lost.
    pub interrupted: u64,
    /// Completions that belonged to no command.
    pub strays: u64,
    /// Asynchronous events that the device reported; the log lists them.
    pub events: u64,
    /// Bytes of data moved, and bytes that were copied on the way, if the device is on the network.
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

    /// Returns a view of a namespace of a subsystem on the network.
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
