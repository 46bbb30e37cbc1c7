//! Queues whose memory the host has unmapped, and may map again.
//!
//! Firmware does so: when SeaBIOS makes a part of its memory read-only, QEMU unmaps all of it and maps it
//! again in other regions. That includes the queues of an enabled controller. Such a queue is not served
//! meanwhile. The controller enters fatal status (Base 3.1.3.6) only if the host uses such a queue and waits
//! for it in vain.

use sluice_nvme::CompletionEntry;

/// Time that a host may wait for an unmapped queue.
pub(crate) const FATAL_AFTER_NS: u64 = 1_000_000_000;

/// Time between two checks whether the host waits.
pub(crate) const CHECK_NS: u64 = 100_000_000;

/// State while queues are unmapped.
#[derive(Debug, Default)]
pub(crate) struct UnmappedQueues {
    /// Time of the next check whether the host waits; none if no queue is unmapped.
    pub(crate) check_ns: Option<u64>,
    /// Time since which the host waits.
    pub(crate) wanted_ns: Option<u64>,
    /// Completions of commands that were in flight, with their queue.
    pub(crate) entries: Vec<(u16, CompletionEntry)>,
}

impl UnmappedQueues {
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.check_ns
    }

    /// Starts the checks, after a queue was found to be unmapped.
    pub(crate) fn begin(&mut self) {
        // The first check is in the next turn, where the time is available.
        self.check_ns.get_or_insert(0);
    }

    /// Holds a completion for an unmapped queue. Its slot stays reserved.
    #[cold]
    pub(crate) fn hold(&mut self, cq: u16, entry: CompletionEntry) {
        self.entries.push((cq, entry));
    }

    /// Returns the number of completions that wait for their queue.
    pub(crate) fn held(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Drops the completions of a deleted queue.
    pub(crate) fn forget(&mut self, cq: u16) {
        self.entries.retain(|(queue, _)| *queue != cq);
    }
}
