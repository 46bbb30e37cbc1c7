//! The NVMe target: a range of a namespace of another NVMe controller, through a queue pair of its own.
//!
//! Only CID, NSID, SLBA and data pointer of a command are translated on its way from the host's queue to the
//! device's. Its data stays in place: the files of the host's memory are mapped for the device at addresses
//! in a window of their own ([`iova_layout`]). The data pointer is made anew, in the target's memory. Data
//! that cannot be mapped, or not be described with PRPs, goes through a few buffers ([`buffers`]). A command
//! for which there is no free buffer waits.
//!
//! No reactor waits for a device. Each device has an [`admin_thread`] for operations that wait for an answer:
//! connecting, creating queues, mapping memory. A [`Target`] sends requests to the thread, and handles its
//! events in its next turn.
//!
//! Several targets share one device. Each is confined to its range by the last check before a command is
//! submitted, independent of the layers above; no two ranges overlap.
//!
//! A device that the kernel drives is used in another way ([`generic`]): commands are made and confined in
//! the same way, and the kernel has the queues.

mod admin_thread;
mod buffers;
mod chunk;
mod confine;
mod counters;
mod device;
mod dma_maps;
mod error;
mod events;
mod generic;
mod in_flight;
mod iova_layout;
mod pointer;
mod port;
mod previous_peer;
mod raw;
mod target;

pub use confine::Passes;
pub use counters::{NvmeControl, NvmeStatus};
pub use error::NvmeError;
pub use generic::{Generic, GenericConfig, GenericError, PreparedGeneric};
pub use target::Target as Nvme;

use crate::remote::{LossNotice, Maintenance, PowerId, PreviousSession};
use sluice_command::Passthrough;
use sluice_reactor::{Io, TaskId};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Address of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The socket of a vfio-user server, which must let its doorbells be mapped.
    VfioUser(PathBuf),
    /// The PCI address (`0000:00:04.0`) of a device that is bound to the kernel's `vfio-pci`.
    Pci(String),
}

/// Handling of commands while the device is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// Commands wait until the device is back, unless their host times out.
    #[default]
    Park,
    /// Commands fail with Internal Path Error.
    Fail,
}

/// Configuration of an NVMe target.
#[derive(Clone, Debug)]
pub struct NvmeConfig {
    pub address: Address,
    /// NSID on the device.
    pub namespace: u32,
    /// First block of the range, in the device's logical blocks.
    pub first_block: u64,
    /// Length of the range, in the device's logical blocks; none for all that follow.
    pub blocks: Option<u64>,
    pub on_loss: OnLoss,
    /// Time limit of the device for a command. After that the target gives the device up and reconnects.
    pub timeout: Duration,
    pub passes: Passes,
    /// Opcodes that pass to the device as the host writes them; see `raw`.
    pub passthrough: Passthrough,
    /// Way in which the layers above are notified that acknowledged writes may be lost.
    pub loss_notice: LossNotice,
    /// Unflushed writes of an earlier daemon, as in
    /// [`NvmeTcpConfig::previous_session`](crate::NvmeTcpConfig::previous_session).
    pub previous_session: Option<PreviousSession>,
}

impl NvmeConfig {
    /// Creates the configuration of a whole namespace, with defaults.
    pub fn new(address: Address, namespace: u32) -> Self {
        Self {
            address,
            namespace,
            first_block: 0,
            blocks: None,
            on_loss: OnLoss::default(),
            timeout: Duration::from_secs(10),
            passes: Passes::ALL,
            passthrough: Passthrough::NONE,
            loss_notice: LossNotice::default(),
            previous_session: None,
        }
    }
}

/// A range of a device and a queue pair for it, before they are given to a reactor.
#[derive(Debug)]
pub struct PreparedNvme {
    handle: device::PortHandle,
    config: NvmeConfig,
    control: NvmeControl,
}

impl PreparedNvme {
    /// Connects to the device, unless another target of this process has, and creates a queue pair. Blocks,
    /// for no longer than the device takes or the timeout allows.
    ///
    /// # Errors
    /// The error names the device and gives advice.
    pub fn open(config: &NvmeConfig) -> Result<Self, NvmeError> {
        let control = NvmeControl::default();
        let handle = device::open(config, &control)?;
        let supported = handle.port.info.supports(&config.passthrough);
        supported.map_err(|kind| NvmeError { address: config.address.clone(), kind: kind.into() })?;
        Ok(Self { handle, config: config.clone(), control })
    }

    /// Returns the bytes of the drive.
    pub fn size(&self) -> u64 {
        self.handle.port.range.bytes()
    }

    /// Returns the device's power identifier, if it reported one.
    pub fn power(&self) -> Option<PowerId> {
        self.handle.link.as_ref().and_then(|link| link.info.power)
    }

    /// Returns a handle on the device, for the control plane.
    pub fn maintenance(&self) -> Maintenance {
        self.handle.maintenance()
    }

    /// Returns a handle on the target's counters, for the control plane.
    pub fn control(&self) -> NvmeControl {
        self.control.clone()
    }

    /// Builds the target, on its reactor's thread. `token_prefix` is the part of this layer's tokens above
    /// their low 32 bits.
    ///
    /// # Errors
    /// The reactor has no room for another file.
    pub fn build(self, task: TaskId, io: &Io, token_prefix: u64) -> io::Result<Nvme> {
        let reactor = target::ReactorHandle { io: io.clone(), task, token_prefix };
        Nvme::new(self.handle, &self.config, reactor, self.control)
    }
}
