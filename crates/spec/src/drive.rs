//! A drive: its description, and the properties derived from that.

use super::identity::{stable_hash, uuid, uuid_nqn};
use super::resolve::resolve;
use super::{ClassifierSpec, Fault, FunctionSpec, NamespaceSpec, PathSpec, PoolSpec, TcpSpec, VfioUserSpec};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use sluice_controller::{HOST_TIMEOUT, NAMESPACES_MAX};
use std::path::Path;
use std::time::Duration;
use utoipa::ToSchema;

/// Maximum length of a drive's name, in letters.
pub(super) const NAME_MAX: usize = 64;

/// Maximum length of a serial number, in characters (Base 5.17.2.1, SN).
const SERIAL_MAX: usize = 20;

/// Limits of the time after which hosts give up a command.
const HOST_TIMEOUT_MIN_S: u32 = 6;
const HOST_TIMEOUT_MAX_S: u32 = 86_400;

/// A drive: one NVM subsystem with its namespaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DriveSpec {
    /// Letters, digits, `-`, `_` and `.`; names the folder of the drive's socket.
    pub name: String,
    /// Serial number that the guest sees; derived from the name if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default)]
    pub doorbells: Doorbells,
    /// Reactor that serves the drive, counted from zero; the one with the fewest drives if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reactor: Option<usize>,
    /// Seconds after which the drive's hosts give up a command, 30 if not given; 0 for never. A command that
    /// only waits for storage is answered before, so that the host submits it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_timeout_s: Option<u32>,
    /// Answers to hosts while a target is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absence: Option<AbsenceSpec>,
    /// Program that decides where each command goes. Without a program, all commands take the first path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classifier: Option<ClassifierSpec>,
    /// Sockets for virtual machines. Without this key the drive has one socket, or none if it has `tcp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vfio_user: Option<VfioUserSpec>,
    /// Access for hosts on the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpSpec>,
    /// Storage of which hosts may create namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolSpec>,
    /// Namespaces in the order of their NSIDs, which start at 1.
    #[serde(default, alias = "namespace")]
    pub namespaces: Vec<NamespaceSpec>,
}

/// Answers to hosts while a target is paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AbsenceSpec {
    #[serde(default)]
    pub answer: AbsenceAnswer,
}

/// Answer to commands for a paused target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AbsenceAnswer {
    /// Commands wait, and come back to their host before its time-out. For hosts with one path.
    #[default]
    Retry,
    /// The ANA group of the namespace is inaccessible, so that hosts with native multipath take another path, or wait.
    Ana,
}

/// Way in which the guest's doorbells reach the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Doorbells {
    /// Trapped for clients that send a capabilities JSON (QEMU, Cloud Hypervisor), mapped for others.
    #[default]
    Auto,
    /// Each doorbell write is a message; shadow doorbells avoid most of these messages.
    Trapped,
    /// The doorbell page is shared memory, which the daemon polls.
    Mapped,
}

impl Doorbells {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Trapped => "trapped",
            Self::Mapped => "mapped",
        }
    }
}

impl DriveSpec {
    /// Returns the time after which hosts give up a command, zero for never.
    pub fn host_timeout(&self) -> Duration {
        self.host_timeout_s.map_or(HOST_TIMEOUT, |seconds| Duration::from_secs(seconds.into()))
    }

    /// Describes the place of the data of each namespace.
    pub fn targets(&self) -> Vec<String> {
        self.namespaces.iter().map(NamespaceSpec::data_location).collect()
    }

