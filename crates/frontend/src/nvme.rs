//! NVMe part of the joint: front-ends that bring commands to the controllers of a subsystem.

use crate::Frontend;
use sluice_controller::{CannotMigrate, Controller, Subsystem};
use sluice_memory::Space;
use sluice_reactor::{Io, TaskId};
use std::fmt;
use std::os::fd::OwnedFd;

/// Front-end with NVMe controllers of its own.
pub trait NvmeFrontend: Frontend<Backend = Subsystem> {
    /// Returns the controller whose queue groups other reactors may serve. `None` if all queues stay with the
    /// drive.
    fn migratable(&self) -> Option<&Controller> {
        None
    }

    /// Returns whether something waits until a record of the drive is [kept](crate::RecordSink).
    fn needs_record(&self) -> bool {
        false
    }

    /// Returns the same controller, with its client.
    fn group_owner(&mut self) -> Option<GroupOwner<'_>> {
        None
    }
}

/// Controller that owns queue groups, and the client that it serves.
pub struct GroupOwner<'a> {
    pub controller: &'a mut Controller,
    pub client: &'a mut dyn GroupClient,
}

impl fmt::Debug for GroupOwner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupOwner").field("drive", &self.client.drive()).finish_non_exhaustive()
    }
}

/// Client whose queue groups other reactors may serve.
pub trait GroupClient {
    /// Returns the name of the drive, for the log.
    fn drive(&self) -> &str;

    /// Returns the map of the client's memory.
    fn space(&self) -> &Space;

    /// Returns a copy of the eventfd of an interrupt vector, for another reactor to signal. Returns `None`
    /// for a queue without a vector.
    ///
    /// # Errors
    /// No client is connected, or the client waits for all of its queues, or the interrupt has no eventfd to
    /// be signalled elsewhere.
    fn interrupt_of(&self, vector: Option<u16>) -> Result<Option<OwnedFd>, CannotMigrate>;

    /// Adds interrupts that another reactor has signalled.
    fn count_interrupts(&mut self, interrupts: u64);
}

/// Resources of a front-end that is being added to a drive.
#[derive(Debug)]
pub struct NewFrontend<'a> {
    /// Number of the front-end in its [tokens](crate::FrontendToken).
    pub number: u8,
    pub task: TaskId,
    pub io: Io,
    pub subsystem: &'a mut Subsystem,
}
