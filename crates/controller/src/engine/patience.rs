//! Answers to commands that wait for longer than their host is going to.

use crate::model::{Controller, Subsystem};
use sluice_command::{Aborted, Controllers};

/// Ends the commands that waited too long, where layers only wait with them.
pub(super) fn expire(controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) {
    let own = Controllers::of_bits(1 << controller.number());
    let (late, status) = controller.take_late_commands(subsystem, now_ns);
    for command in late {
        let which = Aborted { sq: Some(command.sq), cid: Some(command.cid), ..Aborted::of(own) };
        subsystem.abort(which, status, now_ns);
    }
}
