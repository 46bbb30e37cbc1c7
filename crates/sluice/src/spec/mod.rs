//! What a user says of a drive: the same shapes in the configuration file, the API and the state file.
//!
//! The types here are as lenient as the text they come from; [`DriveSpec::check`] says what is wrong
//! with one, and [`NamespaceSpec::target`] turns the loose keys of a namespace into one [`Target`].

mod ana;
mod arrangement;
mod classifier;
mod compose;
mod dhchap;
mod fault;
mod function;
mod layer;
mod nvme;
mod nvme_tcp;
mod passthrough;
mod path;
mod pool;
mod tcp;
mod uif;
mod vfio_user;

pub use ana::{AnaSpec, AnaStateName};
pub use arrangement::Arrangement;
pub use classifier::{ClassifierSpec, default_section};
pub use compose::{ConcatSpec, StripeSpec};
pub use dhchap::{DhchapSpec, GroupName, HashName};
pub use fault::{Fault, KeyPath, Step};
pub use function::{DelaySpec, FaultSpec, FunctionSpec, OperationName, OutcomeName, PassSpec, RangeSpec};
pub use layer::LayerSpec;
pub use nvme::{LossName, NvmeSpec};
pub use nvme_tcp::{DigestName, NvmeTcpSpec, PolicyName};
pub use passthrough::{Opcode, PassthroughSpec};
pub use path::{PATHS_MAX, PathSpec, Way};
pub use pool::PoolSpec;
pub(crate) use tcp::check_keys;
pub use tcp::{HostSpec, KnownHostSpec, TcpSpec};
pub(crate) use uif::check_kind;
pub use uif::{OnDeathName, Place, Provenance, UifSpec};
pub use vfio_user::VfioUserSpec;

use crate::size::Size;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use utoipa::ToSchema;

/// Namespaces of one drive.
pub const NAMESPACES_MAX: usize = sluice_controller::NAMESPACES_MAX;

/// Functions over one target: the target itself takes one frame's depth.
pub const FUNCTIONS_MAX: usize = sluice_command::Frame::MAX - 1;

/// Letters of a drive's name.
pub const NAME_MAX: usize = 64;

/// Characters of a serial number (Base 5.17.2.1, SN).
pub const SERIAL_MAX: usize = 20;

/// The longest path a socket can be bound to (sockaddr_un, less the final zero).
pub const SOCKET_PATH_MAX: usize = 107;

/// A drive: one NVM subsystem with its namespaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DriveSpec {
    /// Letters, digits, `-`, `_` and `.`; names the folder of the drive's socket.
    pub name: String,
    /// Serial number the guest sees. Derived from the name if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default)]
    pub doorbells: Doorbells,
    /// Which reactor serves it, counted from zero. The one with the fewest drives if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reactor: Option<usize>,
    /// Decides where each command goes. Without one all take the first path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classifier: Option<ClassifierSpec>,
    /// Its sockets for virtual machines: one, unless it is for hosts on the network alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vfio_user: Option<VfioUserSpec>,
    /// It is for hosts on the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpSpec>,
    /// What hosts may create namespaces of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolSpec>,
    /// In the order of their NSIDs, which start at 1.
    #[serde(default, alias = "namespace")]
    pub namespaces: Vec<NamespaceSpec>,
}

/// How the guest's doorbells reach the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Doorbells {
    /// Trapped for clients that send a capabilities JSON (QEMU, Cloud Hypervisor), mapped for others.
    #[default]
    Auto,
    /// Each doorbell is a message, which shadow doorbells save most of.
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

/// A namespace: a target, and the functions over it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamespaceSpec {
    pub target: TargetKind,
    /// Bytes. May be left out for a file that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// File or block device of a `file` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// What a `file` target does when its file system is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFull>,
    /// A `file` target that is only read, also while another drive has the file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The device of an `nvme` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<NvmeSpec>,
    /// The subsystem of an `nvme-tcp` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_tcp: Option<NvmeTcpSpec>,
    /// Bytes of a logical block: 512 or 4096.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// The ANA group it is in, from 1 to 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ana_group: Option<u32>,
    /// Storage functions over the target, topmost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionSpec>,
    /// Further ways that a classifier can choose: path 1, path 2 and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathSpec>,
}

