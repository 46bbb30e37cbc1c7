//! Start of a controller that another process has handed over.

use crate::model::{Controller, Subsystem};
use crate::state::record::{CannotHandOver, ControllerRecord};
use sluice_memory::{SharedRegion, Space};

impl Controller {
    /// Continues a controller that another process has handed over, on a new controller with the same
    /// identifier. `doorbells` is the file with its doorbell page. The first turn looks at all queues.
    ///
    /// # Errors
    /// The record does not fit. The controller must not get a turn.
    pub fn take_over(
        &mut self,
        subsystem: &mut Subsystem,
        mut record: ControllerRecord,
        doorbells: SharedRegion,
        space: &Space,
        now_ns: u64,
    ) -> Result<(), CannotHandOver> {
        self.resume_state(&mut record, now_ns)?;
        self.resume_queues(&record, doorbells, space)?;
        subsystem.resume_host(self.number(), record.host);
        if record.is_on {
            subsystem.health_mut().resume_on();
        }
        subsystem.set_enabled(self.number(), self.is_enabled());
        subsystem.reset_ana(self.number());
        for entry in &record.requests {
            let origin = self.sqs[0].as_ref().map(|queue| queue.origin(entry));
            let command = origin.and_then(|origin| subsystem.slab_mut().admit(entry, origin));
            let command = command.ok_or(CannotHandOver("there is no room for the requests of the host"))?;
            if let Err(command) = self.resume_event_request(command) {
                subsystem.slab_mut().release(command);
                return Err(CannotHandOver("the host has too many requests for events"));
            }
        }
        self.record_registers();
        Ok(())
    }
}
