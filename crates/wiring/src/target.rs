//! Targets: opened on the calling thread, built on their reactor, resized from both sides.

use super::drive::in_words;
use super::namespace::Site;
use super::power::{Losses, in_hexadecimal};
use super::remote::{PreparedRemoteTarget, RemoteControl};
use super::shared::Pools;
use super::thin_pool::volume_problem;
use sluice_command::{Layer, NodeId, Opcodes, Operation, Passthrough, StackBuilder};
use sluice_control::drives::{DevicePlace, DeviceView};
use sluice_controller::Subsystem;
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::size::Size;
use sluice_spec::{FileTarget, LossName, NvmeSpec, OnFull, PassthroughSpec, Target};
use sluice_targets::{
    Address, FileConfig, FileControl, FileError, GenericConfig, GenericError, Maintenance, Memory, NoSpace,
    Null, NvmeConfig, NvmeControl, NvmeError, OnLoss, Passes, PoolPort, PowerId, PreparedFile,
    PreparedGeneric, PreparedNvme,
};
use sluice_thin::{ThinPort, VolumeControl};
use std::io;
use std::path::Path;
use std::time::Duration;

/// A target whose files are open, on its way to its reactor.
#[derive(Debug)]
pub(super) enum PreparedTarget {
    Null { size: Size },
    Memory { size: Size },
    MemoryPool { size: Size, port: Box<PoolPort> },
    Thin { device: PreparedFile, port: Box<ThinPort> },
    File(PreparedFile),
    Nvme(Box<PreparedNvme>),
    Generic(Box<PreparedGeneric>),
    NvmeTcp(PreparedRemoteTarget),
}

/// Control of a target.
#[derive(Debug)]
pub(crate) enum TargetControl {
    /// Target that lives on its reactor only.
    Nothing,
    /// Target that lives on its reactor only, and holds no data.
    Null,
    File(FileControl),
    Thin(VolumeControl, FileControl),
    /// Device, with its place and the first block of the range, the power identifier that it returned, and the handle of
    /// its controller if the daemon drives it.
    Nvme(NvmeControl, DevicePlace, Option<PowerId>, Option<Maintenance>),
    NvmeTcp(RemoteControl),
}

impl PreparedTarget {
    /// Opens a target under a namespace with blocks of `block_size` bytes. May block.
    pub(super) fn open(
        target: &Target,
        block_size: u32,
        losses: Losses<'_>,
        pools: &Pools,
    ) -> Result<(Self, TargetControl), ApiError> {
        match target {
            Target::Null { size } => Ok((Self::Null { size: *size }, TargetControl::Null)),
            Target::Memory { size } => Ok((Self::Memory { size: *size }, TargetControl::Nothing)),
            Target::MemoryPool { size, pool } => {
                let port = Box::new(pools.connect(pool)?);
                Ok((Self::MemoryPool { size: *size, port }, TargetControl::Nothing))
            }
            Target::Thin { size, pool, volume, on_full } => {
                let (device, port, control) =
                    pools.thin(pool)?.open_volume(volume, *size, *on_full, block_size)?;
                let control = TargetControl::Thin(control, device.control());
                Ok((Self::Thin { device, port: Box::new(port) }, control))
            }
            Target::File(file) => {
                let config = file_config(file, block_size);
                let prepared = PreparedFile::open_leased(&config, file.lease.as_deref())
                    .map_err(|error| file_problem(&error))?;
                let control = TargetControl::File(prepared.control());
                Ok((Self::File(prepared), control))
            }
            Target::Nvme(spec) => {
                if let Some(device) = &spec.generic {
                    return open_generic(device, spec, losses);
                }
                let prepared =
                    PreparedNvme::open(&nvme_config(spec, losses)).map_err(|error| nvme_problem(&error))?;
                let place = place(address(spec).to_string(), spec);
                let control = {
                    let (control, driven) = (prepared.control(), Some(prepared.maintenance()));
                    TargetControl::Nvme(control, place, prepared.power(), driven)
                };
                Ok((Self::Nvme(Box::new(prepared)), control))
            }
            Target::NvmeTcp(spec) => {
                let (prepared, control) = PreparedRemoteTarget::open(spec, block_size, losses)?;
                Ok((Self::NvmeTcp(prepared), TargetControl::NvmeTcp(control)))
            }
        }
    }

