//! A plain reading of verdicts, bit by bit from the table, for one command without steering.

use crate::{Hook, Verdict};
use sluice_nvme::Status;
use std::collections::BTreeMap;

/// Paths of the drive, and legs that it has room for.
const PATHS: usize = 4;

#[derive(Default)]
pub(super) struct Model {
    /// Every leg that was started, with its last end, or none while it is in flight.
    legs: BTreeMap<usize, Option<Status>>,
    word: u64,
    /// Status that the command is finished with, whether or not it can be completed yet.
    outcome: Option<Status>,
    was_good: bool,
    completed: Option<Status>,
    /// Calls of the program that were processed.
    seen: usize,
}

impl Model {
    pub(super) fn status(&self) -> Option<Status> {
        self.completed
    }

    pub(super) fn in_flight(&self) -> Vec<usize> {
        self.legs.iter().filter(|(_, end)| end.is_none()).map(|(&leg, _)| leg).collect()
    }

    /// Models the submission hook.
    pub(super) fn submitted(&mut self, calls: &[(Hook, Verdict)]) {
        self.call(Hook::Submission, calls);
        self.end(calls);
    }

    /// Models the end of a leg.
    pub(super) fn leg_done(&mut self, leg: usize, status: Status, calls: &[(Hook, Verdict)]) {
        assert_eq!(self.legs.insert(leg, Some(status)), Some(None), "it was in flight");
        self.was_good |= status.is_success();
        if self.outcome.is_none() && self.word >> (8 + leg) & 1 == 1 {
            self.call(Hook::LegDone(super::leg(leg as u8), status), calls);
        }
        self.judge();
        self.end(calls);
    }

    /// Models the program's next call, which must be at this hook.
    fn call(&mut self, hook: Hook, calls: &[(Hook, Verdict)]) {
        let (at, Verdict(word)) = calls[self.seen];
        self.seen += 1;
        assert_eq!(at, hook);
        let is_last = matches!(hook, Hook::BeforeCompletion(_));
        if is_last && word & 0xffff != 0 || !self.is_possible(word) {
            self.outcome = Some(Status::INTERNAL_ERROR);
            self.word = 0;
            return;
        }
        self.outcome = None;
        self.word = word;
        for leg in (0..PATHS).filter(|leg| word >> leg & 1 == 1) {
            self.legs.insert(leg, None);
        }
        self.judge();
    }

    fn is_possible(&self, word: u64) -> bool {
        let (rule, leg) = (word >> 48 & 15, (word >> 52 & 15) as usize);
        let (start, events) = (word & 0xff, word >> 8 & 0x7f);
        let has_status = word >> 32 & 0xffff != 0;
        let flying: u64 = self.in_flight().iter().map(|leg| 1 << leg).sum();
        let started = |leg: usize| self.legs.contains_key(&leg) || leg < PATHS && start >> leg & 1 == 1;
        let any_started = !self.legs.is_empty() || start != 0;
        let rule_is_possible = match rule {
            0 => leg == 0 && events != 0 && !has_status,
            1 => leg == 0 && word >> 47 & 1 == 0,
            2 => started(leg) && !has_status,
            3 | 4 => (started(leg) || leg == 15 && any_started) && !has_status,
            _ => false,
        };
        word >> 56 == 0
            && rule_is_possible
            && start >> PATHS == 0
            && start & flying == 0
            && events & !(start | flying) == 0
    }

    /// Applies the rule to the present state.
    fn judge(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        let leg = (self.word >> 52 & 15) as usize;
        let ends: Vec<Status> = self.legs.values().copied().flatten().collect();
        let all_done = ends.len() == self.legs.len();
        let winner =
            if leg == 15 { Some(self.first_error()) } else { self.legs.get(&leg).copied().flatten() };
        self.outcome = match self.word >> 48 & 15 {
            1 => Some(Status((self.word >> 32 & 0x7fff) as u16)),
            2 => winner,
            4 if ends.iter().any(|end| end.is_success()) => Some(Status::SUCCESS),
            3 | 4 if all_done => winner,
            _ => None,
        };
    }

    fn first_error(&self) -> Status {
        let mut ends = self.legs.values().copied().flatten();
        ends.find(|end| !end.is_success()).unwrap_or(Status::SUCCESS)
    }

    /// Completes the command if possible; then no further call is allowed.
    fn end(&mut self, calls: &[(Hook, Verdict)]) {
        if let Some(outcome) = self.outcome
            && self.in_flight().is_empty()
        {
            if self.word >> 15 & 1 == 1 {
                self.call(Hook::BeforeCompletion(outcome), calls);
            }
            let outcome = self.outcome.expect("nothing is left to wait for");
            let error = self.first_error();
            self.completed = Some(match outcome.is_success() && !self.was_good {
                true if error.is_success() => Status::INTERNAL_ERROR,
                true => error,
                false => outcome,
            });
        }
        assert_eq!(self.seen, calls.len(), "the program was called when it need not be");
    }
}
