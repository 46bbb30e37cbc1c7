//! Targets: opened by whoever asks, built on their reactor, resized from both sides.

use super::dhchap;
use super::function::operation;
use crate::drives::DeviceView;
use crate::host_name::HostName;
use crate::problem::{Kind, Problem};
use crate::size::Size;
use crate::spec::{DigestName, LossName, NvmeSpec, NvmeTcpSpec, OnFull, PassthroughSpec, Target};
use sluice_command::{Layer, NodeId, Opcodes, Passthrough};
use sluice_controller::Subsystem;
use sluice_reactor::{Io, TaskId};
use sluice_targets::{
    Address, Digests, Expected, FileConfig, FileControl, FileError, FileSeed, GenericConfig, GenericError,
    GenericSeed, Memory, NoSpace, Null, NvmeConfig, NvmeControl, NvmeError, NvmeSeed, NvmeTcpConfig,
    NvmeTcpControl, NvmeTcpSeed, OnLoss, Passes,
};
use sluice_tls::Keys;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A target whose files are open, on its way to its reactor.
#[derive(Debug)]
pub(super) enum TargetSeed {
    Null { size: Size },
    Memory { size: Size },
    File(FileSeed),
    Nvme(Box<NvmeSeed>),
    Generic(Box<GenericSeed>),
    NvmeTcp(Box<NvmeTcpSeed>),
}

/// What the control side keeps of a target.
#[derive(Debug)]
pub(crate) enum TargetControl {
    /// The reactor's part is all there is.
    Nothing,
    File(FileControl),
    /// With the device's place and the first block of the range.
    Nvme(NvmeControl, String, u64),
    /// With the subsystem's name and place.
    NvmeTcp(NvmeTcpControl, String),
}

impl TargetSeed {
    /// Opens a target under a namespace with blocks of `block_size` bytes. May block.
    pub(super) fn open(target: &Target, block_size: u32) -> Result<(Self, TargetControl), Problem> {
        match target {
            Target::Null { size } => Ok((Self::Null { size: *size }, TargetControl::Nothing)),
            Target::Memory { size } => Ok((Self::Memory { size: *size }, TargetControl::Nothing)),
            Target::File { path, size, on_full, read_only } => {
                let config = FileConfig {
                    path: path.clone(),
                    size: size.map(|size| size.0),
                    no_space: no_space(*on_full),
                    block_size,
                    read_only: *read_only,
                };
                let seed = FileSeed::open(&config).map_err(|error| file_problem(&error))?;
                let control = TargetControl::File(seed.control());
                Ok((Self::File(seed), control))
            }
            Target::Nvme(spec) => {
                if let Some(device) = &spec.generic {
                    return open_generic(device, spec);
                }
                let seed = NvmeSeed::open(&nvme_config(spec)).map_err(|error| nvme_problem(&error))?;
                let place = address(spec).to_string();
                let control = TargetControl::Nvme(seed.control(), place, spec.first_block);
                Ok((Self::Nvme(Box::new(seed)), control))
            }
            Target::NvmeTcp(spec) => {
                let opened = NvmeTcpSeed::open(&nvme_tcp_config(spec, block_size)?);
                let seed = opened.map_err(|error| Problem::internal(error.to_string()))?;
                let place = format!("{} at {}", spec.subnqn, spec.address);
                let control = TargetControl::NvmeTcp(seed.control(), place);
                Ok((Self::NvmeTcp(Box::new(seed)), control))
            }
        }
    }

    /// Builds the target on its reactor's thread, where it will be node `node` of namespace `nsid`.
    pub(super) fn build(
        self,
        task: TaskId,
        io: &Io,
        nsid: u32,
        node: NodeId,
    ) -> Result<Box<dyn Layer>, Problem> {
        match self {
            Self::Null { size } => Ok(Box::new(Null::new(size.0))),
            Self::Memory { size } => match Memory::new(size.0) {
                Ok(memory) => Ok(Box::new(memory)),
                Err(error) => {
                    Err(Problem::internal(format!("there is no room for {size} of memory: {error}"))
                        .hint("ask for less, or use a file"))
                }
            },
            Self::File(seed) => match seed.build(task, io, Subsystem::token_prefix(nsid, node)) {
                Ok(file) => Ok(Box::new(file)),
                Err(error) => Err(Problem::internal(format!("the reactor cannot take the file: {error}"))
                    .hint("each file takes two of the reactor's places and two descriptors (ulimit -n)")),
            },
            Self::Generic(seed) => match seed.build(task, io, Subsystem::token_prefix(nsid, node)) {
                Ok(generic) => Ok(Box::new(generic)),
                Err(error) => Err(Problem::internal(format!("the reactor cannot take the device: {error}"))
                    .hint("it takes a few descriptors (ulimit -n), and an io_uring with large entries")),
            },
            Self::Nvme(seed) => match seed.build(task, io, Subsystem::token_prefix(nsid, node)) {
                Ok(nvme) => Ok(Box::new(nvme)),
                Err(error) => Err(Problem::internal(format!("the reactor cannot take the device: {error}"))
                    .hint("each device takes one of the reactor's places and a few descriptors (ulimit -n)")),
            },
            Self::NvmeTcp(seed) => match seed.build(task, io, Subsystem::token_prefix(nsid, node)) {
                Ok(remote) => Ok(Box::new(remote)),
                Err(error) => {
                    Err(Problem::internal(format!("the reactor cannot take the connection: {error}"))
                        .hint("each takes two of the reactor's places and a few descriptors (ulimit -n)"))
                }
            },
        }
    }
}