    /// Adds the target to a stack, on the thread of its reactor.
    pub(super) fn add(self, stack: &mut StackBuilder, at: &Site<'_>) -> Result<NodeId, ApiError> {
        let token_prefix = Subsystem::token_prefix(at.nsid, stack.next_id());
        let no_place = |what: &str, error: io::Error, hint: &str| {
            ApiError::internal(format!("the reactor cannot take the {what}: {error}")).hint(hint)
        };
        let layer: Box<dyn Layer> = match self {
            Self::Null { size } => Box::new(Null::new(size.0)),
            Self::Memory { size } => {
                let memory = Memory::new(size.0).map_err(|error| no_memory(size, &error))?;
                Box::new(memory.with_pages_from(at.io.clone(), at.task, token_prefix))
            }
            Self::MemoryPool { size, port } => {
                let built = port.build(size.0, at.task, at.io, token_prefix);
                Box::new(built.map_err(|error| {
                    let hint = "each namespace in a pool takes one of the reactor's places and a descriptor (ulimit -n)";
                    no_place("pool", error, hint)
                })?)
            }
            Self::File(prepared) => {
                Box::new(prepared.build(at.task, at.io, token_prefix).map_err(|error| {
                    let hint = "each file takes two of the reactor's places and two descriptors (ulimit -n)";
                    no_place("file", error, hint)
                })?)
            }
            Self::Thin { device, port } => {
                let hint = "each volume takes three of the reactor's places and four descriptors (ulimit -n)";
                let file = device.build(at.task, at.io, token_prefix);
                let file = file.map_err(|error| no_place("file of the pool", error, hint))?;
                let below = stack.add(Box::new(file), &[]).map_err(|error| in_words(&error))?;
                // The device of the pool has its own size.
                stack.fix(below);
                let token_prefix = Subsystem::token_prefix(at.nsid, stack.next_id());
                let volume = port.build(at.task, at.io, token_prefix);
                let volume = volume.map_err(|error| no_place("volume", error, hint))?;
                return stack.add(Box::new(volume), &[below]).map_err(|error| in_words(&error));
            }
            Self::Generic(prepared) => {
                Box::new(prepared.build(at.task, at.io, token_prefix).map_err(|error| {
                    let hint = "it takes a few descriptors (ulimit -n), and an io_uring with large entries";
                    no_place("device", error, hint)
                })?)
            }
            Self::Nvme(prepared) => {
                Box::new(prepared.build(at.task, at.io, token_prefix).map_err(|error| {
                    let hint =
                        "each device takes one of the reactor's places and a few descriptors (ulimit -n)";
                    no_place("device", error, hint)
                })?)
            }
            Self::NvmeTcp(prepared) => return prepared.add(stack, at),
        };
        stack.add(layer, &[]).map_err(|error| in_words(&error))
    }
}

impl TargetControl {
    /// Opens another target with the same data, for use at the same time on another reactor. Returns `None`
    /// if this kind of target cannot have one. May block. `size` is that of the namespace, if this is its
    /// only layer.
    pub(super) fn open_clone(&self, size: Option<Size>) -> Result<Option<PreparedTarget>, ApiError> {
        match self {
            Self::Null => Ok(size.map(|size| PreparedTarget::Null { size })),
            Self::File(control) => control
                .open_clone()
                .map(|prepared| Some(PreparedTarget::File(prepared)))
                .map_err(|error| file_problem(&error)),
            Self::Nothing | Self::Thin(..) | Self::Nvme(..) | Self::NvmeTcp(..) => Ok(None),
        }
    }

    /// Returns the device behind the target, if there is one; one for each path to it.
    pub(super) fn devices(&self, nsid: u32) -> Vec<DeviceView> {
        match self {
            Self::Nvme(control, place, ..) => vec![DeviceView::new(nsid, place, control.status())],
            Self::NvmeTcp(control) => control.devices(nsid),
            Self::Nothing | Self::Null | Self::File(_) | Self::Thin(..) => Vec::new(),
        }
    }

    /// Returns the controllers behind the target that the daemon drives, one for each path.
    pub(super) fn maintenance(&self) -> Vec<Maintenance> {
        match self {
            Self::Nvme(.., driven) => driven.iter().cloned().collect(),
            Self::NvmeTcp(control) => control.maintenance(),
            Self::Nothing | Self::Null | Self::File(_) | Self::Thin(..) => Vec::new(),
        }
    }

    /// Returns the controller behind the target, if there is one, with its power identifier.
    pub(super) fn peer(&self) -> Option<(String, Option<String>)> {
        match self {
            Self::Nvme(_, place, power, _) => {
                Some((peer(&place.device, place.namespace), power.map(in_hexadecimal)))
            }
            Self::NvmeTcp(control) => Some(control.peer()),
            Self::Nothing | Self::Null | Self::File(_) | Self::Thin(..) => None,
        }
    }

    /// Returns whether the target is a file, or lies on the file of a pool, that has lost finished writes.
    pub(super) fn has_lost(&self) -> bool {
        matches!(self, Self::File(control) | Self::Thin(_, control) if control.has_lost())
    }

    /// Returns whether acknowledged writes may be lost, and not every host has been notified.
    pub(super) fn owes_flush_error(&self) -> bool {
        self.has_lost() || matches!(self, Self::NvmeTcp(remote) if remote.has_lost())
    }

