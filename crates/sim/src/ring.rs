//! The host's side of submission and completion queues (Base 3.3.1).

use crate::Guest;
use sluice_nvme::{CompletionEntry, SubmissionEntry};
use std::collections::BTreeSet;
use zerocopy::{FromBytes, IntoBytes};

/// A submission queue from its host's side.
#[derive(Debug)]
pub struct SubmissionRing {
    pub id: u16,
    pub cq: u16,
    pub address: u64,
    pub size: u32,
    pub tail: u32,
    /// Tail that the controller received last.
    pub rung: u32,
    /// Head that the controller reported last.
    pub head: u32,
    /// Command identifiers in use.
    pub outstanding: BTreeSet<u16>,
}

impl SubmissionRing {
    pub fn new(id: u16, cq: u16, address: u64, size: u32) -> Self {
        Self { id, cq, address, size, tail: 0, rung: 0, head: 0, outstanding: BTreeSet::new() }
    }

    pub fn is_full(&self) -> bool {
        (self.tail + 1) % self.size == self.head
    }

    /// Writes an entry at the tail, without ringing the doorbell.
    pub fn push(&mut self, guest: &Guest, entry: &SubmissionEntry) {
        assert!(!self.is_full(), "the host looks first");
        assert!(self.outstanding.insert(entry.cid), "CID {} is in use", entry.cid);
        let at = self.address + u64::from(self.tail) * SubmissionEntry::SIZE as u64;
        guest.write(at, entry.as_bytes());
        self.tail = (self.tail + 1) % self.size;
    }

    /// Sets the head that a completion reports, which only moves towards the tail.
    pub fn report_head(&mut self, head: u32) {
        let distance = |to: u32| (to + self.size - self.head) % self.size;
        assert!(
            head < self.size && distance(head) <= distance(self.rung),
            "SQ {}: head {head} is not between {} and {}",
            self.id,
            self.head,
            self.rung
        );
        self.head = head;
    }
}

/// A completion queue from its host's side.
#[derive(Debug)]
pub struct CompletionRing {
    pub id: u16,
    pub address: u64,
    pub size: u32,
    pub head: u32,
    /// Head that the controller received last.
    pub rung: u32,
    phase: bool,
    /// Interrupt vector, if interrupts are on.
    pub vector: Option<u16>,
    /// Entries counted by [`fresh`](Self::fresh) and not taken yet.
    seen: u32,
}

impl CompletionRing {
    pub fn new(id: u16, address: u64, size: u32, vector: Option<u16>) -> Self {
        Self { id, address, size, head: 0, rung: 0, phase: true, vector, seen: 0 }
    }

    fn entry(&self, guest: &Guest, index: u32) -> CompletionEntry {
        let mut bytes = [0; CompletionEntry::SIZE];
        guest.read(self.address + u64::from(index) * CompletionEntry::SIZE as u64, &mut bytes);
        CompletionEntry::read_from_bytes(&bytes).expect("sixteen bytes")
    }

    /// Returns the number of written entries, from the head on.
    fn waiting(&self, guest: &Guest) -> u32 {
        let written = |ahead: &u32| {
            let index = self.head + ahead;
            let phase = self.phase ^ (index >= self.size);
            self.entry(guest, index % self.size).phase() == phase
        };
        let count = (0..self.size).take_while(written).count() as u32;
        // Entries that were taken and not freed yet are not free, and one entry always stays unused.
        let taken = (self.head + self.size - self.rung) % self.size;
        assert!(count + taken < self.size, "CQ {}: the controller wrote over entries of the host", self.id);
        count
    }

    /// Returns the number of entries written since the last call.
    pub fn fresh(&mut self, guest: &Guest) -> u32 {
        let waiting = self.waiting(guest);
        let fresh = waiting - self.seen;
        self.seen = waiting;
        fresh
    }

    /// Takes the entry at the head, if it was written.
    pub fn pop(&mut self, guest: &Guest) -> Option<CompletionEntry> {
        let entry = self.entry(guest, self.head);
        if entry.phase() != self.phase {
            return None;
        }
        self.head += 1;
        self.seen = self.seen.saturating_sub(1);
        if self.head == self.size {
            self.head = 0;
            self.phase = !self.phase;
        }
        Some(entry)
    }
}
