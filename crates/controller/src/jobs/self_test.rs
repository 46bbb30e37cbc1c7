//! Device Self-test (Base 5.11): reads samples of the namespaces, a chunk at a time, while the host goes on.
//!
//! There is no medium to test. Failures below show when data is read: a short test reads a few places of each
//! namespace, an extended one many, up to all of it.

use crate::model::self_test::{bytes_of, may_read};
use crate::model::slots::{Ended, Way};
use crate::model::{Controller, Namespace, Subsystem};
use crate::state::chunk;
use crate::state::limits::NN;
use crate::state::self_test::{Running, TestKind, ended, place_of};
use sluice_command::Origin;
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{NSID_ALL, Status, SubmissionEntry};

/// Time between two chunks: the host's commands come first.
const PAUSE_NS: u64 = 1_000_000;

/// Begins a test for a Device Self-test command, or aborts the one that runs.
pub(crate) fn command(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    entry: &SubmissionEntry,
    now_ns: u64,
) -> Result<(), Status> {
    const ABORT: u32 = 0xf;
    let kind = match entry.cdw10 & 0xf {
        1 => TestKind::Short,
        2 => TestKind::Extended,
        ABORT => {
            let hours = subsystem.health().power_on_hours(now_ns);
            controller.self_test.end(ended::ABORTED, hours, None);
            return Ok(());
        }
        _ => return Err(Status::INVALID_FIELD),
    };
    let nsids = namespaces(controller, subsystem, entry.nsid)?;
    if controller.self_test.running.is_some() {
        return Err(Status::SELF_TEST_IN_PROGRESS);
    }
    let tests = &mut controller.self_test;
    tests.begun = tests.begun.wrapping_add(1);
    let (number, named, next_ns) = (tests.begun, entry.nsid, now_ns);
    tests.running =
        Some(Running { number, kind, named, nsids, done: 0, place: 0, in_flight: false, next_ns });
    Ok(())
}

fn namespaces(controller: &Controller, subsystem: &Subsystem, nsid: u32) -> Result<Vec<u32>, Status> {
    let number = controller.number();
    match nsid {
        0 => Ok(Vec::new()),
        NSID_ALL => Ok(subsystem.iter_active(number).map(Namespace::nsid).collect()),
        1..=NN if subsystem.active(number, nsid).is_some() => Ok(vec![nsid]),
        // An NSID without an active namespace is invalid for this command, inactive or not (Base 5.11).
        _ => Err(Status::INVALID_NAMESPACE),
    }
}

/// Continues the test when its time has come.
pub(crate) fn advance(controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) {
    let may_read = may_read(controller, subsystem);
    let hours = subsystem.health().power_on_hours(now_ns);
    let own = controller.number();
    let Controller { self_test, .. } = &mut *controller;
    let Some(running) = &mut self_test.running else { return };
    if running.in_flight || now_ns < running.next_ns {
        return;
    }
    running.next_ns = now_ns.saturating_add(PAUSE_NS);
    if !may_read || subsystem.room(own) == 0 {
        return;
    }
    running.skip_finished(|nsid| bytes_of(subsystem, nsid));
    let Some(&nsid) = running.nsids.get(running.done) else {
        return self_test.end(ended::WELL, hours, None);
    };
    running.in_flight = true;
    let (number, kind, place) = (running.number, running.kind, running.place);
    read_place(controller, subsystem, nsid, number, kind.places(), place, now_ns);
}

fn read_place(
    controller: &mut Controller,
    subsystem: &mut Subsystem,
    nsid: u32,
    number: u32,
    places: u64,
    place: u64,
    now_ns: u64,
) {
    let Some(namespace) = subsystem.get(nsid) else { return };
    let (shift, bytes) = (namespace.block_shift(), bytes_of(subsystem, nsid));
    let offset = place_of(bytes, places, place);
    let left = (bytes - offset).min(chunk::CHUNK as u64);
    let slba = offset >> shift;
    let entry = SubmissionEntry {
        opcode: io::READ,
        nsid,
        cdw10: slba as u32,
        cdw11: (slba >> 32) as u32,
        cdw12: (left >> shift) as u32 - 1,
        ..SubmissionEntry::default()
    };
    let origin = Origin {
        sq: Origin::INTERNAL_SQ,
        controller: controller.number(),
        opcode: admin::DEVICE_SELF_TEST,
        epoch: number,
        ..Origin::default()
    };
    subsystem.start_internal(&entry, origin, Way::Router, now_ns, |slot, number, staging| {
        chunk::read(slot, number, staging, offset, left)
    });
}

/// Continues the test after a chunk.
pub(crate) fn next(controller: &mut Controller, subsystem: &mut Subsystem, read: Ended, now_ns: u64) {
    let Ended { entry, origin, status, .. } = read;
    let (nsid, slba) = (entry.nsid, entry.slba());
    let hours = subsystem.health().power_on_hours(now_ns);
    let running = controller.self_test.running.as_mut().filter(|running| running.number == origin.epoch);
    let Some(running) = running else { return };
    running.in_flight = false;
    // A read that a reset ended is no failure of the data below.
    if !status.is_success() && !status.same_code(Status::ABORTED_SQ_DELETION) {
        return controller.self_test.end(ended::FAILED, hours, Some((nsid, slba, status)));
    }
    running.place += u64::from(status.is_success());
    running.skip_finished(|nsid| bytes_of(subsystem, nsid));
}

/// Ends a test of a namespace that is being formatted.
pub(crate) fn format(controller: &mut Controller, subsystem: &mut Subsystem, nsid: u32, now_ns: u64) {
    end_if_of(controller, subsystem, nsid, ended::FORMAT, now_ns);
}

/// Ends a test of a namespace that is being deleted.
pub(crate) fn removal(controller: &mut Controller, subsystem: &mut Subsystem, nsid: u32, now_ns: u64) {
    end_if_of(controller, subsystem, nsid, ended::REMOVAL, now_ns);
}

fn end_if_of(controller: &mut Controller, subsystem: &mut Subsystem, nsid: u32, how: u8, now_ns: u64) {
    if controller.self_test.running.as_ref().is_some_and(|running| running.nsids.contains(&nsid)) {
        let hours = subsystem.health().power_on_hours(now_ns);
        controller.self_test.end(how, hours, None);
    }
}

/// Ends a test, since the drive is being sanitized.
pub(crate) fn sanitize(controller: &mut Controller, subsystem: &Subsystem, now_ns: u64) {
    let hours = subsystem.health().power_on_hours(now_ns);
    controller.self_test.end(ended::SANITIZE, hours, None);
}

/// Ends a short test, since the controller was reset.
pub(crate) fn reset(controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) {
    if controller.self_test.running.as_ref().is_some_and(|running| running.kind == TestKind::Short) {
        let hours = subsystem.health().power_on_hours(now_ns);
        controller.self_test.end(ended::RESET, hours, None);
    }
}
