//! Device Self-test (Base 5.11): reads samples of the namespaces, a chunk at a time, while the host goes on.
//!
//! There is no medium to test. Failures below show when data is read: a short test reads a few places of each
//! namespace, an extended one many, up to all of it.

use crate::subsystem::{NN, Subsystem};
use crate::{Controller, Namespace, chunk};
use sluice_command::{Command, Origin};
use sluice_nvme::log::{SelfTestLog, SelfTestResult};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{NSID_ALL, Status, SubmissionEntry};
use std::collections::VecDeque;
use zerocopy::FromZeros;

/// Time between two chunks: the host's commands come first.
const PAUSE_NS: u64 = 1_000_000;

/// Kinds of test (STC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestKind {
    /// Short test, which ends with a reset of the controller.
    Short = 1,
    /// Extended test, which goes on after a reset.
    Extended = 2,
}

impl TestKind {
    /// Returns the number of places that are read in a namespace, if it has so many.
    fn places(self) -> u64 {
        match self {
            Self::Short => 64,
            Self::Extended => 4096,
        }
    }
}

/// Minutes that an extended test takes at most, for one namespace that answers at once.
pub(crate) const EXTENDED_MINUTES: u16 = 1;

/// Results of a test (Base 5.16.1.7, bits 3:0 of a result's status).
mod ended {
    pub(super) const WELL: u8 = 0;
    pub(super) const ABORTED: u8 = 1;
    pub(super) const RESET: u8 = 2;
    /// Abort by the deletion of a namespace.
    pub(super) const REMOVAL: u8 = 3;
    /// Abort by a Format NVM.
    pub(super) const FORMAT: u8 = 4;
    pub(super) const SANITIZE: u8 = 9;
    /// Failure of a segment that is reported.
    pub(super) const FAILED: u8 = 7;
}

/// Number of the only segment: the layers below can be read.
const READING: u8 = 1;

#[derive(Debug)]
struct Running {
    /// Number that distinguishes its reads from those of an earlier test.
    number: u32,
    kind: TestKind,
    /// NSID of the command: zero for none, or all.
    named: u32,
    /// Namespaces that are tested.
    nsids: Vec<u32>,
    /// Number of finished namespaces, and of finished places in the next.
    done: usize,
    place: u64,
    in_flight: bool,
    next_ns: u64,
}

/// Test that runs, and results of earlier ones.
#[derive(Debug)]
pub(crate) struct SelfTest {
    running: Option<Running>,
    /// Results, the newest first.
    results: VecDeque<SelfTestResult>,
    /// Tests ever begun.
    begun: u32,
}

impl Running {
    /// Advances to the next namespace that has a place left. Sizes may have changed.
    fn skip_finished(&mut self, subsystem: &Subsystem) {
        while let Some(&nsid) = self.nsids.get(self.done) {
            let all = self.kind.places().min(bytes_of(subsystem, nsid).div_ceil(chunk::CHUNK as u64));
            if self.place < all {
                return;
            }
            (self.done, self.place) = (self.done + 1, 0);
        }
    }
}

fn bytes_of(subsystem: &Subsystem, nsid: u32) -> u64 {
    let there = subsystem.get(nsid).filter(|namespace| !namespace.is_leaving());
    there.map_or(0, |namespace| namespace.blocks() << namespace.block_shift())
}

impl SelfTest {
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub(crate) fn new() -> Self {
        Self { running: None, results: VecDeque::with_capacity(SelfTestLog::RESULTS), begun: 0 }
    }

    /// Returns the time of the next chunk.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.running.as_ref().filter(|running| !running.in_flight).map(|running| running.next_ns)
    }

    /// Ends the running test with this result, and with its failure if there is one.
    fn end(&mut self, how: u8, hours: u64, failure: Option<(u32, u64, Status)>) {
        let Some(running) = self.running.take() else { return };
        let mut result = SelfTestResult::new_zeroed();
        result.status = (running.kind as u8) << 4 | how;
        result.set_power_on_hours(hours);
        if running.named != 0 {
            result.set_namespace(running.named);
        }
        if let Some((nsid, slba, status)) = failure {
            result.segment = READING;
            result.set_namespace(nsid);
            result.set_failure(slba, status);
        }
        self.results.truncate(SelfTestLog::RESULTS - 1);
        self.results.push_front(result);
    }
}

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
            let hours = subsystem.health.power_on_hours(now_ns);
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
    let number = controller.number;
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
    let hours = subsystem.health.power_on_hours(now_ns);
    let Controller { self_test, number: own, .. } = &mut *controller;
    let Some(running) = &mut self_test.running else { return };
    if running.in_flight || now_ns < running.next_ns {
        return;
    }
    running.next_ns = now_ns.saturating_add(PAUSE_NS);
    if !may_read || subsystem.room(*own) == 0 {
        return;
    }
    running.skip_finished(subsystem);
    let Some(&nsid) = running.nsids.get(running.done) else {
        return self_test.end(ended::WELL, hours, None);
    };
    running.in_flight = true;
    let (number, kind, place) = (running.number, running.kind, running.place);
    read_place(controller, subsystem, nsid, number, kind.places(), place, now_ns);
}

