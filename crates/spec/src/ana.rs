//! States of a drive's ANA groups at the ports that hosts connect to.

use super::{DriveSpec, Fault};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use sluice_controller::{ANA_GROUPS_MAX, AnaRule};
use sluice_nvme::AnaState;
use std::fmt;
use std::net::SocketAddr;
use utoipa::ToSchema;

/// A state for a group of namespaces at a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnaSpec {
    /// Address that hosts connect to (`10.0.0.1:4420`), or `vfio-user:1` for the first socket; all ports if
    /// not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// ANA group, from 1 to 32; all groups if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    pub state: AnaStateName,
}

/// ANA state of namespaces at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum AnaStateName {
    /// Preferred path: no other path is better.
    Optimized,
    /// Usable path, although other paths are better.
    NonOptimized,
    /// Commands are refused; hosts take another path, or wait.
    Inaccessible,
    /// Commands are refused, for good.
    PersistentLoss,
    /// Commands are refused while the state changes; hosts wait for a minute at most.
    Change,
}

impl AnaStateName {
    /// Returns the state of the specification.
    pub fn state(self) -> AnaState {
        match self {
            Self::Optimized => AnaState::Optimized,
            Self::NonOptimized => AnaState::NonOptimized,
            Self::Inaccessible => AnaState::Inaccessible,
            Self::PersistentLoss => AnaState::PersistentLoss,
            Self::Change => AnaState::Change,
        }
    }
}

impl fmt::Display for AnaStateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.state().as_str())
    }
}

impl fmt::Display for AnaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.state)?;
        self.group.map_or(Ok(()), |group| write!(f, " of group {group}"))?;
        self.port.as_ref().map_or(Ok(()), |port| write!(f, " at {port}"))
    }
}

impl AnaSpec {
    /// Returns the spec with the stored form of the port's name, or the fault that it has for this drive.
    pub fn checked(self, drive: &DriveSpec) -> Result<Self, Fault> {
        check_group("group", self.group)?;
        let port = self.port.map(|port| port_name(&port, drive)).transpose()?;
        Ok(Self { port, ..self })
    }

    /// Returns the rule for the controllers.
    pub fn rule(&self) -> AnaRule {
        AnaRule { port: self.port.clone(), group: self.group, state: self.state.state() }
    }

    /// Returns whether `other` sets the state of every port and group that this one sets.
    pub fn is_covered_by(&self, other: &Self) -> bool {
        (other.port.is_none() || other.port == self.port)
            && (other.group.is_none() || other.group == self.group)
    }
}

/// Checks that such a group can exist.
pub(super) fn check_group(key: &'static str, group: Option<u32>) -> Result<(), Fault> {
    match group {
        Some(group) if !(1..=ANA_GROUPS_MAX).contains(&group) => {
            let words = format!("{group} is not an ANA group");
            Err(Fault::at_key(key, words).hint(format!("use 1 to {ANA_GROUPS_MAX}")))
        }
        _ => Ok(()),
    }
}

/// Converts the name of a port into the form that the drive's ports use.
fn port_name(name: &str, drive: &DriveSpec) -> Result<String, Fault> {
    const SOCKET: &str = "vfio-user:";
    let socket = name.strip_prefix(SOCKET).and_then(|number| number.parse().ok());
    if let Some(number) = socket.filter(|number| (1..=drive.sockets()).contains(number)) {
        return Ok(format!("{SOCKET}{number}"));
    }
    if drive.tcp.is_some()
        && let Ok(address) = name.parse::<SocketAddr>()
    {
        return Ok(SocketAddr::new(address.ip().to_canonical(), address.port()).to_string());
    }
    let hint = match (drive.sockets(), drive.tcp.is_some()) {
        (0, _) => "use the address that hosts come to, such as 10.0.0.1:4420".to_owned(),
        (sockets, true) => format!("use the address that hosts come to, or {SOCKET}1 to {SOCKET}{sockets}"),
        (sockets, false) => format!("use {SOCKET}1 to {SOCKET}{sockets}"),
    };
    Err(Fault::at_key("port", format!("`{}` is no port of the drive", name.escape_debug())).hint(hint))
}
