//! The sockets of a drive as a user describes them.

use super::Fault;
use crate::size::Size;
use serde::{Deserialize, Serialize};
use sluice_frontend_vfio_user::SOCKETS_MAX;
use utoipa::ToSchema;

/// Sockets for virtual machines. A drive without this key, and without `tcp`, has one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VfioUserSpec {
    /// Number of virtual machines that may have the drive at a time: each socket is a controller of its own.
    pub sockets: usize,
    /// Whether all sockets are paths of one virtual machine. Otherwise each socket is a host of its own to
    /// reservations, whatever host identifier it presents.
    pub one_guest: bool,
    /// Whether interrupts are by MSI-X, with one vector for each queue. Otherwise a virtual machine has one
    /// interrupt for the whole drive, and QEMU up to 11.1 can unplug the drive.
    pub msix: bool,
    /// Maximum memory that the monitor at a socket may share with the daemon; as much as this machine has if
    /// not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<Size>,
    /// Whether memory that the monitor at a socket shares is populated when it is mapped.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub populate: bool,
}

impl Default for VfioUserSpec {
    fn default() -> Self {
        Self { sockets: 1, one_guest: false, msix: true, memory_max: None, populate: false }
    }
}

impl VfioUserSpec {
    pub(super) fn check(&self) -> Result<(), Fault> {
        match self.sockets {
            0 => Err(Fault::at_key("sockets", "a drive that is served over vfio-user has at least one")
                .hint("leave [drive.vfio_user] out, and say [drive.tcp], if it is for hosts on the network alone")),
            count if count > SOCKETS_MAX => {
                Err(Fault::at_key("sockets", format!("a drive has {SOCKETS_MAX} sockets at most")))
            }
            _ if self.memory_max == Some(Size(0)) => {
                Err(Fault::at_key("memory_max", "a machine without memory has no queues")
                    .hint("leave it out for as much as this machine has"))
            }
            _ => Ok(()),
        }
    }
}
