//! The subsystem of an `nvme-tcp` target as a user describes it.

use super::tcp::{check_keys, check_nqn};
use super::{DhchapSpec, DriveSpec, Fault, FunctionSpec};
use crate::size::Size;
use serde::{Deserialize, Serialize};
use sluice_targets::PATHS_MAX;
use std::path::PathBuf;
use utoipa::ToSchema;

impl DriveSpec {
    /// Returns whether a part of the drive is on the network. Opening the drive may take as long as a remote
    /// machine does not answer.
    pub fn is_remote(&self) -> bool {
        self.namespaces.iter().any(|namespace| {
            let mut paths = namespace.paths.iter();
            namespace.nvme_tcp.is_some()
                || are_remote(&namespace.functions)
                || paths.any(|path| path.nvme_tcp.is_some() || are_remote(&path.functions))
        })
    }
}

impl DriveSpec {
    /// Returns the addresses of all controllers on the network that the drive is connected to.
    pub fn remote_addresses(&self) -> Vec<String> {
        let mut found = Vec::new();
        for namespace in &self.namespaces {
            namespace.nvme_tcp.iter().for_each(|it| it.note_addresses(&mut found));
            note_addresses(&namespace.functions, &mut found);
            for path in &namespace.paths {
                path.nvme_tcp.iter().for_each(|it| it.note_addresses(&mut found));
                note_addresses(&path.functions, &mut found);
            }
        }
        found
    }
}

fn note_addresses(functions: &[FunctionSpec], found: &mut Vec<String>) {
    for layer in functions.iter().flat_map(FunctionSpec::layers) {
        layer.nvme_tcp.iter().for_each(|it| it.note_addresses(found));
        note_addresses(&layer.functions, found);
    }
}

impl NvmeTcpSpec {
    fn note_addresses(&self, found: &mut Vec<String>) {
        found.extend([&self.address].into_iter().chain(&self.addresses).filter(|it| !it.is_empty()).cloned());
    }
}

fn are_remote(functions: &[FunctionSpec]) -> bool {
    let mut layers = functions.iter().flat_map(FunctionSpec::layers);
    layers.any(|layer| layer.nvme_tcp.is_some() || are_remote(&layer.functions))
}

/// A namespace of a subsystem that is served over NVMe/TCP, such as a drive of another Sluice with `tcp`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NvmeTcpSpec {
    /// Host and port of the I/O controller, such as `10.0.0.1:4420`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Several addresses instead of `address`, each a path to the namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Rule that selects one of several paths for a command.
    #[serde(default, skip_serializing_if = "PolicyName::is_default")]
    pub policy: PolicyName,
    /// NVMe Qualified Name of the subsystem.
    pub subnqn: String,
    /// NSID at the subsystem.
    #[serde(default = "first_namespace")]
    pub namespace: u32,
    /// Bytes of the drive, if it shall open even while the controller cannot be connected to. The namespace
    /// must be at least as large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Name of this host; the machine's own (`/etc/nvme/hostnqn`) if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostnqn: Option<String>,
    /// Checksums of sent and received PDUs; none if not given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<DigestName>,
    /// Authentication with which the daemon proves its identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap: Option<DhchapSpec>,
    /// File with the key of this host for the subsystem. If given, connections are encrypted (TLS 1.3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tls_keys: Option<PathBuf>,
    /// Seconds that the controller may take for a command, or to accept a connection.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u32,
    /// Seconds without a sign of life after which an idle connection is given up; 0 for never.
    #[serde(default = "default_keep_alive_s")]
    pub keep_alive_s: u32,
    /// Seconds without a connection after which commands fail; commands wait if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast_io_fail_s: Option<u32>,
    /// Seconds without a connection after which attempts to connect end, and commands fail for good; 0 for
    /// never.
    #[serde(default = "default_ctrl_loss_s")]
    pub ctrl_loss_s: u32,
}

/// Rule that selects one of several equally good paths for a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyName {
    /// Paths in turn.
    #[default]
    RoundRobin,
    /// Path with the fewest commands in flight.
    QueueDepth,
}

impl PolicyName {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Part of a PDU that has a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DigestName {
    /// Headers of PDUs.
    Header,
    /// Data.
    Data,
}

fn first_namespace() -> u32 {
    1
}

fn default_timeout_s() -> u32 {
    10
}

fn default_keep_alive_s() -> u32 {
    5
}

fn default_ctrl_loss_s() -> u32 {
    600
}

impl NvmeTcpSpec {
    /// Maximum time limit. A guest gives up on a command after half a minute, so a much longer limit is a
    /// mistake of units.
    const TIMEOUT_MAX_S: u32 = 60;

    pub(super) fn check(&self) -> Result<(), Fault> {
        self.check_addresses()?;
        check_nqn("subnqn", &self.subnqn)?;
        self.hostnqn.iter().try_for_each(|name| check_nqn("hostnqn", name))?;
        self.dhchap.iter().try_for_each(|it| it.check().map_err(|fault| fault.under("dhchap")))?;
        check_keys("tls_keys", self.tls_keys.as_deref())?;
        if self.namespace == 0 || self.namespace == u32::MAX {
            return Err(Fault::at_key("namespace", format!("no namespace has NSID {}", self.namespace))
                .hint("use 1 if the subsystem has one namespace"));
        }
        if let Some(size) = self.size
            && (size.0 == 0 || size > Size::MAX || !size.0.is_multiple_of(4096))
        {
            return Err(
                Fault::at_key("size", format!("{size} is not possible")).hint("use a multiple of 4KiB")
            );
        }
        if !(1..=Self::TIMEOUT_MAX_S).contains(&self.timeout_s) {
            return Err(Fault::at_key("timeout_s", format!("{} seconds are not possible", self.timeout_s))
                .hint(format!("use 1 to {}", Self::TIMEOUT_MAX_S)));
        }
        Ok(())
    }

    fn check_addresses(&self) -> Result<(), Fault> {
        if self.addresses.is_empty() {
            check_address("address", &self.address)?;
            return match self.policy.is_default() {
                true => Ok(()),
                false => Err(Fault::at_key(
                    "policy",
                    "with `address` there is one path, and nothing to choose from",
                )
                .hint("say the paths as `addresses`, or remove `policy`")),
            };
        }
        if !self.address.is_empty() {
            return Err(
                Fault::at_key("address", "`addresses` are given already").hint("remove one of the two")
            );
        }
        if self.addresses.len() > PATHS_MAX {
            return Err(Fault::at_key("addresses", format!("at most {PATHS_MAX} are possible")));
        }
        for (index, address) in self.addresses.iter().enumerate() {
            check_address("addresses", address)?;
            if self.addresses[..index].contains(address) {
                return Err(Fault::at_key("addresses", format!("`{address}` is there twice")));
            }
        }
        Ok(())
    }
}

/// Checks a host and a port. Before the host is resolved, only the port can be wrong.
fn check_address(key: &'static str, address: &str) -> Result<(), Fault> {
    let parts = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    // An IPv6 address has colons of its own, and is in brackets.
    let bare = |host: &str| !host.contains(':') || host.starts_with('[') && host.ends_with(']');
    match parts {
        Some((host, port)) if bare(host) && port.parse::<u16>().is_ok_and(|port| port > 0) => Ok(()),
        _ => Err(Fault::at_key(key, format!("`{}` is no address and port", address.escape_debug()))
            .hint("say it like 10.0.0.1:4420, [fd00::1]:4420 or storage.example.org:4420")),
    }
}
