//! Changes of ranges of the file, cut into chunks that the kernel finishes soon.
//!
//! One call for a whole range takes as long as the file has extents there, and nothing ends it before. ext4
//! takes about 60 us for each extent; the time of a device is unbounded. Each chunk is timed, and its time
//! decides the length of the next. One chunk of a file runs at a time, since the kernel locks the file for
//! each; commands take turns. Hosts cut long ranges into many commands: commands that continue where a chunk
//! ends become part of it.

use std::collections::VecDeque;

use sluice_command::Ticket;

use super::open::Kind;

/// Time below which the next chunk is twice as long, ns.
const SHORT_NS: u64 = 10_000_000;
/// Time above which the next chunk is shorter, ns.
const LONG_NS: u64 = 50_000_000;
/// Length of the first chunk, bytes.
const FIRST: u64 = 4 << 20;

/// Returns the lengths of the shortest and the longest chunk, bytes. A chunk can meet more extents than the
/// one before, so even the longest of a regular file has few: 2048 at 8 KiB each. A device may have no
/// extents, and large units.
fn bounds(kind: Kind) -> (u64, u64) {
    match kind {
        Kind::Regular => (64 << 10, 16 << 20),
        Kind::BlockDevice => (1 << 20, 256 << 20),
    }
}

/// Chunk that is with the kernel.
#[derive(Debug)]
struct Running {
    ticket: Ticket,
    since_ns: u64,
    /// Bytes of the command that began the chunk.
    bytes: u64,
    /// Bytes of all commands in the chunk.
    total: u64,
}

/// The commands that change a range, and the length of their chunks.
#[derive(Debug)]
pub(super) struct ChunkQueue {
    waiting: VecDeque<Ticket>,
    running: Option<Running>,
    /// Other commands whose rest is part of that chunk, with their bytes.
    joined: Vec<(Ticket, u64)>,
    /// Length of the next chunk in bytes; a power of two.
    length: u64,
    bounds: (u64, u64),
}