    /// Returns the bytes of the target's file, visible to hosts or not. May block.
    pub(super) fn file_size(&self) -> Result<Option<Size>, ApiError> {
        match self {
            Self::Nothing | Self::Null | Self::Nvme(..) | Self::NvmeTcp(..) => Ok(None),
            Self::Thin(control, _) => Ok(Some(Size(control.size()))),
            Self::File(control) => {
                control.held().map(|bytes| Some(Size(bytes))).map_err(|error| file_problem(&error))
            }
        }
    }

    /// Changes the size of the target outside of its reactor. May block.
    pub(super) fn resize(&self, size: Size) -> Result<(), ApiError> {
        match self {
            Self::Nothing | Self::Null | Self::Nvme(..) | Self::NvmeTcp(..) => Ok(()),
            Self::Thin(control, _) => {
                control.resize(size.0).map_err(|error| volume_problem(control.name(), &error))
            }
            Self::File(control) => control.resize(size.0).map_err(|error| file_problem(&error)),
        }
    }
}

/// Returns the problem for a memory target that is larger than the machine can map.
pub(super) fn no_memory(size: Size, error: &io::Error) -> ApiError {
    let why = match error.kind() {
        // The size exceeds the memory of any machine.
        io::ErrorKind::InvalidInput => "that is more than a process can have".to_owned(),
        _ => error.to_string(),
    };
    ApiError::invalid(format!("there is no room for {size} of memory: {why}"))
        .hint("ask for less, or use a file")
}

/// Returns the configuration with which a target opens its file.
pub(super) fn file_config(file: &FileTarget, block_size: u32) -> FileConfig {
    FileConfig {
        path: file.path.clone(),
        size: file.size.map(|size| size.0),
        no_space: no_space(file.on_full),
        block_size,
        read_only: file.read_only,
        raw: file.raw,
    }
}

/// Returns the name under which a namespace of another controller is stored.
pub(super) fn peer(device: &str, namespace: u32) -> String {
    format!("{device} namespace {namespace}")
}

fn no_space(on_full: OnFull) -> NoSpace {
    match on_full {
        OnFull::Fail => NoSpace::Fail,
        OnFull::Park => NoSpace::Park,
    }
}

fn passes(spec: &NvmeSpec) -> Passes {
    let listed =
        |names: &Vec<_>| names.iter().fold(Passes::NONE, |passes, name| passes.and(Operation::from(*name)));
    spec.passes.as_ref().map_or(Passes::ALL, listed)
}

fn nvme_config(spec: &NvmeSpec, losses: Losses<'_>) -> NvmeConfig {
    let peer = peer(&address(spec).to_string(), spec.namespace);
    NvmeConfig {
        loss_notice: losses.notice,
        previous_session: match spec.pci {
            Some(_) => losses.former_of_device(&peer),
            None => losses.former(&peer),
        },
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
fn open_generic(
    path: &Path,
    spec: &NvmeSpec,
    losses: Losses<'_>,
) -> Result<(PreparedTarget, TargetControl), ApiError> {
    let config = GenericConfig {
        path: path.to_owned(),
        first_block: spec.first_block,
        blocks: spec.blocks,
        timeout: Duration::from_secs(spec.timeout_s.into()),
        passes: passes(spec),
        passthrough: spec.passthrough.as_ref().map_or(Passthrough::NONE, passthrough),
        loss_notice: losses.notice,
        previous_session: losses.former(&peer(&path.display().to_string(), spec.namespace)),
    };
    let prepared = PreparedGeneric::open(&config).map_err(|error| generic_problem(&error))?;
    let place = place(path.display().to_string(), spec);
    let control = TargetControl::Nvme(prepared.control(), place, prepared.power(), None);
    Ok((PreparedTarget::Generic(Box::new(prepared)), control))
}

fn place(device: String, spec: &NvmeSpec) -> DevicePlace {
    DevicePlace { device, namespace: spec.namespace, first_block: spec.first_block }
}

/// Returns the address of the device. The description is checked: exactly one address is given.
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

/// Converts an error, whose message includes the remedy.
fn nvme_problem(error: &NvmeError) -> ApiError {
    match error.is_in_use() {
        true => ApiError::new(Kind::InUse, error.to_string()),
        false => ApiError::internal(error.to_string()),
    }
}

/// Converts an error, whose message includes the remedy.
fn generic_problem(error: &GenericError) -> ApiError {
    match error.is_in_use() {
        true => ApiError::new(Kind::InUse, error.to_string()),
        false => ApiError::internal(error.to_string()),
    }
}

/// Converts an error, whose message includes the remedy.
pub(super) fn file_problem(error: &FileError) -> ApiError {
    let words = error.to_string();
    if error.is_in_use() {
        ApiError::new(Kind::InUse, words)
    } else if error.is_missing() || error.is_unfit() {
        ApiError::invalid(words)
    } else {
        error
            .io_error()
            .map_or_else(|| ApiError::internal(&*words), |io| ApiError::internal(&*words).limited_by(io))
    }
}
