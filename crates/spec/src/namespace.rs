//! A namespace: the target with its data, and the functions between that and the host.

use super::{Fault, FunctionSpec, LayerSpec, NvmeSpec, NvmeTcpSpec, PathSpec, ana, path};
use crate::size::Size;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// Maximum size of a volume of a thin pool, and maximum bytes of its name.
const THIN_MAX: Size = Size(64 << 40);
const VOLUME_NAME_MAX: usize = 64;

/// Maximum size of a namespace in a pool of memory. Its map has 4 bytes for each 64 KiB.
const POOLED_MAX: Size = Size(1 << 40);

/// Maximum number of functions over one target; the target itself takes one level of a frame's depth.
pub(super) const FUNCTIONS_MAX: usize = sluice_command::Frame::MAX - 1;

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
    /// Reaction of a `file` target to a full file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<OnFull>,
    /// `raw` if a `file` target is to be served as it is, although it begins like an image of another format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ImageFormat>,
    /// File or partition with the lease of a `file` target whose disk several machines have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub lease: Option<PathBuf>,
    /// Whether a `file` target is only read, which is possible while another drive has the file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The device of an `nvme` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<NvmeSpec>,
    /// The subsystem of an `nvme-tcp` target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme_tcp: Option<NvmeTcpSpec>,
    /// The pool of a `memory-pool` or `thin` target: the name of a shared object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
    /// The volume of a `thin` target in its pool. A volume that does not exist is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Bytes of a logical block: 512 or 4096.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// ANA group of the namespace, from 1 to 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ana_group: Option<u32>,
    /// Storage functions over the target, topmost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionSpec>,
    /// Further paths that a classifier can choose: path 1, path 2 and so on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathSpec>,
}

pub(super) fn default_block_size() -> u32 {
    512
}

/// Kind of the target in which data ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// No storage: reads return nothing in particular, and writes are discarded.
    Null,
    /// Memory of the daemon, lost when the daemon stops.
    Memory,
    /// Memory of a pool that drives share, lost when the daemon stops.
    MemoryPool,
    /// A volume of a thin pool, whose extents are allocated when they are first written.
    Thin,
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
            Self::MemoryPool => "memory-pool",
            Self::Thin => "thin",
            Self::File => "file",
            Self::Nvme => "nvme",
            Self::NvmeTcp => "nvme-tcp",
        }
    }
}

/// Outcome of a write when the file system is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// The guest gets Capacity Exceeded.
    #[default]
    Fail,
    /// The write waits until there is room again.
    Park,
}

/// Relation of the bytes of a file to those of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    /// The bytes of the file are those of the disk.
    Raw,
}

/// The target of a namespace, with exactly the properties that its kind needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Null { size: Size },
    Memory { size: Size },
    MemoryPool { size: Size, pool: String },
    Thin { size: Size, pool: String, volume: String, on_full: OnFull },
    File(FileTarget),
    Nvme(NvmeSpec),
    NvmeTcp(NvmeTcpSpec),
}

/// A file or a block device. Without a size the file must exist, and keeps its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTarget {
    pub path: PathBuf,
    pub size: Option<Size>,
    pub on_full: OnFull,
    pub read_only: bool,
    /// Whether the file is served as raw, also if it begins like an image of another format.
    pub raw: bool,
    pub lease: Option<PathBuf>,
}

impl NamespaceSpec {
    /// Returns the maximum size to which its target may grow: the data must fit into each copy that a
    /// function keeps. A function between the two may have a size that does not change with the target's;
    /// copies above such a function set no limit.
    pub fn room(&self) -> Option<Size> {
        let grow = self.functions.iter().rev().take_while(|function| function.keeps_size());
        grow.flat_map(FunctionSpec::copies).filter_map(LayerSpec::known_size).min()
    }

    /// Describes the place of its data. The description differs if the data is elsewhere.
    pub fn data_location(&self) -> String {
        let mut words = vec![self.target_in_words()];
        words.extend(self.functions.iter().filter_map(FunctionSpec::data_location));
        words.join(" ")
    }

    /// Describes the place of its target alone.
    pub fn target_in_words(&self) -> String {
        let mut words = vec![self.target.as_str().to_owned()];
        words.extend(self.path.as_ref().map(|path| path.display().to_string()));
        words.extend(self.shared.clone());
        words.extend(self.volume.clone());
        if let Some(NvmeSpec { vfio_user, pci, generic, namespace, first_block, .. }) = &self.nvme {
            words.extend([vfio_user, generic].into_iter().flatten().map(|path| path.display().to_string()));
            words.extend(pci.clone());
            words.push(format!("namespace {namespace} from block {first_block}"));
        }
        if let Some(NvmeTcpSpec { subnqn, namespace, .. }) = &self.nvme_tcp {
            words.push(format!("{subnqn} namespace {namespace}"));
        }
        words.join(" ")
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
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
        self.check_bypass()?;
        self.check_passthrough()
    }

    /// Refuses a cache, or a log of writes, that changes of its data can bypass.
    fn check_bypass(&self) -> Result<(), Fault> {
        let name = |function: &FunctionSpec| match function {
            FunctionSpec::Cache(_) => Some("the cache"),
            FunctionSpec::Uif(uif) => {
                let is_one = |name: &str| name == "atomic" || name == "local-cache";
                uif.service().map(|it| it.name).filter(|name| is_one(name))
            }
            _ => None,
        };
        let found = self.functions.iter().enumerate().find_map(|(at, it)| Some((at, name(it)?)));
        let Some((at, name)) = found else { return Ok(()) };
        let fault = |words: &str| Fault::at_key("kind", words).inside("functions", at);
        if !self.paths.is_empty() {
            return Err(fault(&format!("a classifier could send commands past {name}"))
                .hint(format!("remove the paths, or {name}")));
        }
        let changes = |function: &FunctionSpec| match function {
            FunctionSpec::Uif(uif) => uif.service().is_none_or(|service| service.name == "snapshot"),
            _ => false,
        };
        match self.functions[at..].iter().find(|function| changes(function)) {
            Some(function) => Err(fault(&format!(
                "{} below {name} can change data by itself, as by a rollback",
                function.name()
            ))
            .hint(format!("put {name} below it"))),
            None => Ok(()),
        }
    }

