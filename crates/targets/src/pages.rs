//! Which huge pages of a drive in memory were taken from the machine, and the commands that wait for one.
//!
//! The machine makes a page zeros before it gives it, and may have to find it first: milliseconds for a huge one, which
//! a reactor does not have. So the kernel is asked for it, on a thread of its own, before the first write to it.

use sluice_command::Ticket;
use sluice_memory::Arena;
use sluice_reactor::{Io, TaskId};
use std::collections::VecDeque;

const EXTENT: u64 = Arena::HUGE_PAGE as u64;

/// Pages, and who waits for them.
pub(crate) struct Pages {
    taken: Taken,
    io: Io,
    task: TaskId,
    /// Beside the 32 bits of a ticket, what a token of the layer looks like.
    token_prefix: u64,
    /// Parked, the oldest first; one page at a time is asked for, which is the first that its front needs.
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: Ticket,
    offset: u64,
    length: u64,
    /// The page that was asked for when it came to the front.
    extent: u64,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl Pages {
    pub(crate) fn new(io: Io, task: TaskId, token_prefix: u64) -> Self {
        Self { taken: Taken::default(), io, task, token_prefix, waiting: VecDeque::new() }
    }

    /// True if all of this can be written without taking a page.
    #[inline]
    pub(crate) fn are_taken(&self, offset: u64, length: u64) -> bool {
        self.taken.missing(offset, length).is_none()
    }

    /// A parked command waits for its pages.
    pub(crate) fn wait(&mut self, arena: &Arena, ticket: Ticket, offset: u64, length: u64) {
        self.waiting.push_back(Waiting { ticket, offset, length, extent: 0 });
        if self.waiting.len() == 1 {
            self.ask(arena);
        }
    }

    /// Asks for the first page that is missing of what the oldest command wants; false if nobody waits for one.
    fn ask(&mut self, arena: &Arena) -> bool {
        let Some(front) = self.waiting.front_mut() else { return false };
        let Some(extent) = self.taken.missing(front.offset, front.length) else { return false };
        front.extent = extent;
        let token = self.token_prefix | u64::from(front.ticket.0);
        let (address, length) = arena.address_of(extent * EXTENT, Arena::HUGE_PAGE);
        self.io.populate(address, length, self.task, token);
        true
    }

    /// The page that was asked for has come, or will not: then the write itself takes it. The next command that waits no
    /// more; none when a page was asked for, or nobody waits.
    pub(crate) fn next_ready(&mut self, arena: &Arena) -> Option<Ticket> {
        if self.ask(arena) {
            return None;
        }
        self.waiting.pop_front().map(|ready| ready.ticket)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn came(&mut self) {
        if let Some(front) = self.waiting.front() {
            self.taken.note(front.extent);
        }
    }

    /// This was made zeros, and whole pages of it given back; or it is no more.
    pub(crate) fn given_back(&mut self, offset: u64, length: u64) {
        self.taken.forget(offset, length);
    }
}

/// A bit for each huge page.
#[derive(Default)]
struct Taken(Vec<u64>);

impl Taken {
    #[inline]
    fn has(&self, extent: u64) -> bool {
        self.0.get((extent / 64) as usize).is_some_and(|word| word >> (extent % 64) & 1 != 0)
    }

    /// The first page with some of these bytes that was not taken.
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

    /// Those that lie in these bytes as a whole, and the last also if it does not: it is asked for once more.
    fn forget(&mut self, offset: u64, length: u64) {
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
        let mut taken = Taken::default();
        assert_eq!(taken.missing(0, 512), Some(0));
        taken.note(0);
        assert_eq!(taken.missing(0, EXTENT), None);
        assert_eq!(taken.missing(EXTENT - 512, 1024), Some(1));
        taken.note(1);
        taken.note(130);
        assert_eq!(taken.missing(EXTENT - 512, 1024), None);
        assert_eq!(taken.missing(130 * EXTENT, 1), None);
        assert_eq!(taken.missing(u64::from(u32::MAX) * EXTENT, 512), Some(u64::from(u32::MAX)));
    }

    #[test]
    fn pages_that_were_given_back_are_missing() {
        let mut taken = Taken::default();
        (0..4).for_each(|extent| taken.note(extent));
        taken.forget(512, 2 * EXTENT);
        assert_eq!([0, 1, 2, 3].map(|extent| taken.has(extent)), [true, false, false, true]);
        taken.forget(0, u64::MAX);
        assert_eq!(taken.missing(3 * EXTENT, 1), Some(3));
    }
}
