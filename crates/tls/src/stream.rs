//! A session whose connection a reactor drives: what the kernel sends and receives is ciphertext in shared
//! memory, what the two ends of a connection work with is content.

use crate::{Failure, Session, Suite};
use sluice_memory::{Segment, SharedRegion};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of ciphertext in one send.
const OUTBOX: usize = 16 * Session::SEALED_MAX;

/// Bytes of ciphertext that are received at once.
const INBOX: usize = 256 << 10;

/// A session, with ciphertext on its way in and out.
///
/// One send and one receive may be under way at a time, and name [`memory`](Self::memory).
#[derive(Debug)]
pub struct Stream {
    session: Box<Session>,
    /// The inbox, then the outbox.
    memory: Arc<SharedRegion>,
    /// Ciphertext in the inbox that was not looked at yet.
    arrived: Range<usize>,
    /// Ciphertext in the outbox that was not sent yet.
    sealed: Range<usize>,
    /// Content that it is of.
    content: usize,
}

impl Stream {
    /// # Errors
    /// There is no memory.
    pub fn new(session: Box<Session>) -> io::Result<Self> {
        let memory = Arc::new(SharedRegion::new("sluice-tls", INBOX + OUTBOX)?);
        Ok(Self { session, memory, arrived: 0..0, sealed: INBOX..INBOX, content: 0 })
    }

    /// What the kernel works with.
    pub fn memory(&self) -> &Arc<SharedRegion> {
        &self.memory
    }

    /// Where to receive to, when there is no [`content`](Self::content) any more.
    pub fn inbox(&self) -> Segment {
        self.memory.segment(0, INBOX as u32)
    }

    /// So many bytes were received.
    pub fn received(&mut self, bytes: usize) {
        debug_assert!(self.arrived.is_empty());
        self.arrived = 0..bytes;
    }

    /// Opens the next record with content, unless some is left. Returns the bytes of it; none if a record
    /// that is complete has yet to be received.
    ///
    /// # Errors
    /// The connection is over.
    #[inline]
    pub fn advance(&mut self) -> Result<usize, Failure> {
        while self.session.content().is_empty() && !self.arrived.is_empty() {
            let room = self.session.room();
            let count = room.len().min(self.arrived.len());
            self.memory.read(self.arrived.start, &mut room[..count]);
            self.arrived.start += count;
            self.session.filled(count)?;
        }
        Ok(self.session.content().len())
    }

    /// Gives the memory of ciphertext back to the machine, unless some is in it. Nothing may be under way.
    pub fn give_back(&self) {
        if self.arrived.is_empty() && self.sealed.is_empty() {
            self.memory.give_back(0, self.memory.len());
        }
    }

    /// What was opened and not taken yet.
    #[inline]
    pub fn content(&self) -> &[u8] {
        self.session.content()
    }

    /// All of it was taken.
    #[inline]
    pub fn take_all(&mut self) {
        self.session.take(self.session.content().len());
    }

    /// What it is encrypted with.
    pub fn suite(&self) -> Suite {
        self.session.suite()
    }

    /// Something is to be sent although nobody has content to send.
    #[inline]
    pub fn owes(&self) -> bool {
        self.session.owes() || !self.sealed.is_empty()
    }

    /// What to send next: what is left of the last ciphertext, or the next of `segments`, as much as fits.
    pub fn seal(&mut self, segments: &[Segment]) -> Segment {
        if self.sealed.is_empty() {
            self.refill(segments);
        }
        self.memory.segment(self.sealed.start, self.sealed.len() as u32)
    }

    fn refill(&mut self, segments: &[Segment]) {
        let Self { session, memory, sealed, content, .. } = self;
        (*sealed, *content) = (INBOX..INBOX, 0);
        let put = |record: &[u8], sealed: &mut Range<usize>| {
            memory.write(sealed.end, record);
            sealed.end += record.len();
        };
        if let Some(record) = session.notice() {
            put(record, sealed);
        }
        let mut from = Cursor { segments, offset: 0 };
        loop {
            let room = (INBOX + OUTBOX - sealed.end).saturating_sub(Session::OVERHEAD);
            let length = from.left(room.min(Session::CONTENT_MAX));
            if length == 0 {
                return;
            }
            put(session.seal(length, |room| from.read(room)), sealed);
            *content += length;
        }
    }

    /// So many bytes of ciphertext were sent. Once that was all, returns the bytes of content that it was.
    pub fn sent(&mut self, bytes: usize) -> Option<usize> {
        self.sealed.start = (self.sealed.start + bytes).min(self.sealed.end);
        self.sealed.is_empty().then(|| std::mem::take(&mut self.content))
    }

    /// Nothing of a record is left that was sent in part: another may follow.
    pub fn is_between_records(&self) -> bool {
        self.sealed.is_empty()
    }

    /// The session, for what is said without the reactor at the end of a connection.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }
}

/// A place in a list of segments.
struct Cursor<'a> {
    segments: &'a [Segment],
    /// In the first.
    offset: u32,
}

impl Cursor<'_> {
    /// Bytes from here on, or `limit` if that is fewer.
    fn left(&self, limit: usize) -> usize {
        let mut left = 0;
        for segment in self.segments {
            left += segment.len() as usize;
            if left - self.offset as usize >= limit {
                return limit;
            }
        }
        left - self.offset as usize * usize::from(!self.segments.is_empty())
    }

    /// Fills `room`, which is not longer than what is left.
    fn read(&mut self, mut room: &mut [u8]) {
        while let (Some(segment), false) = (self.segments.first(), room.is_empty()) {
            let count = room.len().min((segment.len() - self.offset) as usize);
            let (piece, rest) = room.split_at_mut(count);
            segment.slice(self.offset, count as u32).read(piece);
            room = rest;
            self.offset += count as u32;
            if self.offset == segment.len() {
                (self.segments, self.offset) = (&self.segments[1..], 0);
            }
        }
    }
}
