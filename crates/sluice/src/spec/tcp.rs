//! A drive for hosts on the network as a user describes it.

use super::Fault;
use serde::{Deserialize, Serialize};
use sluice_nvme::fabrics::{DISCOVERY_NQN, NQN_MAX};
use utoipa::ToSchema;

/// Hosts that one drive can name.
const HOSTS_MAX: usize = 1024;

/// Controllers that one drive can have for them.
const CONTROLLERS_MAX: u8 = 24;

/// A drive with this is served over NVMe/TCP; over vfio-user only if `vfio_user` says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TcpSpec {
    /// NVMe Qualified Name of the NVM subsystem. Derived from the serial number if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// NVMe Qualified Names of the hosts that may connect. Without any, every host on the daemon's machine
    /// may, and no other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// How many of them may be there at a time; one that connects twice counts twice.
    pub max_hosts: u8,
}

impl Default for TcpSpec {
    fn default() -> Self {
        Self { nqn: None, hosts: Vec::new(), max_hosts: 16 }
    }
}

impl TcpSpec {
    pub(super) fn check(&self) -> Result<(), Fault> {
        if let Some(nqn) = &self.nqn {
            check_nqn("nqn", nqn)?;
            if nqn == DISCOVERY_NQN {
                return Err(Fault::at_key("nqn", "this is the name of the discovery service")
                    .hint("choose another, or leave it out"));
            }
        }
        if self.hosts.len() > HOSTS_MAX {
            return Err(Fault::at_key("hosts", format!("at most {HOSTS_MAX} can be named")));
        }
        if !(1..=CONTROLLERS_MAX).contains(&self.max_hosts) {
            let fault = format!("from 1 to {CONTROLLERS_MAX} hosts can be there at a time");
            return Err(Fault::at_key("max_hosts", fault));
        }
        self.hosts.iter().try_for_each(|host| check_nqn("hosts", host))
    }
}

/// As the specification has them (Base 4.7), but for the date.
pub(super) fn check_nqn(key: &'static str, nqn: &str) -> Result<(), Fault> {
    let printable = nqn.chars().all(|c| !c.is_control() && !c.is_whitespace());
    if nqn.starts_with("nqn.") && nqn.len() <= NQN_MAX && printable {
        return Ok(());
    }
    Err(Fault::at_key(key, format!("`{}` is no NVMe Qualified Name", nqn.escape_debug()))
        .hint("use a name such as nqn.2024-01.org.example:disk; a host's is in its /etc/nvme/hostnqn"))
}
