//! Answers to commands that wait for longer than their host is going to.

use crate::model::{Controller, Subsystem};
use crate::state::patience::InFlight;
use sluice_command::{Aborted, Controllers};

/// Ends the commands that waited too long, where layers only wait with them.
pub(super) fn expire(controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) {
    if !controller.patience.is_due(now_ns) {
        return;
    }
    let number = controller.number();
    let is_own = |origin: &sluice_command::Origin| origin.controller == number && origin.sq != 0;
    let in_flight =
        subsystem.slab().commands().filter(|(_, slot, _)| !slot.is_child() && is_own(&slot.origin));
    let in_flight = in_flight.map(|(number, slot, _)| InFlight {
        number,
        sq: slot.origin.sq,
        cid: slot.origin.cid,
        opcode: slot.origin.opcode,
        offset: slot.request.offset,
    });
    let late = controller.patience.look(in_flight, now_ns);
    let status = controller.patience.status(controller.features.host_behavior.acre == 1);
    for command in late {
        let own = Controllers::of_bits(1 << number);
        let which = Aborted { sq: Some(command.sq), cid: Some(command.cid), ..Aborted::of(own) };
        subsystem.abort(which, status, now_ns);
    }
}
