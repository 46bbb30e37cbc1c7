//! Start of a Copy.

use crate::command::copy::{Ranges, plan};
use crate::engine::intake::Intake;
use crate::state::{chunk, fused};
use sluice_command::{Command, Operation, Range, Request};
use sluice_nvme::SubmissionEntry;

/// Takes a Copy that was just fetched. Not inlined, to keep it out of the path of other commands.
#[inline(never)]
pub(crate) fn begin(intake: &mut Intake<'_>, command: Command, entry: &SubmissionEntry) {
    let number = intake.subsystem.slab().slot(&command).origin.controller;
    intake.subsystem.health_mut().note_effort();
    match plan(intake.subsystem, intake.features, intake.space, entry, number) {
        Ok((ranges, destination)) => start(intake, command, &ranges, destination),
        Err(status) => {
            let slot = intake.subsystem.slab_mut().slot_mut(&command);
            slot.request = Request { operation: Operation::Write, ..Request::default() };
            let may_wait = intake.subsystem.held().may_hold();
            match status == fused::CLAIMED && may_wait {
                true => intake.subsystem.hold_back(command),
                false => intake.give_up(command, status),
            }
        }
    }
}

fn start(intake: &mut Intake<'_>, command: Command, ranges: &Ranges, to: u64) {
    let number = intake.subsystem.slab().number(&command);
    let (slab, staging) = intake.subsystem.slab_and_staging();
    let slot = slab.slot_mut(&command);
    slot.request = Request::default();
    let steps = slot.steps.get_or_insert_default();
    (steps.progress, steps.destination) = (0, to);
    steps.ranges.clear();
    steps.ranges.extend_from_slice(ranges.as_slice());
    let Range { nsid, offset, length } = steps.ranges[0];
    match chunk::read(slot, number, staging, offset, length) {
        Ok(()) => intake.subsystem.submit_to(nsid, command, intake.now_ns),
        Err(status) => intake.subsystem.refuse(command, status),
    }
}
