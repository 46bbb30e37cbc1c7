//! Drives as the API shows them.

use super::device::DeviceView;
use super::engine::DriveCounters;
use serde::{Deserialize, Serialize};
use sluice_spec::problem::Problem;
use sluice_spec::size::Size;
use sluice_spec::{
    ClassifierSpec, Doorbells, FunctionSpec, ImageFormat, NvmeSpec, NvmeTcpSpec, OnFull, PathSpec,
    TargetKind, TcpSpec,
};
use utoipa::ToSchema;

/// A drive, and how it is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DriveView {
    pub name: String,
    pub state: DriveState,
    /// Why it is not open, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
    pub origin: Origin,
    /// Serial number the guest sees.
    pub serial: String,
    /// NVMe Qualified Name of the NVM subsystem.
    pub subnqn: String,
    /// The vfio-user socket of its first controller; none if it is for hosts on the network alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The sockets of further controllers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_sockets: Vec<String>,
    /// Whether a virtual machine keeps the drive when it is migrated, saved and restored: no drive can be kept so yet, and
    /// the monitor may not refuse.
    #[serde(default)]
    pub migratable: bool,
    /// Clients (virtual machines) that are there.
    #[serde(default)]
    pub clients: usize,
    /// Who may connect over NVMe/TCP, if hosts on the network may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpSpec>,
    /// NVMe Qualified Names of the hosts that are connected over NVMe/TCP; of one that is twice, twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Those of them that proved who they are (DH-HMAC-CHAP).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub authenticated: Vec<String>,
    /// What the connections of each of them are encrypted with, a TLS cipher suite; none if they are not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ciphers: Vec<String>,
    pub reactor: usize,
    /// Queues that are on other reactors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues_away: Vec<QueueView>,
    /// What brought such queues home, and how often.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub called_home: Vec<CallView>,
    pub doorbells: Doorbells,
    /// Commands in flight.
    pub in_flight: u32,
    /// How often it was seen to stop its reactor in an access to memory that its client was taking back.
    #[serde(default)]
    pub stalls: u64,
    pub counters: DriveCounters,
    /// Decides where each command goes, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classifier: Option<ClassifierSpec>,
    pub namespaces: Vec<NamespaceView>,
    /// The NVMe devices behind it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceView>,
}

/// A completion queue, with its submission queues, on another reactor than its drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    /// Identifier of the completion queue.
    pub queue: u16,
    /// Counted from zero.
    pub reactor: usize,
}

/// Something that takes all queues of a drive, and so brought those home that were on other reactors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallView {
    /// `admin_command`, `io_command`, `reset`, `memory`, `client`, `buffer`, `doorbell`, `fatal`, `operator`, `end` or
    /// `room`.
    pub cause: String,
    /// How often.
    pub times: u64,
}

/// Where a drive stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DriveState {
    /// Open, without a client.
    Ready,
    /// A client (a virtual machine), or a host on the network, is there.
    Connected,
    /// It could not be opened, or its reactor does not answer.
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

/// Who made a drive.
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
    /// A host has created it, in the drive's pool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_host: bool,
    pub target: TargetKind,
    /// File or block device of a `file` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Bytes; none while the drive is not open and nobody said.
    pub size: Option<Size>,
    /// Bytes of a logical block.
    pub block_size: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFull>,
    /// As it was said.
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
    /// Storage functions over the target, topmost first.
    #[serde(default)]
    pub functions: Vec<FunctionSpec>,
    /// Further ways that a classifier can choose: path 1, path 2 and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathSpec>,
}

impl NamespaceView {
    /// One of which nothing but this is known.
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
            functions: Vec::new(),
            paths: Vec::new(),
        }
    }
}