    /// Checks the description, and returns its first fault.
    pub fn check(&self) -> Result<(), Fault> {
        check_name(&self.name)?;
        if let Some(serial) = &self.serial {
            check_serial(serial)?;
        }
        if self
            .host_timeout_s
            .is_some_and(|it| it > HOST_TIMEOUT_MAX_S || (1..HOST_TIMEOUT_MIN_S).contains(&it))
        {
            let words = format!("from {HOST_TIMEOUT_MIN_S} to {HOST_TIMEOUT_MAX_S} seconds, or 0");
            return Err(Fault::at_key("host_timeout_s", words)
                .hint("it is what the guest has in /sys/module/nvme_core/parameters/io_timeout"));
        }
        self.check_absence()?;
        if let Some(classifier) = &self.classifier {
            classifier.check().map_err(|fault| fault.under("classifier"))?;
        }
        if let Some(vfio_user) = &self.vfio_user {
            vfio_user.check().map_err(|fault| fault.under("vfio_user"))?;
        }
        if let Some(tcp) = &self.tcp {
            tcp.check().map_err(|fault| fault.under("tcp"))?;
        }
        if let Some(pool) = &self.pool {
            pool.check().map_err(|fault| fault.under("pool"))?;
            if self.classifier.is_some() {
                return Err(Fault::at_key("pool", "a drive with a classifier has no pool").hint(
                    "a namespace that a host creates would go without the classifier: remove one of the two",
                ));
            }
        }
        if self.namespaces.is_empty() && self.pool.is_none() {
            return Err(Fault::at_key("namespaces", "a drive needs at least one namespace")
                .hint("add one, such as target = \"memory\", size = \"64MiB\""));
        }
        if self.namespaces.len() > NAMESPACES_MAX {
            return Err(Fault::at_key(
                "namespaces",
                format!("a drive has at most {NAMESPACES_MAX} namespaces"),
            ));
        }
        for (index, namespace) in self.namespaces.iter().enumerate() {
            namespace.check().map_err(|fault| fault.inside("namespaces", index))?;
        }
        self.check_translations()
    }

    /// Returns whether hosts see a paused target in the ANA state of its namespace.
    pub fn answers_by_ana(&self) -> bool {
        self.absence.is_some_and(|absence| absence.answer == AbsenceAnswer::Ana)
    }

    /// Checks that the ANA state of a namespace is its own, and that hosts can see it.
    fn check_absence(&self) -> Result<(), Fault> {
        if !self.answers_by_ana() {
            return Ok(());
        }
        if self.controllers() < 2 {
            return Err(Fault::at_key("answer", "there is just one way to the drive")
                .hint("declare more sockets (vfio_user), or serve it to hosts on the network (tcp)")
                .under("absence"));
        }
        let group = |namespace: &NamespaceSpec| namespace.ana_group.unwrap_or(1);
        let mut seen = Vec::new();
        for (index, namespace) in self.namespaces.iter().enumerate() {
            if seen.contains(&group(namespace)) {
                return Err(Fault::at_key(
                    "ana_group",
                    "each namespace needs an ANA group of its own (absence)",
                )
                .hint("name another one, from 1 to 32")
                .inside("namespaces", index));
            }
            seen.push(group(namespace));
        }
        match &self.pool {
            None => Ok(()),
            Some(_) => Err(Fault::at_key("answer", "namespaces of a pool share an ANA group")
                .hint("remove the pool, or the key")
                .under("absence")),
        }
    }

    /// Checks that at most one function fills a translation cache. A classifier's maps are the drive's: two
    /// functions would fill one map with places of two kinds.
    fn check_translations(&self) -> Result<(), Fault> {
        let functions = self.namespaces.iter().flat_map(|namespace| {
            namespace.functions.iter().chain(namespace.paths.iter().flat_map(|path| &path.functions))
        });
        let fills = |function: &&FunctionSpec| matches!(function, FunctionSpec::Uif(uif) if uif.translations.is_some());
        match functions.filter(fills).count() {
            0 | 1 => Ok(()),
            _ => Err(Fault::at_key("translations", "only one function of a drive can fill its cache")
                .hint("give each namespace a drive of its own")),
        }
    }

