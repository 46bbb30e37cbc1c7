//! Abort (Base 5.1).

use super::{Admin, Answer, Outcome};
use crate::{Controller, Subsystem};
use sluice_nvme::Status;

/// Bit 0 of the completion's dword 0: the command was not aborted.
const NOT_ABORTED: u32 = 1;

/// Aborts are best effort. An Asynchronous Event Request can be aborted, since it only waits; a
/// command that is with a target runs to its end, which is the only way to know that nothing of it
/// touches the host's memory any more.
pub(super) fn abort(controller: &mut Controller, subsystem: &mut Subsystem, admin: &Admin<'_>) -> Answer {
    let sq = admin.entry.cdw10 as u16;
    let cid = (admin.entry.cdw10 >> 16) as u16;
    if controller.sqs.get(usize::from(sq)).is_none_or(Option::is_none) {
        return Err(Status::INVALID_FIELD);
    }
    if sq != 0 {
        return Ok(Outcome::Done(NOT_ABORTED));
    }
    let slab = &subsystem.slab;
    let Some(command) = controller.events.remove(|command| slab.slot(command).origin.cid == cid) else {
        return Ok(Outcome::Done(NOT_ABORTED));
    };
    let Some(cq) = &mut controller.cqs[0] else { return Err(Status::INTERNAL_ERROR) };
    if cq.room(1, &controller.doorbells) == 0 {
        controller.events.put_back(command);
        return Ok(Outcome::Done(NOT_ABORTED));
    }
    cq.reserve(1);
    if let Some(queue) = &mut controller.sqs[0] {
        queue.in_flight += 1;
    }
    controller.finish(subsystem, command, Status::ABORT_REQUESTED, 0);
    Ok(Outcome::Done(0))
}
