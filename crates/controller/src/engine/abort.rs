//! Abort (Base 5.1).

use crate::admin::{Answer, Outcome};
use crate::model::request::Admin;
use crate::model::{Controller, Subsystem};
use sluice_command::{Aborted, Controllers};
use sluice_nvme::Status;

/// Bit 0 of the completion's dword 0: the command was not aborted.
const NOT_ABORTED: u32 = 1;

/// Executes an Abort, as a best effort. An Asynchronous Event Request can be aborted, since it only waits. An
/// I/O command ends where a layer only waits with it. While the kernel or a device works on a chunk of it,
/// the command runs on to the end of that chunk. Only then does nothing of it touch the host's memory any
/// more.
pub(super) fn abort(controller: &mut Controller, subsystem: &mut Subsystem, admin: &Admin<'_>) -> Answer {
    let sq = admin.entry.cdw10 as u16;
    let cid = (admin.entry.cdw10 >> 16) as u16;
    if controller.sqs.get(usize::from(sq)).is_none_or(Option::is_none) {
        return Err(Status::INVALID_FIELD);
    }
    Ok(match sq {
        0 => abort_event_request(controller, subsystem, cid),
        _ => abort_io(controller, subsystem, sq, cid, admin.now_ns),
    })
}

/// Ends an I/O command at once, or after its operation under way.
fn abort_io(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    sq: u16,
    cid: u16,
    now_ns: u64,
) -> Outcome {
    let own = Controllers::of_bits(1 << controller.number());
    let which = Aborted { sq: Some(sq), cid: Some(cid), ..Aborted::of(own) };
    let is_there = |subsystem: &Subsystem| {
        subsystem.slab().live().any(|slot| !slot.is_child() && which.has(&slot.origin))
    };
    if !is_there(subsystem) {
        return Outcome::Done(NOT_ABORTED);
    }
    subsystem.abort(which, Status::ABORT_REQUESTED, now_ns);
    // Its completion comes before that of the Abort.
    controller.run_completions(subsystem, now_ns);
    Outcome::Done(if is_there(subsystem) { NOT_ABORTED } else { 0 })
}

fn abort_event_request(controller: &mut Controller, subsystem: &mut Subsystem, cid: u16) -> Outcome {
    let Some(command) = controller.take_event_request(subsystem.slab(), cid) else {
        return Outcome::Done(NOT_ABORTED);
    };
    controller.finish(subsystem, command, Status::ABORT_REQUESTED, 0);
    Outcome::Done(0)
}
