//! The NVMe target: a range of a namespace of another NVMe controller, through a queue pair of its own.
//!
//! A command goes from the host's queue to the device's with only CID, NSID, SLBA and data pointer
//! translated. Its data stays where it is: the files of the host's memory are shown to the device at
//! addresses in a window of their own ([`window`]), and the data pointer is made anew, in our memory.
//! What cannot be shown, or cannot be said with PRPs, goes through a few buffers ([`buffers`]); a command
//! for which there is none waits.
//!
//! Nothing here waits on a reactor. Whatever is a conversation with the device (connecting, creating
//! queues, mapping memory) is the [`admin_thread`]'s, a thread for each device; a [`Target`] gives it orders and
//! finds its news in its next turn.
//!
//! Several targets share one device. Each is confined to its range, whatever the layers above ask for,
//! by the last look before a command is submitted; no two ranges overlap.
//!
//! A device that the kernel drives is another way to the same end ([`generic`]): commands are made in the
//! same way and kept to the same range, and the kernel has the queues.

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
pub use generic::{Generic, GenericConfig, GenericError, GenericSeed};
pub use target::Target as Nvme;

use crate::remote::{LossNotice, PowerId, PreviousSession};
use sluice_command::Passthrough;
use sluice_reactor::{Io, TaskId};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Where a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The socket of a vfio-user server, which must let its doorbells be mapped.
    VfioUser(PathBuf),
    /// The PCI address (`0000:00:04.0`) of a device that is bound to the kernel's `vfio-pci`.
    Pci(String),
}

/// What becomes of commands while the device is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// They wait until it is back, for as long as the host has patience.
    #[default]
    Park,
    /// They fail with Internal Path Error.
    Fail,
}

/// An NVMe target, as configured.
#[derive(Clone, Debug)]
pub struct NvmeConfig {
    pub address: Address,
    /// NSID on the device.
    pub namespace: u32,
    /// Where the range begins, in the device's logical blocks.
    pub first_block: u64,
    /// How long it is, in the device's logical blocks; without it, all that follow.
    pub blocks: Option<u64>,
    pub on_loss: OnLoss,
    /// How long the device may take for a command before it is given up and connected to again.
    pub timeout: Duration,
    pub passes: Passes,
    /// Opcodes that pass to the device as the host writes them; see [`raw`].
    pub passthrough: Passthrough,
    /// How the layers above are told that acknowledged writes may be lost.
    pub loss_notice: LossNotice,
    /// As of [`NvmeTcpConfig::previous_session`](crate::NvmeTcpConfig::previous_session).
    pub previous_session: Option<PreviousSession>,
}

impl NvmeConfig {
    /// All of a namespace, with nothing special about it.
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

/// A range of a device and a queue pair for it, on its way to its reactor.
#[derive(Debug)]
pub struct NvmeSeed {
    handle: device::PortHandle,
    config: NvmeConfig,
    control: NvmeControl,
}

impl NvmeSeed {
    /// Connects to the device, unless another target of this process has, and creates a queue pair.
    /// Blocks, for no longer than the device takes or the timeout says.
    ///
    /// # Errors
    /// In words that name the device and say what to do.
    pub fn open(config: &NvmeConfig) -> Result<Self, NvmeError> {
        let control = NvmeControl::default();
        let handle = device::open(config, &control)?;
        let supported = handle.port.info.supports(&config.passthrough);
        supported.map_err(|kind| NvmeError { address: config.address.clone(), kind: kind.into() })?;
        Ok(Self { handle, config: config.clone(), control })
    }

    /// Bytes of the drive.
    pub fn size(&self) -> u64 {
        self.handle.port.range.bytes()
    }

    /// The device's power identifier, if it gave one.
    pub fn power(&self) -> Option<PowerId> {
        self.handle.link.as_ref().and_then(|link| link.info.power)
    }

    /// What the control side keeps, to see how the target fares.
    pub fn control(&self) -> NvmeControl {
        self.control.clone()
    }

    /// Builds the target, on its reactor's thread. `token_prefix` is what the tokens of this layer have
    /// beside their low 32 bits.
    ///
    /// # Errors
    /// The reactor has no room for another file.
    pub fn build(self, task: TaskId, io: &Io, token_prefix: u64) -> io::Result<Nvme> {
        let reactor = target::ReactorHandle { io: io.clone(), task, token_prefix };
        Nvme::new(self.handle, &self.config, reactor, self.control)
    }
}
