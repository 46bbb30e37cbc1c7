//! An NVMe namespace that the kernel drives, through its generic device (`/dev/ng0n1`): NVMe commands on
//! io_uring, past the block layer.
//!
//! The device receives FUA, Deallocate and vendor specific opcodes as the host sent them, for which a block
//! device has no equivalent. The host receives the device's status, not an errno. Data is not copied. The
//! kernel has the queues, splits nothing, and enforces the timeout of a command.

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

/// Configuration of a namespace of the kernel.
#[derive(Clone, Debug)]
pub struct GenericConfig {
    /// `/dev/ngXnY`.
    pub path: PathBuf,
    /// First block of the range, in the device's logical blocks.
    pub first_block: u64,
    /// Length of the range, in the device's logical blocks; none for all that follow.
    pub blocks: Option<u64>,
    /// Time limit of the device for a command. After that the kernel aborts the command.
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

/// An open range of a namespace, before it is given to a reactor.
#[derive(Debug)]
pub struct PreparedGeneric {
    handle: device::RangeHandle,
    config: GenericConfig,
    control: NvmeControl,
}

impl PreparedGeneric {
    /// Opens and identifies the device, and tries a command. Blocks as long as the device.
    ///
    /// # Errors
    /// The error names the device and gives advice.
    pub fn open(config: &GenericConfig) -> Result<Self, GenericError> {
        match device::open(config) {
            Ok(handle) => Ok(Self { handle, config: config.clone(), control: NvmeControl::default() }),
            Err(kind) => Err(GenericError { path: config.path.clone(), kind }),
        }
    }

    /// Returns the bytes of the drive.
    pub fn size(&self) -> u64 {
        self.handle.range.bytes()
    }

    /// Returns the device's power identifier, if it reported one.
    pub fn power(&self) -> Option<PowerId> {
        self.handle.info.power
    }

    /// Returns a handle on the target's counters, for the control plane.
    pub fn control(&self) -> NvmeControl {
        self.control.clone()
    }

    /// Builds the target, on its reactor's thread. `token_prefix` is the part of this layer's tokens above
    /// their low 32 bits.
    ///
    /// # Errors
    /// The reactor has no room for another device, or the system has no memory left.
    pub fn build(self, task: TaskId, io: &Io, token_prefix: u64) -> io::Result<Generic> {
        Generic::new(self, task, io, token_prefix)
    }
}