/// Returns false while the drive is held or not ready. A paused self-test sets no timer.
pub(crate) fn may_read(controller: &Controller, subsystem: &Subsystem) -> bool {
    let is_up = controller.registers.is_ready() && !controller.registers.is_shutting_down();
    is_up && !subsystem.is_held()
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
        sq: Origin::INTERNAL,
        controller: controller.number,
        opcode: admin::DEVICE_SELF_TEST,
        epoch: number,
        ..Origin::default()
    };
    let command = subsystem.slab.admit(&entry, origin).expect("room was looked at");
    let slot_number = subsystem.slab.number(&command);
    let slot = subsystem.slab.slot_mut(&command);
    match chunk::read(slot, slot_number, &subsystem.staging, offset, left) {
        Ok(()) => subsystem.submit_to(nsid, command, now_ns),
        Err(status) => {
            slot.status = status;
            subsystem.done.push(command);
        }
    }
}

/// Returns the offset of this place: places lie evenly, and begin where chunks do.
fn place_of(bytes: u64, places: u64, place: u64) -> u64 {
    let chunks = bytes.div_ceil(chunk::CHUNK as u64);
    let places = places.min(chunks).max(1);
    (u128::from(place) * u128::from(chunks) / u128::from(places)) as u64 * chunk::CHUNK as u64
}

/// Continues the test after a chunk.
pub(crate) fn next(controller: &mut Controller, subsystem: &mut Subsystem, command: Command, now_ns: u64) {
    let slot = subsystem.slab.slot(&command);
    let entry = subsystem.slab.entry(&command);
    let (status, test, nsid, slba) = (slot.status, slot.origin.epoch, entry.nsid, entry.slba());
    subsystem.slab.release(command);
    let hours = subsystem.health.power_on_hours(now_ns);
    let running = controller.self_test.running.as_mut().filter(|running| running.number == test);
    let Some(running) = running else { return };
    running.in_flight = false;
    // A read that a reset ended is no failure of the data below.
    if !status.is_success() && !status.same_code(Status::ABORTED_SQ_DELETION) {
        return controller.self_test.end(ended::FAILED, hours, Some((nsid, slba, status)));
    }
    running.place += u64::from(status.is_success());
    running.skip_finished(subsystem);
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
        let hours = subsystem.health.power_on_hours(now_ns);
        controller.self_test.end(how, hours, None);
    }
}

/// Ends a test, since the drive is being sanitized.
pub(crate) fn sanitize(controller: &mut Controller, subsystem: &Subsystem, now_ns: u64) {
    let hours = subsystem.health.power_on_hours(now_ns);
    controller.self_test.end(ended::SANITIZE, hours, None);
}

/// Ends a short test, since the controller was reset.
pub(crate) fn reset(controller: &mut Controller, subsystem: &mut Subsystem, now_ns: u64) {
    if controller.self_test.running.as_ref().is_some_and(|running| running.kind == TestKind::Short) {
        let hours = subsystem.health.power_on_hours(now_ns);
        controller.self_test.end(ended::RESET, hours, None);
    }
}

/// Returns the Device Self-test log page.
pub(crate) fn log(controller: &Controller, subsystem: &Subsystem) -> SelfTestLog {
    let mut page = SelfTestLog::new_zeroed();
    page.results.iter_mut().for_each(|result| result.status = SelfTestResult::UNUSED);
    page.results.iter_mut().zip(&controller.self_test.results).for_each(|(to, from)| *to = *from);
    if let Some(running) = &controller.self_test.running {
        page.current = running.kind as u8;
        page.completion = percent(subsystem, running);
    }
    page
}

fn percent(subsystem: &Subsystem, running: &Running) -> u8 {
    let Some(&nsid) = running.nsids.get(running.done) else { return 99 };
    let bytes = bytes_of(subsystem, nsid);
    let places = running.kind.places().min(bytes.div_ceil(chunk::CHUNK as u64)).max(1);
    let within = (running.place * 100 / places).min(99);
    ((running.done as u64 * 100 + within) / running.nsids.len() as u64) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_evenly_and_inside() {
        const CHUNK: u64 = chunk::CHUNK as u64;
        for bytes in [512, CHUNK, CHUNK + 512, 63 * CHUNK, 64 * CHUNK, 1000 * CHUNK + 4096, 1 << 50] {
            let all = 64.min(bytes.div_ceil(CHUNK));
            let places: Vec<u64> = (0..all).map(|place| place_of(bytes, 64, place)).collect();
            assert!(places.is_sorted_by(|a, b| a < b), "{bytes}");
            assert!(places.iter().all(|at| at % CHUNK == 0 && *at < bytes), "{bytes}");
            assert_eq!(places[0], 0);
            assert!(bytes - places[places.len() - 1] <= bytes.div_ceil(all) + CHUNK, "{bytes}");
        }
    }
}
