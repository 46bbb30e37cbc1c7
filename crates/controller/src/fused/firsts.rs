//! First halves that wait for the second, which the next entry of their queue has to be; and those that wait in vain.

use super::refuse;
use crate::queue::{Service, SubmissionQueue};
use crate::{Controller, Subsystem};
use sluice_command::{Command, Origin};
use sluice_nvme::Status;

/// First halves are too many for a full drive if they are this part of what it can have.
const FIRSTS_PART: u32 = 8;

#[derive(Debug)]
pub(super) struct First {
    pub(super) command: Command,
    /// The head of its queue when its second comes.
    pub(super) head: u32,
}

/// Refuses those of this controller that wait in vain.
pub(super) fn refuse_stranded(controller: &Controller, subsystem: &mut Subsystem) {
    let firsts = subsystem.fused.firsts.iter().enumerate();
    let stranded = firsts.filter(|(_, first)| is_stranded(controller, subsystem, first));
    let stranded: Vec<usize> = stranded.map(|(index, _)| index).collect();
    for index in stranded.into_iter().rev() {
        let First { command, .. } = subsystem.fused.firsts.swap_remove(index);
        refuse(subsystem, command, Status::ABORTED_MISSING_FUSED);
    }
}

/// Its queue went on with something else, does not go on, or cannot; or somebody waits for the end of whatever is under
/// way, and so cannot wait for what may never come.
pub(super) fn is_stranded(controller: &Controller, subsystem: &Subsystem, first: &First) -> bool {
    let origin = origin(subsystem, first);
    let waits = |queue: &&SubmissionQueue| {
        queue.epoch == origin.epoch
            && queue.head == first.head
            && !queue.deleting
            && queue.service != Service::Over
            && !controller.registers.is_shutting_down()
            && !is_stuck(controller, subsystem, queue)
    };
    origin.controller == controller.number
        && (subsystem.is_held()
            || are_too_many(subsystem)
            || controller.sqs[usize::from(origin.sq)].as_ref().filter(waits).is_none())
}

/// Nobody has room any more, and that is not only because of commands that come to their end by themselves: of a drive's
/// pairs few are halves at a time, since a host hands both over at once (Base 3.4.2).
fn are_too_many(subsystem: &Subsystem) -> bool {
    let firsts = subsystem.fused.firsts.len() as u32;
    subsystem.slab.room() <= subsystem.reserved_slots && firsts >= subsystem.slab.limit() / FIRSTS_PART
}

fn origin(subsystem: &Subsystem, first: &First) -> Origin {
    subsystem.slab.slot(&first.command).origin
}

/// There is a next entry, and there will be no room for it: all that there is waits for seconds, or for events.
fn is_stuck(controller: &Controller, subsystem: &Subsystem, queue: &SubmissionQueue) -> bool {
    let Some(cq) = &controller.cqs[usize::from(queue.cq)] else { return false };
    let waiting = |is_counted: &dyn Fn(Origin) -> bool| {
        let own = subsystem.fused.firsts.iter().map(|first| origin(subsystem, first));
        own.filter(|origin| origin.controller == controller.number && is_counted(*origin)).count() as u32
    };
    let completes_there =
        |origin: Origin| controller.sqs[usize::from(origin.sq)].as_ref().is_some_and(|sq| sq.cq == queue.cq);
    let no_completions = || cq.is_promised() && waiting(&completes_there) >= cq.size - 1;
    let no_slots = || {
        !subsystem.has_share(controller.number)
            && waiting(&|_| true) + controller.events.outstanding()
                >= subsystem.slab.in_flight_of(controller.number)
    };
    controller.doorbells.sq_tail(queue.id) != queue.head && (no_completions() || no_slots())
}
