//! Drives as the API shows them.

use super::device::DeviceView;
use super::engine::DriveCounters;
use serde::{Deserialize, Serialize};
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::{
    ClassifierSpec, Doorbells, FunctionSpec, ImageFormat, NvmeSpec, NvmeTcpSpec, OnFull, PathSpec,
    TargetKind, TcpSpec,
};
use utoipa::ToSchema;

/// A drive and its status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DriveView {
    pub name: String,
    pub state: DriveState,
    /// Error that keeps the drive from being open, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<ApiError>,
    pub origin: Origin,
    /// Serial number that the guest sees.
    pub serial: String,
    /// NVMe Qualified Name of the NVM subsystem.
    pub subnqn: String,
    /// The vfio-user socket of the first controller; none if the drive is for hosts on the network alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The sockets of further controllers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_sockets: Vec<String>,
    /// Whether a virtual machine keeps the drive when it is migrated, saved and restored. No drive supports
    /// that yet, and the monitor may not refuse to do it.
    #[serde(default)]
    pub migratable: bool,
    /// Number of clients (virtual machines) that are connected.
    #[serde(default)]
    pub clients: usize,
    /// Hosts that may connect over NVMe/TCP, if the drive is for hosts on the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpSpec>,
    /// NVMe Qualified Names of the hosts that are connected over NVMe/TCP. A host that is connected twice is
    /// listed twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// NVMe Qualified Names of the hosts that are authenticated (DH-HMAC-CHAP).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authenticated: Vec<String>,
    /// TLS cipher suite of each host's connections; empty if the drive is served without TLS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ciphers: Vec<String>,
    pub reactor: usize,
    /// Queues that are on other reactors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote_queues: Vec<QueueView>,
    /// Causes that returned such queues to the drive's reactor, with their counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queue_recalls: Vec<RecallView>,
    pub doorbells: Doorbells,
    /// Whether virtual machines get interrupts by MSI-X; without it, by the interrupt pin.
    #[serde(default)]
    pub msix: bool,
    /// Commands in flight.
    pub in_flight: u32,
    /// Number of times that the drive was seen to stop its reactor in an access to memory that its client was
    /// reclaiming.
    #[serde(default)]
    pub stalls: u64,
    pub counters: DriveCounters,
    /// The classifier that decides where each command goes, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classifier: Option<ClassifierSpec>,
    pub namespaces: Vec<NamespaceView>,
    /// The NVMe devices behind the drive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceView>,
}

/// A completion queue, with its submission queues, on another reactor than its drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    /// Identifier of the completion queue.
    pub queue: u16,
    /// The reactor, counted from zero.
    pub reactor: usize,
}

/// A cause that needed all queues of a drive, and so returned those on other reactors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecallView {
    /// Cause: `admin_command`, `io_command`, `reset`, `memory`, `client`, `buffer`, `doorbell`, `fatal`,
    /// `operator`, `end` or `room`.
    pub cause: String,
    /// Number of times.
    pub times: u64,
}

/// State of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DriveState {
    /// Open, without a client.
    Ready,
    /// A client (a virtual machine), or a host on the network, is connected.
    Connected,
    /// The drive could not be opened, or its reactor does not respond.
    Failed,
}

impl DriveState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Connected => "connected",
            Self::Failed => "failed",
        }
    }
}

/// Creator of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The configuration file.
    Declared,
    /// A caller of the API.
    Created,
}

impl Origin {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Declared => "declared",
            Self::Created => "created",
        }
    }
}

/// A namespace of a drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamespaceView {
    pub nsid: u32,
    /// Whether a host has created the namespace in the drive's pool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_host: bool,
    pub target: TargetKind,
    /// File or block device of a `file` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Size of the namespace; none if the drive is not open and its spec has no size.
    pub size: Option<Size>,
    /// Bytes of a logical block.
    pub block_size: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFull>,
    /// Image format in the drive's spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ImageFormat>,
    /// The lease of a `file` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The device of an `nvme` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<NvmeSpec>,
    /// The subsystem of an `nvme-tcp` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_tcp: Option<NvmeTcpSpec>,
    /// Pool of a `memory-pool` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
    /// The volume of a `thin` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Storage functions over the target, topmost first.
    #[serde(default)]
    pub functions: Vec<FunctionSpec>,
    /// Further paths that a classifier can choose: path 1, path 2 and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathSpec>,
}

impl NamespaceView {
    /// Returns a view of a namespace with no more than a target.
    pub(super) fn of(target: TargetKind) -> Self {
        Self {
            nsid: 0,
            by_host: false,
            target,
            path: None,
            size: None,
            block_size: 0,
            on_full: None,
            format: None,
            lease: None,
            read_only: false,
            nvme: None,
            nvme_tcp: None,
            shared: None,
            volume: None,
            functions: Vec::new(),
            paths: Vec::new(),
        }
    }
}