fn default_block_size() -> u32 {
    512
}

/// Where data ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// Reads return nothing in particular, writes are forgotten.
    Null,
    /// Memory of the daemon; gone when it stops.
    Memory,
    /// A file or a block device.
    File,
    /// A range of another NVMe controller.
    Nvme,
    /// A namespace of a subsystem on the network.
    NvmeTcp,
}

impl TargetKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Memory => "memory",
            Self::File => "file",
            Self::Nvme => "nvme",
            Self::NvmeTcp => "nvme-tcp",
        }
    }
}

/// What becomes of a write when the file system is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// The guest gets Capacity Exceeded.
    #[default]
    Fail,
    /// The write waits until there is room again.
    Park,
}

/// The target of a namespace, with exactly what its kind needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Null {
        size: Size,
    },
    Memory {
        size: Size,
    },
    /// Without a size the file must exist, and has the size it has.
    File {
        path: PathBuf,
        size: Option<Size>,
        on_full: OnFull,
        read_only: bool,
    },
    Nvme(NvmeSpec),
    NvmeTcp(NvmeTcpSpec),
}

impl DriveSpec {
    /// The first thing wrong with it, if anything is.
    pub fn check(&self) -> Result<(), Fault> {
        check_name(&self.name)?;
        if let Some(serial) = &self.serial {
            check_serial(serial)?;
        }
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

    /// A classifier's maps are the drive's: two functions would fill one with places of two kinds.
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

    /// Sockets for virtual machines.
    pub fn sockets(&self) -> usize {
        match (&self.vfio_user, &self.tcp) {
            (Some(vfio_user), _) => vfio_user.sockets,
            (None, None) => 1,
            (None, Some(_)) => 0,
        }
    }

    /// Controllers that there may be at a time.
    pub fn controllers(&self) -> usize {
        self.sockets() + self.tcp.as_ref().map_or(0, |tcp| tcp.max_hosts.into())
    }

    /// The serial number the guest sees.
    pub fn serial(&self) -> String {
        match &self.serial {
            Some(serial) => serial.clone(),
            None => format!("SL{:016X}", stable_hash(&self.name)),
        }
    }

    /// The NVMe Qualified Name; unless one is given, in the form that needs no registered domain (Base 4.7).
    pub fn subnqn(&self) -> String {
        if let Some(nqn) = self.tcp.as_ref().and_then(|tcp| tcp.nqn.as_ref()) {
            return nqn.clone();
        }
        uuid_nqn(&format!("drive {}", self.serial()))
    }

    /// Globally unique identifier of a namespace, the same after a restart.
    pub fn namespace_uuid(&self, nsid: u32) -> [u8; 16] {
        uuid(&format!("namespace {nsid} of {}", self.serial()))
    }

    /// The same of one that a host has created, and of no other with its NSID.
    pub fn created_uuid(&self, nsid: u32, number: u64) -> [u8; 16] {
        uuid(&format!("namespace {nsid} of {}, created as number {number}", self.serial()))
    }

    pub fn namespace(&self, nsid: u32) -> Option<&NamespaceSpec> {
        self.namespaces.get(usize::try_from(nsid.checked_sub(1)?).ok()?)
    }

    pub fn namespace_mut(&mut self, nsid: u32) -> Option<&mut NamespaceSpec> {
        self.namespaces.get_mut(usize::try_from(nsid.checked_sub(1)?).ok()?)
    }

    /// Namespaces with their NSIDs.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &NamespaceSpec)> {
        (1..).zip(&self.namespaces)
    }

