//! Queues from the side of a host that obeys the rules (Base 3.3.1).

use crate::guest::Guest;
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// A submission queue.
#[derive(Debug)]
pub struct SubmissionRing {
    pub cq: u16,
    address: u64,
    size: u32,
    pub tail: u32,
    /// Tail that the controller received last.
    pub rung: u32,
    /// Head that the controller reported last.
    head: u32,
    /// Commands that have not come back, by their CID.
    pub outstanding: BTreeMap<u16, SubmissionEntry>,
}

impl SubmissionRing {
    pub fn new(cq: u16, address: u64, size: u32) -> Self {
        Self { cq, address, size, tail: 0, rung: 0, head: 0, outstanding: BTreeMap::new() }
    }

    pub fn is_full(&self) -> bool {
        (self.tail + 1) % self.size == self.head
    }

    /// Puts an entry at the tail. There must be room.
    pub fn push(&mut self, guest: &mut Guest, entry: SubmissionEntry) {
        guest.poke(self.address + u64::from(self.tail) * SubmissionEntry::SIZE as u64, entry.as_bytes());
        self.tail = (self.tail + 1) % self.size;
        self.outstanding.insert(entry.cid, entry);
    }

    /// Sets the reported head, which only moves towards the tail that was rung.
    fn report_head(&mut self, head: u32) {
        let distance = |to: u32| (to + self.size - self.head) % self.size;
        let is_between = head < self.size && distance(head) <= distance(self.rung);
        assert!(is_between, "head {head} is not between {} and {}", self.head, self.rung);
        self.head = head;
    }

    /// Returns the command that a completion is for.
    pub fn take(&mut self, completion: &CompletionEntry) -> SubmissionEntry {
        self.report_head(completion.sq_head.into());
        let entry = self.outstanding.remove(&completion.cid);
        entry.unwrap_or_else(|| panic!("a completion for nothing: {completion:x?}"))
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionRing {
    address: u64,
    size: u32,
    pub head: u32,
    phase: bool,
}

impl CompletionRing {
    pub fn new(address: u64, size: u32) -> Self {
        Self { address, size, head: 0, phase: true }
    }

    /// Takes the entry at the head, if it was written.
    pub fn pop(&mut self, guest: &Guest) -> Option<CompletionEntry> {
        let mut bytes = [0; CompletionEntry::SIZE];
        guest.peek(self.address + u64::from(self.head) * CompletionEntry::SIZE as u64, &mut bytes);
        let entry = CompletionEntry::read_from_bytes(&bytes).ok()?;
        if entry.phase() != self.phase {
            return None;
        }
        self.head = (self.head + 1) % self.size;
        self.phase ^= self.head == 0;
        Some(entry)
    }
}
