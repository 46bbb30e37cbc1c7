//! Device Self-test of a controller: its steps, and its log page.

use crate::model::slots::Ended;
use crate::model::{Controller, Subsystem};
use crate::state::chunk;
use crate::state::self_test::{Running, TestKind, ended};
use sluice_nvme::Status;
use sluice_nvme::log::{SelfTestLog, SelfTestResult};
use zerocopy::FromZeros;

pub(crate) fn bytes_of(subsystem: &Subsystem, nsid: u32) -> u64 {
    let there = subsystem.get(nsid).filter(|namespace| !namespace.is_leaving());
    there.map_or(0, |namespace| namespace.blocks() << namespace.block_shift())
}

/// Returns false while the drive is held or not ready. A paused self-test sets no timer.
pub(super) fn may_read(controller: &Controller, subsystem: &Subsystem) -> bool {
    let is_up = controller.registers.is_ready() && !controller.registers.is_shutting_down();
    is_up && !subsystem.is_held()
}

/// Time between two chunks: the host's commands come first.
const PAUSE_NS: u64 = 1_000_000;

/// Place of a namespace that a test reads next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextRead {
    pub(crate) nsid: u32,
    /// Number of the test.
    pub(crate) number: u32,
    pub(crate) place: u64,
    /// Number of places that the test reads in a namespace, if it has so many.
    pub(crate) places: u64,
}

impl Controller {
    /// Begins a test of these namespaces for a command that named `named`.
    ///
    /// # Errors
    /// A test is running.
    pub(crate) fn begin_self_test(
        &mut self,
        kind: TestKind,
        named: u32,
        nsids: Vec<u32>,
        now_ns: u64,
    ) -> Result<(), Status> {
        let tests = &mut self.self_test;
        if tests.is_running() {
            return Err(Status::SELF_TEST_IN_PROGRESS);
        }
        tests.begun = tests.begun.wrapping_add(1);
        let (number, next_ns) = (tests.begun, now_ns);
        tests.running =
            Some(Running { number, kind, named, nsids, done: 0, place: 0, in_flight: false, next_ns });
        Ok(())
    }

    /// Ends the running test with this result, if there is one.
    pub(crate) fn end_self_test(&mut self, subsystem: &Subsystem, how: u8, now_ns: u64) {
        self.self_test.end(how, subsystem.health().power_on_hours(now_ns), None);
    }

    /// Ends a test of this namespace.
    pub(crate) fn end_self_test_of(&mut self, subsystem: &Subsystem, nsid: u32, how: u8, now_ns: u64) {
        if self.self_test.running.as_ref().is_some_and(|running| running.nsids.contains(&nsid)) {
            self.end_self_test(subsystem, how, now_ns);
        }
    }

    /// Ends a short test, since the controller was reset.
    pub(crate) fn reset_self_test(&mut self, subsystem: &Subsystem, now_ns: u64) {
        if self.self_test.running.as_ref().is_some_and(|running| running.kind == TestKind::Short) {
            self.end_self_test(subsystem, ended::RESET, now_ns);
        }
    }

    /// Returns the read with which the test continues, if its time has come. A test without a place left ends.
    pub(crate) fn next_self_test_read(&mut self, subsystem: &Subsystem, now_ns: u64) -> Option<NextRead> {
        let may_read = may_read(self, subsystem) && subsystem.room(self.number) > 0;
        let running = self.self_test.running.as_mut()?;
        if running.in_flight || now_ns < running.next_ns {
            return None;
        }
        running.next_ns = now_ns.saturating_add(PAUSE_NS);
        if !may_read {
            return None;
        }
        running.skip_finished(|nsid| bytes_of(subsystem, nsid));
        let Some(&nsid) = running.nsids.get(running.done) else {
            self.end_self_test(subsystem, ended::WELL, now_ns);
            return None;
        };
        running.in_flight = true;
        let (number, place, places) = (running.number, running.place, running.kind.places());
        Some(NextRead { nsid, number, place, places })
    }

    /// Counts a read of the test that has ended. A failed read ends the test.
    pub(crate) fn self_test_read_ended(&mut self, subsystem: &Subsystem, read: Ended, now_ns: u64) {
        let Ended { entry, origin, status, .. } = read;
        let running = self.self_test.running.as_mut().filter(|running| running.number == origin.epoch);
        let Some(running) = running else { return };
        running.in_flight = false;
        // A read that a reset ended is no failure of the data below.
        if !status.is_success() && !status.same_code(Status::ABORTED_SQ_DELETION) {
            let hours = subsystem.health().power_on_hours(now_ns);
            return self.self_test.end(ended::FAILED, hours, Some((entry.nsid, entry.slba(), status)));
        }
        running.place += u64::from(status.is_success());
        running.skip_finished(|nsid| bytes_of(subsystem, nsid));
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