    /// Refuses passthrough below functions, because the functions cannot follow the effect of such an opcode
    /// on their data.
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

    /// Checks that the namespace can have this size, in bytes.
    pub fn check_size(&self, size: Size) -> Result<(), Fault> {
        let block = u64::from(self.block_size);
        if size > Size::MAX {
            return Err(Fault::at_key("size", format!("{size} is more than a file offset can say")));
        }
        if self.target == TargetKind::Thin && size > THIN_MAX {
            return Err(Fault::at_key("size", format!("{size} is more than a volume has"))
                .hint(format!("use at most {THIN_MAX}")));
        }
        if self.target == TargetKind::MemoryPool && size > POOLED_MAX {
            return Err(Fault::at_key(
                "size",
                format!("{size} is more than a namespace in a pool of memory has"),
            )
            .hint(format!("use at most {POOLED_MAX}")));
        }
        if size.0 == 0 {
            return Err(Fault::at_key("size", "a namespace of no bytes is not possible")
                .hint(format!("use {block} bytes at least, a multiple of the block size")));
        }
        if !size.0.is_multiple_of(block) {
            return Err(Fault::at_key("size", format!("{size} is not a multiple of the block size"))
                .hint(format!("use a multiple of {block} bytes")));
        }
        Ok(())
    }

    /// Converts the loose keys into the target that they describe.
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
        if self.shared.is_some() && !matches!(self.target, TargetKind::MemoryPool | TargetKind::Thin) {
            let kind = self.target.as_str();
            return Err(Fault::at_key("shared", format!("a {kind} target has none"))
                .hint("remove shared, or say target = \"memory-pool\" or \"thin\""));
        }
        if self.volume.is_some() && self.target != TargetKind::Thin {
            let kind = self.target.as_str();
            return Err(Fault::at_key("volume", format!("a {kind} target has none"))
                .hint("remove volume, or say target = \"thin\""));
        }
        match self.target {
            TargetKind::Null => Ok(Target::Null { size: self.own_size()? }),
            TargetKind::Memory => Ok(Target::Memory { size: self.own_size()? }),
            TargetKind::MemoryPool => {
                let size = self.own_size()?;
                let pool = self.shared.clone().ok_or_else(|| {
                    Fault::at_key("target", "a memory-pool target needs the name of its pool").hint(
                        "add shared = \"NAME\" to the namespace; further layers and paths cannot be in a pool",
                    )
                })?;
                Ok(Target::MemoryPool { size, pool })
            }
            TargetKind::Thin => self.thin_target(),
            TargetKind::File => self.file_target(),
            TargetKind::Nvme => self.nvme_target(),
            TargetKind::NvmeTcp => self.nvme_tcp_target(),
        }
    }

    /// Checks that no key is given that only a file has.
    fn is_no_file(&self) -> Result<(), Fault> {
        let kind = self.target.as_str();
        let misplaced = [
            ("path", self.path.is_some()),
            ("on_full", self.on_full.is_some() && self.target != TargetKind::Thin),
            ("format", self.format.is_some()),
            ("lease", self.lease.is_some()),
            ("read_only", self.read_only),
        ];
        match misplaced.iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((key, _)) => Err(Fault::at_key(key, format!("a {kind} target has none"))
                .hint(format!("remove {key}, or say target = \"file\""))),
        }
    }

    /// Returns the size of a target that has no other property.
    fn own_size(&self) -> Result<Size, Fault> {
        self.is_no_file()?;
        let kind = self.target.as_str();
        self.size.ok_or_else(|| {
            Fault::at_key("size", format!("a {kind} target needs one")).hint("add size = \"64MiB\"")
        })
    }

    fn thin_target(&self) -> Result<Target, Fault> {
        let size = self.own_size()?;
        let (Some(pool), Some(volume)) = (self.shared.clone(), self.volume.clone()) else {
            return Err(Fault::at_key(
                "target",
                "a thin target needs the names of its pool and of its volume",
            )
            .hint(
                "add shared = \"POOL\" and volume = \"NAME\"; further layers and paths cannot be in a pool",
            ));
        };
        if volume.is_empty() || volume.len() > VOLUME_NAME_MAX {
            return Err(Fault::at_key("volume", "this name is not possible")
                .hint(format!("use 1 to {VOLUME_NAME_MAX} bytes")));
        }
        Ok(Target::Thin { size, pool, volume, on_full: self.on_full.unwrap_or_default() })
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
        let raw = self.format == Some(ImageFormat::Raw);
        let (read_only, lease) = (self.read_only, self.lease.clone());
        if let Some(lease) = &lease {
            if !lease.is_absolute() {
                return Err(Fault::at_key("lease", format!("{} is not an absolute path", lease.display()))
                    .hint("the daemon has another working directory than you: start the path with /"));
            }
            if read_only {
                return Err(
                    Fault::at_key("lease", "a file that is only read needs none").hint("remove lease")
                );
            }
            if lease == path {
                return Err(Fault::at_key("lease", "it would lie in the data of the namespace")
                    .hint("use a file or partition of its own, of 4096 bytes"));
            }
        }
        Ok(Target::File(FileTarget { path: path.clone(), size, on_full, read_only, raw, lease }))
    }
}
