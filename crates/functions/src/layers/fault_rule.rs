//! Fault rules as values: the commands that a rule hits, the times at which it does, and their outcome.

use crate::Random;
use sluice_command::{Operation, Request};
use sluice_nvme::Status;
use std::num::NonZeroU64;
use std::ops::Range;

/// Kind of error, and the commands that it applies to.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Operations that match; an empty list means all.
    pub operations: Vec<Operation>,
    /// Byte range that a request must touch to match. A Flush touches none.
    pub bytes: Option<Range<u64>>,
    /// Matching commands that pass before the first is considered.
    pub skip: u64,
    /// Selection among the considered commands.
    pub when: When,
    /// Hits after which the rule is used up.
    pub limit: Option<NonZeroU64>,
    pub outcome: Outcome,
}

/// Selection among the commands that match a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum When {
    #[default]
    Always,
    /// The first, and every n-th from there on.
    Every(NonZeroU64),
    /// Each with this probability, from 0.0 to 1.0, drawn from the function's seed.
    Chance(f64),
}

/// Outcome of a command that is hit. Data is never changed on its way: silent corruption would be another
/// function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Finished with this status; the layer below never saw the command.
    Fail(Status),
    /// Done by the layer below, and finished with this status nevertheless: the answer was lost.
    FailAfterwards(Status),
    /// Moves only this many first bytes of a read or write, rounded down to a block. The status is
    /// Unrecovered Read Error or Write Fault, as for any error. Commands without data, and those not longer
    /// than this, pass.
    Short(u64),
    /// Held until released.
    Hang,
}

impl Rule {
    /// Creates a rule that hits every command, as the start of a narrower one.
    pub fn new(outcome: Outcome) -> Self {
        Self { operations: Vec::new(), bytes: None, skip: 0, when: When::Always, limit: None, outcome }
    }

    fn matches(&self, request: &Request) -> bool {
        let operation = self.operations.is_empty() || self.operations.contains(&request.operation);
        let bytes = self.bytes.as_ref().is_none_or(|hit| {
            // Overlap is checked at both ends; an empty request lies nowhere.
            request.length > 0 && request.offset < hit.end && hit.start < request.end()
        });
        operation && bytes
    }
}

/// Rule with its counters.
#[derive(Debug)]
pub(crate) struct ActiveRule {
    rule: Rule,
    matched: u64,
    hits: u64,
}

impl ActiveRule {
    pub(crate) fn new(rule: Rule) -> Self {
        Self { rule, matched: 0, hits: 0 }
    }

    /// Returns whether the rule needs a child command for short transfers.
    pub(crate) fn shortens(&self) -> bool {
        matches!(self.rule.outcome, Outcome::Short(_))
    }

    pub(crate) fn hits(&self) -> u64 {
        self.hits
    }

    pub(crate) fn matched(&self) -> u64 {
        self.matched
    }

    /// Returns the outcome, if the rule hits this request.
    pub(crate) fn hit(&mut self, request: &Request, random: &mut Random) -> Option<Outcome> {
        if !self.rule.matches(request) {
            return None;
        }
        let earlier = self.matched;
        self.matched += 1;
        let considered = earlier.checked_sub(self.rule.skip)?;
        if self.rule.limit.is_some_and(|limit| self.hits >= limit.get()) {
            return None;
        }
        let hit = match self.rule.when {
            When::Always => true,
            When::Every(nth) => considered % nth == 0,
            When::Chance(probability) => random.chance(probability),
        };
        self.hits += u64::from(hit);
        hit.then_some(self.rule.outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: Operation, offset: u64, length: u64) -> Request {
        Request { operation, offset, length, ..Request::default() }
    }

    fn hits(rule: Rule, requests: &[Request]) -> Vec<usize> {
        let mut active = ActiveRule::new(rule);
        let mut random = Random::new(3);
        let hit = |(number, request)| active.hit(request, &mut random).map(|_| number);
        requests.iter().enumerate().filter_map(hit).collect()
    }

    fn rule() -> Rule {
        Rule::new(Outcome::Hang)
    }

    #[test]
    fn ranges_overlap_by_any_byte_and_a_flush_lies_nowhere() {
        let requests = [
            request(Operation::Read, 0, 512),
            request(Operation::Read, 0, 513),
            request(Operation::Write, 1023, 512),
            request(Operation::Write, 1024, 512),
            request(Operation::Flush, 0, 0),
            request(Operation::Flush, 600, 0),
        ];
        assert_eq!(hits(Rule { bytes: Some(512..1024), ..rule() }, &requests), [1, 2]);
        assert_eq!(hits(rule(), &requests), [0, 1, 2, 3, 4, 5]);
        let flushes = Rule { operations: vec![Operation::Flush], ..rule() };
        assert_eq!(hits(flushes, &requests), [4, 5]);
    }

    #[test]
    fn skip_every_and_limit_count_only_what_matches() {
        let mut requests = vec![request(Operation::Write, 0, 512); 20];
        requests.insert(0, request(Operation::Read, 0, 512));
        let rule = Rule {
            operations: vec![Operation::Write],
            skip: 2,
            when: When::Every(NonZeroU64::new(3).expect("three")),
            limit: NonZeroU64::new(4),
            ..rule()
        };
        assert_eq!(hits(rule, &requests), [3, 6, 9, 12]);
    }

    #[test]
    fn chances_follow_the_seed() {
        let requests = vec![request(Operation::Read, 0, 512); 1000];
        let rule = Rule { when: When::Chance(0.25), ..rule() };
        let first = hits(rule.clone(), &requests);
        assert!((150..350).contains(&first.len()), "{}", first.len());
        assert_eq!(first, hits(rule, &requests));
    }
}
