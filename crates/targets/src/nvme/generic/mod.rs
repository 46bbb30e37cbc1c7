//! An NVMe namespace that the kernel drives, through its generic device (`/dev/ng0n1`): NVMe commands on
//! io_uring, past the block layer.
//!
//! What a block device cannot say reaches the device as the host said it (FUA, Deallocate, an opcode of
//! the vendor's), and what the device answers reaches the host: a status, not an errno. Data is not
//! copied. The kernel has the queues, splits nothing, and watches over the time a command takes.

mod device;
mod error;
mod memory;
mod outcome;
mod sysfs;
mod target;

pub use error::GenericError;
pub use target::Target as Generic;

use super::confine::Passes;
use super::counters::NvmeControl;
use crate::remote::{LossNotice, PowerId, PreviousSession};
use sluice_command::Passthrough;
use sluice_reactor::{Io, TaskId};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// A namespace of the kernel's, as configured.
#[derive(Clone, Debug)]
pub struct GenericConfig {
    /// `/dev/ngXnY`.
    pub path: PathBuf,
    /// Where the range begins, in the device's logical blocks.
    pub first_block: u64,
    /// How long it is, in the device's logical blocks; without it, all that follow.
    pub blocks: Option<u64>,
    /// How long the device may take for a command before the kernel aborts it.
    pub timeout: Duration,
    pub passes: Passes,
    /// Opcodes that pass to the device as the host writes them; see [`raw`](super::raw).
    pub passthrough: Passthrough,
    /// How the layers above are told that acknowledged writes may be lost.
    pub loss_notice: LossNotice,
    /// As of [`NvmeTcpConfig::previous_session`](crate::NvmeTcpConfig::previous_session).
    pub previous_session: Option<PreviousSession>,
}

/// An open range of a namespace, on its way to its reactor.
#[derive(Debug)]
pub struct GenericSeed {
    handle: device::RangeHandle,
    config: GenericConfig,
    control: NvmeControl,
}

impl GenericSeed {
    /// Opens the device, asks it what it is, and tries a command. Blocks as long as the device.
    ///
    /// # Errors
    /// In words that name the device and say what to do.
    pub fn open(config: &GenericConfig) -> Result<Self, GenericError> {
        match device::open(config) {
            Ok(handle) => Ok(Self { handle, config: config.clone(), control: NvmeControl::default() }),
            Err(kind) => Err(GenericError { path: config.path.clone(), kind }),
        }
    }

    /// Bytes of the drive.
    pub fn size(&self) -> u64 {
        self.handle.range.bytes()
    }

    /// The device's power identifier, if it gave one.
    pub fn power(&self) -> Option<PowerId> {
        self.handle.info.power
    }

    /// What the control side keeps, to see how the target fares.
    pub fn control(&self) -> NvmeControl {
        self.control.clone()
    }

    /// Builds the target, on its reactor's thread. `token_prefix` is what the tokens of this layer have
    /// beside their low 32 bits.
    ///
    /// # Errors
    /// The reactor has no room for another device, or the system none for a little memory.
    pub fn build(self, task: TaskId, io: &Io, token_prefix: u64) -> io::Result<Generic> {
        Generic::new(self, task, io, token_prefix)
    }
}
