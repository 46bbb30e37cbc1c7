//! First halves of fused operations. Each waits for its second half, which must be the next entry of its
//! queue, or waits in vain.

use crate::model::{Controller, Subsystem};
use crate::state::fused::First;
use crate::state::queue::{Service, SubmissionQueue};
use sluice_command::Origin;
use sluice_nvme::Status;

/// Part of a drive's commands that first halves may be, when the drive is full.
const FIRSTS_PART: u32 = 8;

/// Fails the first halves of this controller that wait in vain.
pub(super) fn refuse_stranded(controller: &Controller, subsystem: &mut Subsystem) {
    let firsts = subsystem.held().fused.firsts.iter().enumerate();
    let stranded = firsts.filter(|(_, first)| is_stranded(controller, subsystem, first));
    let stranded: Vec<usize> = stranded.map(|(index, _)| index).collect();
    for index in stranded.into_iter().rev() {
        let First { command, .. } = subsystem.held_mut().fused.firsts.swap_remove(index);
        subsystem.refuse(command, Status::ABORTED_MISSING_FUSED);
    }
}

/// Returns whether a first half waits in vain: its queue continued with another entry, is not served any
/// more, or has no room. The same holds if other work waits for all commands in flight, since the second half
/// may never come.
pub(super) fn is_stranded(controller: &Controller, subsystem: &Subsystem, first: &First) -> bool {
    let origin = origin(subsystem, first);
    let waits = |queue: &&SubmissionQueue| {
        queue.epoch == origin.epoch
            && queue.head == first.head
            && !queue.deleting
            && queue.service != Service::Over
            && !controller.is_shutting_down()
            && !is_stuck(controller, subsystem, queue)
    };
    origin.controller == controller.number()
        && (subsystem.is_held()
            || are_too_many(subsystem)
            || controller.sqs[usize::from(origin.sq)].as_ref().filter(waits).is_none())
}

/// Returns whether the drive is full and this is not only because of commands that end by themselves. Few
/// pairs of a drive are halves at a time, since a host submits both at once (Base 3.4.2).
fn are_too_many(subsystem: &Subsystem) -> bool {
    let firsts = subsystem.held().fused.firsts.len() as u32;
    subsystem.has_only_reserved_slots() && firsts >= subsystem.slab().limit() / FIRSTS_PART
}

fn origin(subsystem: &Subsystem, first: &First) -> Origin {
    subsystem.slab().slot(&first.command).origin
}

/// Returns whether the next entry can never be fetched: all slots are taken by first halves and event
/// requests.
fn is_stuck(controller: &Controller, subsystem: &Subsystem, queue: &SubmissionQueue) -> bool {
    let Some(cq) = &controller.cqs[usize::from(queue.cq)] else { return false };
    let waiting = |is_counted: &dyn Fn(Origin) -> bool| {
        let own = subsystem.held().fused.firsts.iter().map(|first| origin(subsystem, first));
        own.filter(|origin| origin.controller == controller.number() && is_counted(*origin)).count() as u32
    };
    let completes_there =
        |origin: Origin| controller.sqs[usize::from(origin.sq)].as_ref().is_some_and(|sq| sq.cq == queue.cq);
    let no_completions = || cq.is_promised() && waiting(&completes_there) >= cq.size - 1;
    let no_slots = || {
        !subsystem.has_share(controller.number())
            && waiting(&|_| true) + controller.event_requests()
                >= subsystem.slab().in_flight_of(controller.number())
    };
    controller.doorbells.sq_tail(queue.id) != queue.head && (no_completions() || no_slots())
}