    /// Relative paths become absolute ones below `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        for namespace in &mut self.namespaces {
            let NamespaceSpec { path, nvme, paths, functions, .. } = namespace;
            resolve(folder, path, nvme, functions);
            for PathSpec { path, nvme, functions, .. } in paths {
                resolve(folder, path, nvme, functions);
            }
        }
        self.pool.iter_mut().for_each(|pool| pool.resolve_paths(folder));
        if let Some(classifier) = &mut self.classifier {
            classifier.object = folder.join(&classifier.object);
        }
    }
}

impl NamespaceSpec {
    fn check(&self) -> Result<(), Fault> {
        if self.block_size != 512 && self.block_size != 4096 {
            return Err(Fault::at_key("block_size", format!("{} bytes are not possible", self.block_size))
                .hint("use 512 or 4096"));
        }
        ana::check_group("ana_group", self.ana_group)?;
        self.target()?;
        if let Some(size) = self.size {
            self.check_size(size)?;
        }
        if self.functions.len() > FUNCTIONS_MAX {
            return Err(Fault::at_key("functions", format!("at most {FUNCTIONS_MAX} can stand on a target")));
        }
        for (index, function) in self.functions.iter().enumerate() {
            function.check().map_err(|fault| fault.inside("functions", index))?;
        }
        path::check_paths(self)?;
        self.check_passthrough()
    }

    /// No function knows what an opcode that passes as it is does to its data.
    fn check_passthrough(&self) -> Result<(), Fault> {
        let functions = self.functions.len();
        let is_bare = functions == 0 || self.paths.iter().any(|path| path.below == Some(functions));
        let lists_some = self.nvme.as_ref().is_some_and(|nvme| nvme.passthrough.is_some());
        if is_bare || !lists_some {
            return Ok(());
        }
        Err(Fault::at_key("passthrough", "functions stand between the guest and the device")
            .under("nvme")
            .hint(format!(
                "remove the functions, or add a path that a classifier can choose: \
                 paths = [ {{ name = \"device\", below = {functions} }} ]"
            )))
    }

    /// If the namespace can have this size, in bytes.
    pub fn check_size(&self, size: Size) -> Result<(), Fault> {
        let block = u64::from(self.block_size);
        if size > Size::MAX {
            return Err(Fault::at_key("size", format!("{size} is more than a file offset can say")));
        }
        if size.0 == 0 || !size.0.is_multiple_of(block) {
            return Err(Fault::at_key("size", format!("{size} is not a multiple of the block size"))
                .hint(format!("use a multiple of {block} bytes")));
        }
        Ok(())
    }

    /// The target that the loose keys describe.
    pub fn target(&self) -> Result<Target, Fault> {
        if self.nvme.is_some() && self.target != TargetKind::Nvme {
            let kind = self.target.as_str();
            return Err(Fault::at_key("nvme", format!("a {kind} target has none"))
                .hint("remove nvme, or say target = \"nvme\""));
        }
        if self.nvme_tcp.is_some() && self.target != TargetKind::NvmeTcp {
            let kind = self.target.as_str();
            return Err(Fault::at_key("nvme_tcp", format!("a {kind} target has none"))
                .hint("remove nvme_tcp, or say target = \"nvme-tcp\""));
        }
        match self.target {
            TargetKind::Null => Ok(Target::Null { size: self.own_size()? }),
            TargetKind::Memory => Ok(Target::Memory { size: self.own_size()? }),
            TargetKind::File => self.file_target(),
            TargetKind::Nvme => self.nvme_target(),
            TargetKind::NvmeTcp => self.nvme_tcp_target(),
        }
    }

