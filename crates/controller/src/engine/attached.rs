//! Controller together with its subsystem.

use crate::model::overview::Overview;
use crate::model::subsystem::Config;
use crate::model::{Controller, Subsystem};
use sluice_memory::{Removed, Space};
use std::io;

/// Identifier of a controller that is the only one of its subsystem.
const CNTLID: u16 = 1;

/// Controller together with its subsystem: a drive with one controller. The methods are the calls that
/// concern both.
#[derive(Debug)]
pub struct Attached {
    pub controller: Controller,
    pub subsystem: Subsystem,
}

impl Attached {
    /// Creates both.
    ///
    /// # Errors
    /// The operating system has no memory or descriptors for them.
    pub fn new(config: Config) -> io::Result<Self> {
        let mut subsystem = Subsystem::new(config)?;
        let controller = Controller::new(&mut subsystem, CNTLID)?;
        Ok(Self { controller, subsystem })
    }

    pub fn write_register(&mut self, offset: u32, data: &[u8], space: &Space, now_ns: u64) {
        let Self { controller, subsystem } = self;
        controller.write_register(subsystem, offset, data, space, now_ns);
    }

    pub fn reset(&mut self) {
        let Self { controller, subsystem } = self;
        controller.reset(subsystem);
    }

    pub fn is_quiescent(&self) -> bool {
        let Self { controller, subsystem } = self;
        controller.is_quiescent(subsystem)
    }

    pub fn pause(&mut self) {
        let Self { controller, subsystem } = self;
        controller.pause(subsystem);
    }

    pub fn unfinished(&self) -> u32 {
        let Self { controller, subsystem } = self;
        controller.unfinished(subsystem) + subsystem.unfinished()
    }

    pub fn in_flight(&self) -> u32 {
        let Self { controller, subsystem } = self;
        controller.in_flight(subsystem)
    }

    pub fn uses(&self, removed: &Removed) -> bool {
        let Self { controller, subsystem } = self;
        controller.uses(subsystem, removed)
    }

    pub fn forget_memory(&mut self, removed: &Removed) {
        let Self { controller, subsystem } = self;
        controller.forget_memory(subsystem, removed);
    }

    pub fn overview(&self) -> Overview {
        let Self { controller, subsystem } = self;
        controller.overview(subsystem)
    }

    #[inline]
    pub fn turn(&mut self, space: &Space, now_ns: u64) -> usize {
        let Self { controller, subsystem } = self;
        controller.turn(subsystem, space, now_ns)
    }

    pub fn arm(&mut self) -> bool {
        let Self { controller, subsystem } = self;
        controller.arm(subsystem) || subsystem.arm()
    }

    pub fn disarm(&mut self) {
        let Self { controller, subsystem } = self;
        controller.disarm();
        subsystem.disarm();
    }

    pub fn deadline_ns(&mut self) -> Option<u64> {
        let Self { controller, subsystem } = self;
        [controller.deadline_ns(subsystem), subsystem.deadline_ns()].into_iter().flatten().min()
    }
}
