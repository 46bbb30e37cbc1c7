//! Watch over commands of a controller that wait for long.

use crate::model::{Controller, Subsystem};
use crate::state::patience::InFlight;
use sluice_nvme::Status;

impl Controller {
    /// Plans a look at the commands in flight, unless one is planned.
    #[inline]
    pub(crate) fn watch_commands(&mut self, subsystem: &Subsystem, now_ns: u64) {
        if self.patience.is_stopped() {
            self.patience.start(subsystem.host_timeout_ns(), now_ns);
        }
    }

    /// Looks at the commands in flight, if it is time. Returns the ones that waited too long, and their status.
    pub(crate) fn take_late_commands(
        &mut self,
        subsystem: &Subsystem,
        now_ns: u64,
    ) -> (Vec<InFlight>, Status) {
        if !self.patience.is_due(now_ns) {
            return (Vec::new(), Status::SUCCESS);
        }
        let commands = subsystem.slab().commands().map(|(number, slot, _)| (number, slot));
        let own = commands.filter(|(_, slot)| {
            slot.origin.controller == self.number && slot.origin.sq != 0 && !slot.is_child()
        });
        let in_flight = own.map(|(number, slot)| InFlight {
            number,
            sq: slot.origin.sq,
            cid: slot.origin.cid,
            opcode: slot.origin.opcode,
            offset: slot.request.offset,
        });
        let late = self.patience.look(in_flight, now_ns);
        let uses_delays = self.features.host_behavior.acre == 1;
        (late, self.patience.status(uses_delays))
    }
}
