//! Huge pages of a memory drive that are populated, and the commands that wait for one.
//!
//! The kernel zeroes a page before it maps it, and may have to compact memory first. For a huge page that
//! takes milliseconds, which a reactor does not have. So before the first write to a page, a thread of the
//! kernel populates it.

use sluice_command::Ticket;
use sluice_memory::Arena;
use sluice_reactor::{Io, TaskId};
use std::collections::VecDeque;

const EXTENT: u64 = Arena::HUGE_PAGE as u64;

/// Populated pages, and the commands that wait for others.
pub(crate) struct Pages {
    populated: Populated,
    io: Io,
    task: TaskId,
    /// Part of this layer's tokens above the 32 bits of a ticket.
    token_prefix: u64,
    /// Parked commands, the oldest first. One page at a time is requested: the first that the oldest command
    /// needs.
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: Ticket,
    offset: u64,
    length: u64,
    /// The page that was requested when the command became the oldest.
    extent: u64,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Pages {
    pub(crate) fn new(io: Io, task: TaskId, token_prefix: u64) -> Self {
        Self { populated: Populated::default(), io, task, token_prefix, waiting: VecDeque::new() }
    }

    /// Returns whether this range can be written without a page fault.
    #[inline]
    pub(crate) fn are_populated(&self, offset: u64, length: u64) -> bool {
        self.populated.missing(offset, length).is_none()
    }

    /// Adds a parked command that waits for its pages.
    pub(crate) fn wait(&mut self, arena: &Arena, ticket: Ticket, offset: u64, length: u64) {
        self.waiting.push_back(Waiting { ticket, offset, length, extent: 0 });
        if self.waiting.len() == 1 {
            self.request_page(arena);
        }
    }

    /// Requests the first missing page of the oldest command; returns false if no command waits for one.
    fn request_page(&mut self, arena: &Arena) -> bool {
        let Some(front) = self.waiting.front_mut() else { return false };
        let Some(extent) = self.populated.missing(front.offset, front.length) else { return false };
        front.extent = extent;
        let token = self.token_prefix | u64::from(front.ticket.0);
        let (address, length) = arena.address_of(extent * EXTENT, Arena::HUGE_PAGE);
        self.io.populate(address, length, self.task, token);
        true
    }

    /// Returns the next command that waits no longer, once the requested page is populated or has failed.
    /// After a failure the write itself faults the page in. Returns none if a page was requested, or if no
    /// command waits.
    pub(crate) fn next_ready(&mut self, arena: &Arena) -> Option<Ticket> {
        if self.request_page(arena) {
            return None;
        }
        self.waiting.pop_front().map(|ready| ready.ticket)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn populated(&mut self) {
        if let Some(front) = self.waiting.front() {
            self.populated.note(front.extent);
        }
    }

    /// Removes the pages of a range that was zeroed and released, or cut off.
    pub(crate) fn released(&mut self, offset: u64, length: u64) {
        self.populated.clear(offset, length);
    }
}

/// A bit for each huge page.
#[derive(Default)]
struct Populated(Vec<u64>);

impl Populated {
    #[inline]
    fn has(&self, extent: u64) -> bool {
        self.0.get((extent / 64) as usize).is_some_and(|word| word >> (extent % 64) & 1 != 0)
    }

    /// Returns the first page of a range that is not populated.
    #[inline]
    fn missing(&self, offset: u64, length: u64) -> Option<u64> {
        let end = (offset + length).div_ceil(EXTENT);
        (offset / EXTENT..end).find(|extent| !self.has(*extent))
    }

    fn note(&mut self, extent: u64) {
        let word = (extent / 64) as usize;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (extent % 64);
    }

    /// Removes all pages that begin in these bytes. The last one is removed even if it ends behind them, and
    /// is then requested once more.
    fn clear(&mut self, offset: u64, length: u64) {
        let end = (offset.saturating_add(length).div_ceil(EXTENT)).min(self.0.len() as u64 * 64);
        for extent in offset.div_ceil(EXTENT)..end {
            self.0[(extent / 64) as usize] &= !(1 << (extent % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_found_page_by_page() {
        let mut populated = Populated::default();
        assert_eq!(populated.missing(0, 512), Some(0));
        populated.note(0);
        assert_eq!(populated.missing(0, EXTENT), None);
        assert_eq!(populated.missing(EXTENT - 512, 1024), Some(1));
        populated.note(1);
        populated.note(130);
        assert_eq!(populated.missing(EXTENT - 512, 1024), None);
        assert_eq!(populated.missing(130 * EXTENT, 1), None);
        assert_eq!(populated.missing(u64::from(u32::MAX) * EXTENT, 512), Some(u64::from(u32::MAX)));
    }

    #[test]
    fn pages_that_were_given_back_are_missing() {
        let mut populated = Populated::default();
        (0..4).for_each(|extent| populated.note(extent));
        populated.clear(512, 2 * EXTENT);
        assert_eq!([0, 1, 2, 3].map(|extent| populated.has(extent)), [true, false, false, true]);
        populated.clear(0, u64::MAX);
        assert_eq!(populated.missing(3 * EXTENT, 1), Some(3));
    }
}
