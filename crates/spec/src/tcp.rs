//! A drive for hosts on the network as a user describes it.

use super::{DhchapSpec, Fault};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use sluice_controller::IO_QUEUES_MAX;
use sluice_nvme::fabrics::{DISCOVERY_NQN, NQN_MAX};
use std::fmt;
use std::path::{Path, PathBuf};
use utoipa::ToSchema;

/// Maximum number of hosts that one drive can name.
const HOSTS_MAX: usize = 1024;

/// Maximum number of controllers that one drive can have for hosts on the network.
const CONTROLLERS_MAX: u8 = 24;

/// Access over NVMe/TCP. A drive with this key is served over vfio-user only if it has the key `vfio_user`,
/// too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TcpSpec {
    /// NVMe Qualified Name of the NVM subsystem. Derived from the serial number if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
    /// Hosts that may connect. If none is named, every host on the daemon's machine may connect, and no
    /// other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostSpec>,
    /// Maximum number of hosts at a time; a host that connects twice counts twice.
    pub max_hosts: u8,
    /// Maximum number of I/O queues for each host; each queue is a connection with memory of its own.
    pub max_queues: u16,
    /// File with the hosts' keys. If given, all connections are encrypted (TLS 1.3), and arrive at the
    /// addresses of `tcp.listen_tls`. Without `hosts`, every host with a key may connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tls_keys: Option<PathBuf>,
}

impl Default for TcpSpec {
    fn default() -> Self {
        Self { nqn: None, hosts: Vec::new(), max_hosts: 16, max_queues: IO_QUEUES_MAX, tls_keys: None }
    }
}

/// A host that may connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum HostSpec {
    /// NVMe Qualified Name of the host, which is not authenticated.
    Name(String),
    Known(KnownHostSpec),
}

/// A host with more properties than its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KnownHostSpec {
    /// NVMe Qualified Name.
    pub nqn: String,
    /// Authentication with which the host has to prove its identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap: Option<DhchapSpec>,
}

impl HostSpec {
    pub fn nqn(&self) -> &str {
        match self {
            Self::Name(nqn) => nqn,
            Self::Known(host) => &host.nqn,
        }
    }

    pub fn dhchap(&self) -> Option<&DhchapSpec> {
        match self {
            Self::Name(_) => None,
            Self::Known(host) => host.dhchap.as_ref(),
        }
    }

    fn check(&self, index: usize) -> Result<(), Fault> {
        match self {
            Self::Name(nqn) => check_nqn("hosts", nqn),
            Self::Known(host) => {
                check_nqn("nqn", &host.nqn).map_err(|fault| fault.inside("hosts", index))?;
                let checked = host.dhchap.as_ref().map_or(Ok(()), DhchapSpec::check);
                checked.map_err(|fault| fault.under("dhchap").inside("hosts", index))
            }
        }
    }
}

/// Implementation by hand, so that an error describes the fault of a table.
impl<'de> Deserialize<'de> for HostSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrTable;
        impl<'de> Visitor<'de> for NameOrTable {
            type Value = HostSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a host, or a table with its `nqn`")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<HostSpec, E> {
                Ok(HostSpec::Name(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<HostSpec, A::Error> {
                KnownHostSpec::deserialize(MapAccessDeserializer::new(table)).map(HostSpec::Known)
            }
        }
        deserializer.deserialize_any(NameOrTable)
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
        if !(1..=IO_QUEUES_MAX).contains(&self.max_queues) {
            let fault = format!("a host can have from 1 to {IO_QUEUES_MAX} I/O queues");
            return Err(Fault::at_key("max_queues", fault));
        }
        check_keys("tls_keys", self.tls_keys.as_deref())?;
        for (index, host) in self.hosts.iter().enumerate() {
            host.check(index)?;
            if self.hosts[..index].iter().any(|other| other.nqn() == host.nqn()) {
                return Err(Fault::at_key("hosts", format!("{} is there twice", host.nqn()))
                    .hint("name each host once"));
            }
        }
        Ok(())
    }
}

/// Checks that the path of a key file is absolute: the daemon has no folder of its own for relative paths.
pub fn check_keys(key: &'static str, path: Option<&Path>) -> Result<(), Fault> {
    match path {
        Some(path) if !path.is_absolute() => {
            Err(Fault::at_key(key, format!("`{}` is no absolute path", path.display()))
                .hint("say it like /etc/sluice/disk.keys"))
        }
        _ => Ok(()),
    }
}

/// Checks the form of an NVMe Qualified Name (Base 4.7), except for its date.
pub(super) fn check_nqn(key: &'static str, nqn: &str) -> Result<(), Fault> {
    let printable = nqn.chars().all(|c| !c.is_control() && !c.is_whitespace());
    if nqn.starts_with("nqn.") && nqn.len() <= NQN_MAX && printable {
        return Ok(());
    }
    Err(Fault::at_key(key, format!("`{}` is no NVMe Qualified Name", nqn.escape_debug()))
        .hint("use a name such as nqn.2024-01.org.example:disk; a host's is in its /etc/nvme/hostnqn"))
}