    /// That there is nothing that only a file has.
    fn is_no_file(&self) -> Result<(), Fault> {
        let kind = self.target.as_str();
        let misplaced = [
            ("path", self.path.is_some()),
            ("on_full", self.on_full.is_some()),
            ("read_only", self.read_only),
        ];
        match misplaced.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((key, _)) => Err(Fault::at_key(key, format!("a {kind} target has none"))
                .hint(format!("remove {key}, or say target = \"file\""))),
        }
    }

    /// The size of a target that is nothing but its size.
    fn own_size(&self) -> Result<Size, Fault> {
        self.is_no_file()?;
        let kind = self.target.as_str();
        self.size.ok_or_else(|| {
            Fault::at_key("size", format!("a {kind} target needs one")).hint("add size = \"64MiB\"")
        })
    }

    fn nvme_target(&self) -> Result<Target, Fault> {
        self.is_no_file()?;
        if self.size.is_some() {
            return Err(Fault::at_key("size", "an nvme target has the size of its range of the device")
                .hint("say nvme.first_block and nvme.blocks instead"));
        }
        let Some(nvme) = &self.nvme else {
            return Err(Fault::at_key("nvme", "an nvme target needs one")
                .hint("add nvme = { vfio_user = \"/folder/of/the/socket/cntrl\" }"));
        };
        nvme.check().map_err(|fault| fault.under("nvme"))?;
        Ok(Target::Nvme(nvme.clone()))
    }

    fn nvme_tcp_target(&self) -> Result<Target, Fault> {
        self.is_no_file()?;
        if self.size.is_some() {
            return Err(Fault::at_key("size", "an nvme-tcp target has the size of its namespace there")
                .hint("leave it out"));
        }
        let Some(nvme_tcp) = &self.nvme_tcp else {
            return Err(Fault::at_key("nvme_tcp", "an nvme-tcp target needs one")
                .hint("add nvme_tcp = { address = \"10.0.0.1:4420\", subnqn = \"nqn...\" }"));
        };
        nvme_tcp.check().map_err(|fault| fault.under("nvme_tcp"))?;
        Ok(Target::NvmeTcp(nvme_tcp.clone()))
    }

    fn file_target(&self) -> Result<Target, Fault> {
        let Some(path) = &self.path else {
            return Err(
                Fault::at_key("path", "a file target needs one").hint("add path = \"/where/it/is.img\"")
            );
        };
        if !path.is_absolute() {
            return Err(Fault::at_key("path", format!("{} is not an absolute path", path.display()))
                .hint("the daemon has another working directory than you: start the path with /"));
        }
        let (size, on_full) = (self.size, self.on_full.unwrap_or_default());
        Ok(Target::File { path: path.clone(), size, on_full, read_only: self.read_only })
    }
}

/// Relative paths of a target, and of what stands on it, become absolute ones below `folder`.
fn resolve(
    folder: &Path,
    path: &mut Option<PathBuf>,
    nvme: &mut Option<NvmeSpec>,
    functions: &mut [FunctionSpec],
) {
    path.iter_mut().for_each(|path| *path = folder.join(&path));
    let places = nvme.iter_mut().flat_map(|device| [&mut device.vfio_user, &mut device.generic]);
    places.flatten().for_each(|place| *place = folder.join(&place));
    for function in functions {
        function.resolve_paths(folder);
    }
}

impl FunctionSpec {
    /// Relative paths of the layers below become absolute ones below `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        resolve_layers(folder, self.layers_mut());
    }
}

impl UifSpec {
    /// Relative paths of the layers below become absolute ones below `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        resolve_layers(folder, &mut self.layers);
    }
}

fn resolve_layers(folder: &Path, layers: &mut [LayerSpec]) {
    for LayerSpec { path, nvme, functions, .. } in layers {
        resolve(folder, path, nvme, functions);
    }
}

/// Names become part of paths, and are typed by people.
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

/// A hash that stays what it is: guests remember what is derived from it.
fn stable_hash(text: &str) -> u64 {
    twox_hash::XxHash3_64::oneshot(text.as_bytes())
}

/// A UUID of our own making, version 8 (RFC 9562 5.8).
pub(crate) fn uuid(text: &str) -> [u8; 16] {
    let low = twox_hash::XxHash3_64::oneshot_with_seed(1, text.as_bytes());
    let mut bytes = (u128::from(stable_hash(text)) << 64 | u128::from(low)).to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// An NVMe Qualified Name in the form that needs no registered domain (Base 4.7).
pub(crate) fn uuid_nqn(text: &str) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid_text(&uuid(text)))
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(*bytes));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests;