impl ChunkQueue {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            waiting: VecDeque::new(),
            running: None,
            joined: Vec::new(),
            length: FIRST,
            bounds: bounds(kind),
        }
    }

    /// Adds a command that has a chunk to be done.
    pub(super) fn join(&mut self, ticket: Ticket) {
        self.waiting.push_back(ticket);
    }

    /// Returns the next command, if no chunk is with the kernel.
    pub(super) fn next(&mut self) -> Option<Ticket> {
        self.running.is_none().then(|| self.waiting.pop_front()).flatten()
    }

    /// Begins a chunk of the `left` bytes of a command from `offset` on. Returns its length.
    ///
    /// A chunk ends at a multiple of the length, so that it cuts no unit of a device.
    pub(super) fn begin(&mut self, ticket: Ticket, offset: u64, left: u64, now_ns: u64) -> u64 {
        let end = offset.saturating_add(self.length);
        let bytes = (end - end % self.length - offset).min(left);
        self.running = Some(Running { ticket, since_ns: now_ns, bytes, total: bytes });
        bytes
    }

    /// Returns the command that may become part of the chunk, with the maximum of its remaining bytes.
    pub(super) fn candidate(&self) -> Option<(Ticket, u64)> {
        let room = self.length.saturating_sub(self.running.as_ref()?.total);
        self.waiting.front().map(|ticket| (*ticket, room))
    }

    /// Makes that command's `bytes` part of the chunk.
    pub(super) fn extend(&mut self, bytes: u64) {
        if let (Some(running), Some(ticket)) = (&mut self.running, self.waiting.pop_front()) {
            running.total += bytes;
            self.joined.push((ticket, bytes));
        }
    }

    /// Returns the other commands of the chunk that has ended. The caller returns the list by
    /// [`recycle`](Self::recycle).
    pub(super) fn joined(&mut self) -> Vec<(Ticket, u64)> {
        std::mem::take(&mut self.joined)
    }

    /// Keeps the memory of the list.
    pub(super) fn recycle(&mut self, mut joined: Vec<(Ticket, u64)>) {
        joined.clear();
        self.joined = joined;
    }

    /// Ends the chunk of this command. Returns the command's own bytes; `None` if it has no chunk with the
    /// kernel.
    pub(super) fn end(&mut self, ticket: Ticket, now_ns: u64) -> Option<u64> {
        let Running { since_ns, bytes, total, .. } = self.running.take_if(|it| it.ticket == ticket)?;
        let (shortest, longest) = self.bounds;
        let mut took_ns = now_ns.saturating_sub(since_ns);
        if took_ns < SHORT_NS && total > self.length / 2 {
            self.length = (2 * self.length).min(longest);
        }
        while took_ns > LONG_NS && self.length > shortest {
            (self.length, took_ns) = (self.length / 2, took_ns / 2);
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;

    /// Lets one command change `bytes`, where each 8 KiB take `ns`. Returns the longest time of a chunk.
    fn run(chunks: &mut ChunkQueue, bytes: u64, ns: u64) -> u64 {
        let (mut done, mut now_ns, mut longest) = (0, 0, 0);
        while done < bytes {
            chunks.join(Ticket(1));
            assert_eq!(chunks.next(), Some(Ticket(1)));
            let chunk = chunks.begin(Ticket(1), done, bytes - done, now_ns);
            assert!(chunk > 0 && chunk <= bytes - done);
            let took = chunk / 8192 * ns;
            (now_ns, longest) = (now_ns + took, longest.max(took));
            assert_eq!(chunks.end(Ticket(1), now_ns), Some(chunk));
            done += chunk;
        }
        longest
    }

    #[test]
    fn chunks_get_shorter_where_they_take_long_and_longer_where_they_do_not() {
        let mut chunks = ChunkQueue::new(Kind::Regular);
        run(&mut chunks, 64 * MIB, 0);
        assert_eq!(chunks.length, 16 * MIB);
        // This is as slow as ext4 with an extent every 8 KiB. Only the first chunk has a length without a
        // measurement.
        assert!(run(&mut chunks, 64 * MIB, 60_000) < 150 * MS);
        assert!(run(&mut chunks, 64 * MIB, 60_000) <= LONG_NS);
        // This disk makes hardly any progress.
        run(&mut chunks, 64 * MIB, 10 * MS);
        assert!(run(&mut chunks, MIB, 10 * MS) <= 100 * MS, "no longer than the shortest chunk");
        run(&mut chunks, 64 * MIB, 0);
        assert_eq!(chunks.length, 16 * MIB);
    }

    /// Returns the length of the chunk after one of these bytes that took so long.
    fn length_after(kind: Kind, length: u64, bytes: u64, took_ns: u64) -> u64 {
        let mut chunks = ChunkQueue { length, ..ChunkQueue::new(kind) };
        assert_eq!(chunks.begin(Ticket(1), 0, bytes, 0), bytes);
        assert_eq!(chunks.end(Ticket(1), took_ns), Some(bytes));
        chunks.length
    }

    #[test]
    fn the_time_and_the_bytes_of_a_chunk_decide_the_length_of_the_next() {
        for (length, bytes, took_ns, next) in [
            (4 * MIB, 2 * MIB + 1, SHORT_NS - 1, 8 * MIB),
            (4 * MIB, 2 * MIB, 0, 4 * MIB),
            (4 * MIB, 4 * MIB, SHORT_NS, 4 * MIB),
            (4 * MIB, 4 * MIB, LONG_NS, 4 * MIB),
            (4 * MIB, 512, LONG_NS + 1, 2 * MIB),
            (4 * MIB, 4 * MIB, 2 * LONG_NS + 1, 2 * MIB),
            (4 * MIB, 4 * MIB, 2 * LONG_NS + 2, MIB),
        ] {
            assert_eq!(length_after(Kind::Regular, length, bytes, took_ns), next, "{bytes} in {took_ns} ns");
        }
        for (kind, shortest, longest) in
            [(Kind::Regular, MIB / 16, 16 * MIB), (Kind::BlockDevice, MIB, 256 * MIB)]
        {
            for length in [shortest, 4 * MIB, longest] {
                assert_eq!(length_after(kind, length, length, u64::MAX), shortest, "{kind:?}");
            }
            assert_eq!(length_after(kind, longest / 2, longest / 2, 0), longest, "{kind:?}");
            assert_eq!(length_after(kind, longest, longest, 0), longest, "{kind:?}");
        }
    }

    #[test]
    fn commands_that_go_on_where_a_chunk_ends_are_part_of_it() {
        let mut chunks = ChunkQueue::new(Kind::Regular);
        (1..=3).for_each(|number| chunks.join(Ticket(number)));
        assert_eq!(chunks.candidate(), None, "there is no chunk");
        assert_eq!(chunks.next(), Some(Ticket(1)));
        assert_eq!(chunks.begin(Ticket(1), 0, MIB, 0), MIB);
        assert_eq!(chunks.candidate(), Some((Ticket(2), 3 * MIB)));
        chunks.extend(2 * MIB);
        assert_eq!(chunks.candidate(), Some((Ticket(3), MIB)));
        assert_eq!(chunks.end(Ticket(1), 0), Some(MIB), "its own");
        assert_eq!(chunks.length, 8 * MIB, "all of it was short");
        let joined = chunks.joined();
        assert_eq!(joined, [(Ticket(2), 2 * MIB)]);
        chunks.recycle(joined);
        assert_eq!((chunks.joined().len(), chunks.next()), (0, Some(Ticket(3))));
    }

    #[test]
    fn one_chunk_runs_at_a_time_and_commands_take_turns() {
        let mut chunks = ChunkQueue::new(Kind::BlockDevice);
        chunks.join(Ticket(1));
        chunks.join(Ticket(2));
        assert_eq!(chunks.next(), Some(Ticket(1)));
        // The chunk ends at a multiple of its length.
        assert_eq!(chunks.begin(Ticket(1), MIB, 64 * MIB, 0), 3 * MIB);
        assert_eq!((chunks.next(), chunks.end(Ticket(2), 0)), (None, None));
        assert_eq!(chunks.end(Ticket(1), 0), Some(3 * MIB));
        chunks.join(Ticket(1));
        assert_eq!(chunks.next(), Some(Ticket(2)));
        // The last chunk of a range may be short.
        assert_eq!(chunks.begin(Ticket(2), 4 * MIB, 512, 0), 512);
        assert_eq!(chunks.end(Ticket(2), 0), Some(512));
        assert_eq!((chunks.next(), chunks.next()), (Some(Ticket(1)), None));
    }
}
