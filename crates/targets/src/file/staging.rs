//! Private buffers for data that the kernel cannot move directly.

use std::collections::VecDeque;
use std::io;

use sluice_command::Ticket;
use sluice_memory::{Segment, SegmentList, SharedRegion};

/// Size of one buffer in bytes; a longer request goes through it chunk by chunk.
pub(super) const BUFFER_BYTES: usize = 64 << 10;
/// Number of buffers of one drive. They take memory only once they are used.
pub(super) const BUFFERS: usize = 8;

/// Handle of a buffer. Not `Clone`: it is released exactly once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Buffer(usize);

/// The buffers of one drive, and the commands that wait for one.
#[derive(Debug)]
pub(super) struct Staging {
    region: SharedRegion,
    free: Vec<Buffer>,
    waiting: VecDeque<Ticket>,
}

impl Staging {
    pub(super) fn new() -> io::Result<Self> {
        let region = SharedRegion::new("sluice-staging", BUFFERS * BUFFER_BYTES)?;
        Ok(Self { region, free: (0..BUFFERS).map(Buffer).collect(), waiting: VecDeque::new() })
    }

    /// Takes a free buffer. Without one, appends the command to the queue.
    pub(super) fn acquire(&mut self, ticket: Ticket) -> Option<Buffer> {
        let buffer = self.free.pop();
        if buffer.is_none() {
            self.waiting.push_back(ticket);
        }
        buffer
    }

    /// Releases a buffer, for the [`next`](Self::next) command in the queue.
    pub(super) fn release(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// Returns the command that has waited longest and should retry, while a buffer is free.
    pub(super) fn next(&mut self) -> Option<Ticket> {
        if self.free.is_empty() { None } else { self.waiting.pop_front() }
    }

    /// Returns the first `length` bytes of a buffer as a segment for the kernel.
    pub(super) fn segment(&self, buffer: &Buffer, length: usize) -> Segment {
        debug_assert!(length <= BUFFER_BYTES);
        self.region.segment(buffer.0 * BUFFER_BYTES, length as u32)
    }

    /// Copies `length` bytes of a command's data, from `done` on, into a buffer.
    pub(super) fn gather(&self, data: &SegmentList, done: usize, buffer: &Buffer, length: usize) {
        self.region.gather(buffer.0 * BUFFER_BYTES, data, done, length);
    }

    /// Copies `length` bytes of a buffer into a command's data, from `done` on.
    pub(super) fn scatter(&self, buffer: &Buffer, length: usize, data: &SegmentList, done: usize) {
        self.region.scatter(buffer.0 * BUFFER_BYTES, data, done, length);
    }

    /// Zeroes the first `length` bytes of a buffer.
    pub(super) fn clear(&self, buffer: &Buffer, length: usize) {
        self.region.fill(buffer.0 * BUFFER_BYTES, length, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_no_buffer_is_told_when_there_is_one() {
        let mut staging = Staging::new().expect("memory");
        let mut taken: Vec<_> = (0..BUFFERS as u32).map(|n| staging.acquire(Ticket(n))).collect();
        assert!(taken.iter().all(Option::is_some));
        assert_eq!(staging.acquire(Ticket(100)), None);
        assert_eq!(staging.acquire(Ticket(101)), None);
        assert_eq!(staging.next(), None);
        staging.release(taken.pop().flatten().expect("it was taken"));
        assert_eq!(staging.next(), Some(Ticket(100)));
        // The command of ticket 100 needed no buffer.
        assert_eq!(staging.next(), Some(Ticket(101)));
        assert_eq!(staging.next(), None);
    }
}
