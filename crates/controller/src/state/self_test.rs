//! State and results of Device Self-tests.

use crate::state::chunk;
use sluice_nvme::Status;
use sluice_nvme::log::{SelfTestLog, SelfTestResult};
use std::collections::VecDeque;
use zerocopy::FromZeros;

/// Kinds of test (STC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestKind {
    /// Short test, which ends with a reset of the controller.
    Short = 1,
    /// Extended test, which goes on after a reset.
    Extended = 2,
}

impl TestKind {
    /// Returns the number of places that are read in a namespace, if it has so many.
    pub(crate) fn places(self) -> u64 {
        match self {
            Self::Short => 64,
            Self::Extended => 4096,
        }
    }
}

/// Minutes that an extended test takes at most, for one namespace that answers at once.
pub(crate) const EXTENDED_MINUTES: u16 = 1;

/// Results of a test (Base 5.16.1.7, bits 3:0 of a result's status).
pub(crate) mod ended {
    pub(crate) const WELL: u8 = 0;
    pub(crate) const ABORTED: u8 = 1;
    pub(crate) const RESET: u8 = 2;
    /// Abort by the deletion of a namespace.
    pub(crate) const REMOVAL: u8 = 3;
    /// Abort by a Format NVM.
    pub(crate) const FORMAT: u8 = 4;
    pub(crate) const SANITIZE: u8 = 9;
    /// Failure of a segment that is reported.
    pub(crate) const FAILED: u8 = 7;
}

/// Number of the only segment: the layers below can be read.
const READING: u8 = 1;

#[derive(Debug)]
pub(crate) struct Running {
    /// Number that distinguishes its reads from those of an earlier test.
    pub(crate) number: u32,
    pub(crate) kind: TestKind,
    /// NSID of the command: zero for none, or all.
    pub(crate) named: u32,
    /// Namespaces that are tested.
    pub(crate) nsids: Vec<u32>,
    /// Number of finished namespaces, and of finished places in the next.
    pub(crate) done: usize,
    pub(crate) place: u64,
    pub(crate) in_flight: bool,
    pub(crate) next_ns: u64,
}

/// Test that runs, and results of earlier ones.
#[derive(Debug)]
pub(crate) struct SelfTest {
    pub(crate) running: Option<Running>,
    /// Results, the newest first.
    pub(crate) results: VecDeque<SelfTestResult>,
    /// Tests ever begun.
    pub(crate) begun: u32,
}

impl Running {
    /// Advances to the next namespace that has a place left. Sizes may have changed.
    pub(crate) fn skip_finished(&mut self, bytes_of: impl Fn(u32) -> u64) {
        while let Some(&nsid) = self.nsids.get(self.done) {
            let all = self.kind.places().min(bytes_of(nsid).div_ceil(chunk::CHUNK as u64));
            if self.place < all {
                return;
            }
            (self.done, self.place) = (self.done + 1, 0);
        }
    }
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
    pub(crate) fn end(&mut self, how: u8, hours: u64, failure: Option<(u32, u64, Status)>) {
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

/// Returns the offset of this place: places lie evenly, and begin where chunks do.
pub(crate) fn place_of(bytes: u64, places: u64, place: u64) -> u64 {
    let chunks = bytes.div_ceil(chunk::CHUNK as u64);
    let places = places.min(chunks).max(1);
    (u128::from(place) * u128::from(chunks) / u128::from(places)) as u64 * chunk::CHUNK as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_twenty_results_are_kept() {
        let mut tests = SelfTest::new();
        for number in 0..25 {
            tests.running = Some(Running {
                number,
                kind: TestKind::Extended,
                named: number,
                nsids: vec![1],
                done: 0,
                place: 0,
                in_flight: number % 2 == 0,
                next_ns: 7,
            });
            assert_eq!((tests.is_running(), tests.deadline_ns()), (true, (number % 2 == 1).then_some(7)));
            tests.end(ended::SANITIZE, u64::from(number), None);
            assert_eq!((tests.is_running(), tests.deadline_ns()), (false, None));
        }
        tests.end(ended::WELL, 0, None);
        let mut expected = SelfTestResult::new_zeroed();
        let results = (5..25).rev().map(|number| {
            expected.status = 0x29;
            expected.set_power_on_hours(number);
            expected.set_namespace(number as u32);
            expected
        });
        assert!(tests.results.into_iter().eq(results));
    }

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
