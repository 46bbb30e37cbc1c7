//! Order of overlapping commands.
//!
//! The page cache moves a page at a time, so a read may see half of a write, even of one block. NVMe forbids
//! that: a block is written as a whole (NVM Command Set 1.1, 2.1.4.1: AWUN is at least one block). Direct I/O
//! in units smaller than a block has the same defect. In both cases a command waits for the earlier commands
//! that overlap it, unless both only read.

use sluice_command::{Request, Ticket};
use std::collections::VecDeque;

/// Command in progress or waiting.
#[derive(Debug, Clone, Copy)]
struct Claim {
    ticket: Ticket,
    start: u64,
    end: u64,
    changes: bool,
    waits: bool,
}

impl Claim {
    fn conflicts(&self, other: &Claim) -> bool {
        (self.changes || other.changes) && self.start < other.end && other.start < self.end
    }
}

/// Commands of a file, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    claims: Vec<Claim>,
    /// Commands that need not wait any more.
    ready: VecDeque<Ticket>,
}

impl Conflicts {
    /// Adds a command that has a range. Returns whether it must wait.
    pub(super) fn enter(&mut self, ticket: Ticket, request: &Request) -> bool {
        let Request { offset, operation, .. } = *request;
        let changes = operation.modifies();
        let mut claim = Claim { ticket, start: offset, end: request.end(), changes, waits: false };
        claim.waits = self.claims.iter().any(|before| before.conflicts(&claim));
        self.claims.push(claim);
        claim.waits
    }

    /// Removes a command that has ended, if it was added. Commands that waited for no other become ready.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        let Some(index) = self.claims.iter().position(|claim| claim.ticket == ticket) else { return };
        let left = self.claims.remove(index);
        for later in index..self.claims.len() {
            let (before, rest) = self.claims.split_at_mut(later);
            let claim = &mut rest[0];
            let waited = claim.waits && claim.conflicts(&left);
            if waited && !before.iter().any(|before| before.conflicts(claim)) {
                claim.waits = false;
                self.ready.push_back(claim.ticket);
            }
        }
    }

    /// Returns the next command that is ready.
    pub(super) fn next(&mut self) -> Option<Ticket> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluice_command::Operation;

    fn request(operation: Operation, offset: u64, length: u64) -> Request {
        Request { operation, offset, length, ..Request::default() }
    }

    fn ready(conflicts: &mut Conflicts) -> Vec<u32> {
        std::iter::from_fn(|| conflicts.next()).map(|ticket| ticket.0).collect()
    }

    #[test]
    fn reads_share_and_a_write_waits_for_them_and_they_for_it() {
        let mut conflicts = Conflicts::default();
        assert!(!conflicts.enter(Ticket(1), &request(Operation::Read, 0, 8)));
        assert!(!conflicts.enter(Ticket(2), &request(Operation::Read, 4, 8)));
        assert!(conflicts.enter(Ticket(3), &request(Operation::Write, 6, 2)));
        assert!(conflicts.enter(Ticket(4), &request(Operation::Read, 0, 7)), "it came after the write");
        assert!(!conflicts.enter(Ticket(5), &request(Operation::Deallocate, 12, 4)), "beside all others");
        conflicts.leave(Ticket(1));
        assert!(ready(&mut conflicts).is_empty());
        conflicts.leave(Ticket(2));
        assert_eq!(ready(&mut conflicts), [3]);
        conflicts.leave(Ticket(3));
        assert_eq!(ready(&mut conflicts), [4]);
        conflicts.leave(Ticket(77));
    }

    proptest! {
        /// Checks that in any order no two commands in progress conflict, and that all of them are done in
        /// the end.
        #[test]
        fn nobody_is_at_work_beside_a_conflict_and_nobody_is_forgotten(
            commands in prop::collection::vec((any::<bool>(), 0u64..16, 1u64..6), 1..60),
            order in prop::collection::vec(any::<prop::sample::Index>(), 60),
        ) {
            let mut conflicts = Conflicts::default();
            let requests: Vec<Request> = commands.iter().map(|&(writes, offset, length)| {
                request(if writes { Operation::Write } else { Operation::Read }, offset, length)
            }).collect();
            let overlap = |a: &Request, b: &Request| {
                (a.operation.modifies() || b.operation.modifies()) && a.offset < b.end() && b.offset < a.end()
            };
            let (mut working, mut finished): (Vec<usize>, usize) = (Vec::new(), 0);
            for (number, next) in requests.iter().enumerate() {
                if !conflicts.enter(Ticket(number as u32), next) {
                    working.push(number);
                }
            }
            while !working.is_empty() {
                for (at, &one) in working.iter().enumerate() {
                    for &other in &working[..at] {
                        prop_assert!(!overlap(&requests[one], &requests[other]), "{one} beside {other}");
                    }
                }
                let over = working.swap_remove(order[finished].index(working.len()));
                conflicts.leave(Ticket(over as u32));
                finished += 1;
                working.extend(ready(&mut conflicts).into_iter().map(|number| number as usize));
            }
            prop_assert_eq!(finished, requests.len());
        }
    }
}