impl TargetControl {
    /// The device behind it, if there is one.
    pub(super) fn device(&self, nsid: u32) -> Option<DeviceView> {
        match self {
            Self::Nvme(control, place, first) => {
                Some(DeviceView::new(nsid, place.clone(), *first, control.status()))
            }
            Self::NvmeTcp(control, place) => {
                Some(DeviceView::over_tcp(nsid, place.clone(), control.status()))
            }
            Self::Nothing | Self::File(_) => None,
        }
    }

    /// Bytes of its file, seen or not. May block.
    pub(super) fn file_size(&self) -> Result<Option<Size>, Problem> {
        match self {
            Self::Nothing | Self::Nvme(..) | Self::NvmeTcp(..) => Ok(None),
            Self::File(control) => {
                control.held().map(|bytes| Some(Size(bytes))).map_err(|error| file_problem(&error))
            }
        }
    }

    /// What a change of size needs besides the reactor's part. May block.
    pub(super) fn resize(&self, size: Size) -> Result<(), Problem> {
        match self {
            Self::Nothing | Self::Nvme(..) | Self::NvmeTcp(..) => Ok(()),
            Self::File(control) => control.resize(size.0).map_err(|error| file_problem(&error)),
        }
    }
}

fn no_space(on_full: OnFull) -> NoSpace {
    match on_full {
        OnFull::Fail => NoSpace::Fail,
        OnFull::Park => NoSpace::Park,
    }
}

fn passes(spec: &NvmeSpec) -> Passes {
    let listed =
        |names: &Vec<_>| names.iter().fold(Passes::NONE, |passes, name| passes.and(operation(*name)));
    spec.passes.as_ref().map_or(Passes::ALL, listed)
}

fn nvme_config(spec: &NvmeSpec) -> NvmeConfig {
    NvmeConfig {
        first_block: spec.first_block,
        blocks: spec.blocks,
        on_loss: match spec.on_loss {
            LossName::Park => OnLoss::Park,
            LossName::Fail => OnLoss::Fail,
        },
        timeout: Duration::from_secs(spec.timeout_s.into()),
        passes: passes(spec),
        passthrough: spec.passthrough.as_ref().map_or(Passthrough::NONE, passthrough),
        ..NvmeConfig::new(address(spec), spec.namespace)
    }
}

/// Opens a namespace that the kernel drives.
fn open_generic(path: &Path, spec: &NvmeSpec) -> Result<(TargetSeed, TargetControl), Problem> {
    let config = GenericConfig {
        path: path.to_owned(),
        first_block: spec.first_block,
        blocks: spec.blocks,
        timeout: Duration::from_secs(spec.timeout_s.into()),
        passes: passes(spec),
        passthrough: spec.passthrough.as_ref().map_or(Passthrough::NONE, passthrough),
    };
    let seed = GenericSeed::open(&config).map_err(|error| generic_problem(&error))?;
    let control = TargetControl::Nvme(seed.control(), path.display().to_string(), spec.first_block);
    Ok((TargetSeed::Generic(Box::new(seed)), control))
}

fn nvme_tcp_config(spec: &NvmeTcpSpec, block_size: u32) -> Result<NvmeTcpConfig, Problem> {
    let host = HostName::of(spec.hostnqn.as_deref());
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let has = |name| spec.digests.contains(&name);
    Ok(NvmeTcpConfig {
        nsid: spec.namespace,
        expected: spec.size.map(|size| Expected { size: size.0, block_size }),
        terms: spec.dhchap.as_ref().map(dhchap::terms).transpose()?,
        keys: tls_keys(spec.tls_keys.as_deref())?,
        digests: Digests { header: has(DigestName::Header), data: has(DigestName::Data) },
        timeout: seconds(spec.timeout_s),
        keep_alive: seconds(spec.keep_alive_s),
        fast_io_fail: spec.fast_io_fail_s.map(seconds),
        ctrl_loss: (spec.ctrl_loss_s > 0).then(|| seconds(spec.ctrl_loss_s)),
        ..NvmeTcpConfig::new(&spec.address, &spec.subnqn, &host.nqn, host.id)
    })
}

/// The keys of a file, if one is named.
pub(super) fn tls_keys(path: Option<&Path>) -> Result<Option<Arc<Keys>>, Problem> {
    let keys = path.map(Keys::read).transpose();
    let hint = "each line has a key that `nvme gen-tls-key` made, and before it the NQN of its host if it is for one";
    Ok(keys.map_err(|error| Problem::invalid(error.to_string()).hint(hint))?.map(Arc::new))
}

/// One of them was given: the description is checked.
fn address(spec: &NvmeSpec) -> Address {
    match (&spec.vfio_user, &spec.pci) {
        (Some(socket), _) => Address::VfioUser(socket.clone()),
        (None, pci) => Address::Pci(pci.clone().unwrap_or_default()),
    }
}

fn passthrough(spec: &PassthroughSpec) -> Passthrough {
    Passthrough {
        io: spec.io_opcodes().fold(Opcodes::NONE, Opcodes::and),
        admin: spec.admin_opcodes().fold(Opcodes::NONE, Opcodes::and),
    }
}

/// The error says itself what to do.
fn nvme_problem(error: &NvmeError) -> Problem {
    match error.is_in_use() {
        true => Problem::new(Kind::InUse, error.to_string()),
        false => Problem::internal(error.to_string()),
    }
}

/// The error says itself what to do.
fn generic_problem(error: &GenericError) -> Problem {
    match error.is_in_use() {
        true => Problem::new(Kind::InUse, error.to_string()),
        false => Problem::internal(error.to_string()),
    }
}

/// The error says itself what to do.
fn file_problem(error: &FileError) -> Problem {
    let words = error.to_string();
    if error.is_in_use() {
        Problem::new(Kind::InUse, words)
    } else if error.is_missing() {
        Problem::invalid(words)
    } else {
        Problem::internal(words)
    }
}
