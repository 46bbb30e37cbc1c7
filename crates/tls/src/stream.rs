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

/// Bytes of an alert.
const ALERT: usize = 2;

/// A session, with received and unsent ciphertext.
///
/// One send and one receive may be in progress at a time, and name [`memory`](Self::memory).
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
    /// Closing alert that is sent behind all content, with the failure if there is one.
    last: Option<Option<Failure>>,
}

impl Stream {
    /// # Errors
    /// There is no memory.
    pub fn new(session: Box<Session>) -> io::Result<Self> {
        let memory = Arc::new(SharedRegion::new("sluice-tls", INBOX + OUTBOX)?);
        Ok(Self { session, memory, arrived: 0..0, sealed: INBOX..INBOX, content: 0, last: None })
    }

    /// Returns the memory for the kernel's operations.
    pub fn memory(&self) -> &Arc<SharedRegion> {
        &self.memory
    }

    /// Returns the segment to receive into, when there is no [`content`](Self::content) any more.
    pub fn inbox(&self) -> Segment {
        self.memory.segment(0, INBOX as u32)
    }

    /// Records that `bytes` were received.
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

    /// Releases the memory of ciphertext to the system, unless some is in it. No operation may be in
    /// progress.
    pub fn give_back(&self) {
        if self.arrived.is_empty() && self.sealed.is_empty() {
            self.memory.give_back(0, self.memory.len());
        }
    }

    /// Returns the opened content that was not taken yet.
    #[inline]
    pub fn content(&self) -> &[u8] {
        self.session.content()
    }

    /// Removes all of the content.
    #[inline]
    pub fn take_all(&mut self) {
        self.session.take(self.session.content().len());
    }

    /// Returns the cipher suite.
    pub fn suite(&self) -> Suite {
        self.session.suite()
    }

    /// Returns whether there is something to send even without content.
    #[inline]
    pub fn owes(&self) -> bool {
        self.session.owes() || !self.sealed.is_empty() || self.last.is_some()
    }

    /// Returns the ciphertext to send next: the unsent rest, or records of as much of `segments` as fits.
    pub fn seal(&mut self, segments: &[Segment]) -> Segment {
        if self.sealed.is_empty() {
            self.refill(segments);
        }
        self.memory.segment(self.sealed.start, self.sealed.len() as u32)
    }

    fn refill(&mut self, segments: &[Segment]) {
        let Self { session, memory, sealed, content, last, .. } = self;
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
                if from.is_over()
                    && room >= ALERT
                    && let Some(failure) = last.take()
                {
                    put(session.farewell(failure), sealed);
                }
                return;
            }
            put(session.seal(length, |room| from.read(room)), sealed);
            *content += length;
        }
    }

    /// Records that `bytes` of ciphertext were sent. After the last of them, returns the bytes of content.
    pub fn sent(&mut self, bytes: usize) -> Option<usize> {
        self.sealed.start = (self.sealed.start + bytes).min(self.sealed.end);
        self.sealed.is_empty().then(|| std::mem::take(&mut self.content))
    }

    /// Returns the session, for its negotiated parameters.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Ends the connection behind the bytes that are being sent, with this failure if there is one.
    pub fn end(&mut self, failure: Option<Failure>) {
        self.last = Some(failure);
    }

    /// Returns the last bytes of a connection, which are sent without the reactor when no send is in
    /// progress. They are the unsent ciphertext, so that it does not end inside a record, the last content,
    /// and the closing alert.
    pub fn farewell(&mut self, words: &[u8], failure: Option<Failure>) -> Vec<u8> {
        let mut last = vec![0; self.sealed.len()];
        self.memory.read(self.sealed.start, &mut last);
        self.sealed.start = self.sealed.end;
        if !words.is_empty() {
            last.extend(self.session.seal(words.len(), |room| room.copy_from_slice(words)));
        }
        last.extend(self.session.farewell(failure));
        last
    }
}

/// A place in a list of segments.
struct Cursor<'a> {
    segments: &'a [Segment],
    /// Offset in the first segment.
    offset: u32,
}

impl Cursor<'_> {
    fn is_over(&self) -> bool {
        self.left(1) == 0
    }

    /// Returns the remaining bytes, or `limit` if that is fewer.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hash;

    /// Opens records that end with an alert; returns their content, and the alert.
    fn opened(far: &mut Session, mut records: &[u8]) -> (Vec<u8>, Failure) {
        let mut received = Vec::new();
        loop {
            let room = far.room();
            let (record, behind) = records.split_at(room.len());
            room.copy_from_slice(record);
            records = behind;
            if let Err(failure) = far.filled(record.len()) {
                assert!(records.is_empty(), "it comes last");
                return (received, failure);
            }
            received.extend_from_slice(far.content());
            far.take(far.content().len());
        }
    }

    #[test]
    fn an_alert_comes_behind_what_was_sent_in_part() {
        let (near, mut far) = Session::pair(Hash::Sha384);
        let mut stream = Stream::new(Box::new(near)).expect("memory");
        let content = SharedRegion::new("content", 4096).expect("memory");
        content.write(0, &[7; 4096]);
        let sealed = stream.seal(&[content.segment(0, 4096)]);
        let mut sent = vec![0; 1000];
        sealed.slice(0, 1000).read(&mut sent);
        assert_eq!(stream.sent(sent.len()), None);
        sent.extend(stream.farewell(b"last", None));
        assert!(!stream.owes());
        let (received, end) = opened(&mut far, &sent);
        assert_eq!(received, [&[7; 4096][..], b"last"].concat());
        assert!(end.is_end());
    }

    /// Sends more than fits into one send.
    #[test]
    fn an_alert_comes_behind_all_that_is_to_be_sent() {
        const CONTENT: usize = 2 * OUTBOX + 5;
        let (near, mut far) = Session::pair(Hash::Sha256);
        let mut stream = Stream::new(Box::new(near)).expect("memory");
        let content = SharedRegion::new("content", CONTENT).expect("memory");
        content.write(0, &[7; CONTENT]);
        stream.end(Some(Failure::BAD_RECORD_MAC));
        let (mut sent, mut done) = (Vec::new(), 0);
        while stream.owes() || done < CONTENT {
            let left = content.segment(done, (CONTENT - done) as u32);
            let sealed = stream.seal(&[left][..usize::from(done < CONTENT)]);
            let start = sent.len();
            sent.resize(start + sealed.len() as usize, 0);
            sealed.read(&mut sent[start..]);
            done += stream.sent(sent.len() - start).expect("all of it was sent");
        }
        let (received, end) = opened(&mut far, &sent);
        assert!(received.len() == CONTENT && received.iter().all(|byte| *byte == 7));
        assert_eq!(end.to_string(), "the peer sent TLS alert bad_record_mac");
    }
}