    /// Returns the number of sockets for virtual machines.
    pub fn sockets(&self) -> usize {
        match (&self.vfio_user, &self.tcp) {
            (Some(vfio_user), _) => vfio_user.sockets,
            (None, None) => 1,
            (None, Some(_)) => 0,
        }
    }

    /// Returns the maximum number of controllers at a time.
    pub fn controllers(&self) -> usize {
        self.sockets() + self.tcp.as_ref().map_or(0, |tcp| tcp.max_hosts.into())
    }

    /// Returns the serial number that the guest sees.
    pub fn serial(&self) -> String {
        match &self.serial {
            Some(serial) => serial.clone(),
            None => format!("SL{:016X}", stable_hash(&self.name)),
        }
    }

    /// Returns the NVMe Qualified Name. Unless one is given, it has the form that needs no registered domain
    /// (Base 4.7).
    pub fn subnqn(&self) -> String {
        if let Some(nqn) = self.tcp.as_ref().and_then(|tcp| tcp.nqn.as_ref()) {
            return nqn.clone();
        }
        uuid_nqn(&format!("drive {}", self.serial()))
    }

    /// Returns the globally unique identifier of a namespace, which stays the same for as long as the storage
    /// below has these `identities`.
    pub fn namespace_uuid(&self, nsid: u32, identities: &[String]) -> [u8; 16] {
        let mut text = format!("namespace {nsid} of {}", self.serial());
        identities.iter().for_each(|identity| text.extend([", on ", identity]));
        uuid(&text)
    }

    /// Returns the globally unique identifier of a namespace that a host has created. No other namespace with
    /// its NSID has the same identifier.
    pub fn created_uuid(&self, nsid: u32, number: u64, identity: Option<&str>) -> [u8; 16] {
        let mut text = format!("namespace {nsid} of {}, created as number {number}", self.serial());
        identity.into_iter().for_each(|identity| text.extend([", on ", identity]));
        uuid(&text)
    }

    pub fn namespace(&self, nsid: u32) -> Option<&NamespaceSpec> {
        self.namespaces.get(usize::try_from(nsid.checked_sub(1)?).ok()?)
    }

    pub fn namespace_mut(&mut self, nsid: u32) -> Option<&mut NamespaceSpec> {
        self.namespaces.get_mut(usize::try_from(nsid.checked_sub(1)?).ok()?)
    }

    /// Returns the namespaces with their NSIDs.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &NamespaceSpec)> {
        (1..).zip(&self.namespaces)
    }

    /// Resolves relative paths against `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        for namespace in &mut self.namespaces {
            let NamespaceSpec { path, lease, nvme, paths, functions, .. } = namespace;
            resolve(folder, [path, lease], nvme, functions);
            for PathSpec { path, lease, nvme, functions, .. } in paths {
                resolve(folder, [path, lease], nvme, functions);
            }
        }
        self.pool.iter_mut().for_each(|pool| pool.resolve_paths(folder));
        if let Some(classifier) = &mut self.classifier {
            classifier.object = folder.join(&classifier.object);
        }
    }
}

/// Checks a name, which becomes part of paths and is typed by people.
pub fn check_name(name: &str) -> Result<(), Fault> {
    let fault = |words: String| {
        Fault::at_key("name", words).hint("use letters, digits, `-`, `_` and `.`, a letter or digit first")
    };
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(fault(format!("a name has 1 to {NAME_MAX} letters")));
    }
    let usable = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(usable) {
        return Err(fault(format!("`{}` cannot be a name", name.escape_debug())));
    }
    Ok(())
}

fn check_serial(serial: &str) -> Result<(), Fault> {
    let printable = serial.bytes().all(|byte| byte.is_ascii_graphic());
    if serial.is_empty() || serial.len() > SERIAL_MAX || !printable {
        return Err(Fault::at_key(
            "serial",
            format!("`{}` cannot be a serial number", serial.escape_debug()),
        )
        .hint(format!("use 1 to {SERIAL_MAX} printable ASCII characters without spaces")));
    }
    Ok(())
}
