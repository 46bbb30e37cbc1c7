//! An encrypted connection without its socket.

use crate::record::{self, CONTENT_MAX, HEADER, Kind, OVERHEAD, RECORD_MAX, Suite, Traffic};
use crate::{Hash, Identity};
use std::fmt;
use std::ops::Range;

/// Reason of the end of a connection: the alert for the peer (RFC 8446 6), or the alert of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    alert: u8,
    is_peers: bool,
}

const CLOSE_NOTIFY: u8 = 0;

impl Failure {
    pub(crate) const UNEXPECTED_MESSAGE: Failure = Failure::ours(10);
    pub(crate) const BAD_RECORD_MAC: Failure = Failure::ours(20);
    pub(crate) const RECORD_OVERFLOW: Failure = Failure::ours(22);
    pub(crate) const MALFORMED: Failure = Failure::ours(50);

    const fn ours(alert: u8) -> Self {
        Self { alert, is_peers: false }
    }

    /// Returns whether the peer has sent the alert, and so needs none.
    pub const fn is_peers(self) -> bool {
        self.is_peers
    }

    /// Returns whether the peer has announced that it sends nothing more.
    pub const fn is_end(self) -> bool {
        self.is_peers && self.alert == CLOSE_NOTIFY
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.alert {
            CLOSE_NOTIFY => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac",
            22 => "record_overflow",
            40 => "handshake_failure",
            47 => "illegal_parameter",
            50 => "decode_error",
            51 => "decrypt_error",
            70 => "protocol_version",
            80 => "internal_error",
            90 => "user_canceled",
            109 => "missing_extension",
            115 => "unknown_psk_identity",
            other => return write!(f, "TLS alert {other}"),
        };
        match self.is_peers {
            true => write!(f, "the peer sent TLS alert {what}"),
            false => write!(f, "what was received is no TLS of this connection: {what}"),
        }
    }
}

/// Types of handshake messages that come after the handshake (RFC 8446 4).
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// State of both directions of a connection after its handshake, with a record of each in memory.
pub struct Session {
    identity: Identity,
    suite: Suite,
    incoming: Traffic,
    pub(crate) outgoing: Traffic,
    /// The record that is being received, or that was opened.
    record: Box<[u8]>,
    /// Bytes of it that are there.
    filled: usize,
    /// Unread content of the record.
    content: Range<usize>,
    /// The record that was sealed last.
    sealed: Box<[u8]>,
    /// Set if the peer has requested a key update.
    owes_update: bool,
    empty_records: EmptyRecords,
}

/// Records without content: each is work, and nothing comes of it.
#[derive(Debug)]
struct EmptyRecords {
    /// Number of further records that are allowed.
    left: u32,
    /// Content since there was one more.
    content: usize,
}

impl EmptyRecords {
    const MAX: u32 = 32;

    /// Content after which there may be one more.
    const FOR: usize = 64 << 10;

    fn note(&mut self, content: usize) -> Result<(), Failure> {
        if content == 0 {
            self.left = self.left.checked_sub(1).ok_or(Failure::UNEXPECTED_MESSAGE)?;
            return Ok(());
        }
        self.content += content;
        if self.content >= Self::FOR {
            (self.left, self.content) = (Self::MAX.min(self.left + 1), 0);
        }
        Ok(())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Session {
    /// Bytes of content that one record takes.
    pub const CONTENT_MAX: usize = CONTENT_MAX;

    /// Bytes of a sealed record at most.
    pub const SEALED_MAX: usize = CONTENT_MAX + OVERHEAD;

    /// Bytes of a sealed record beside its content.
    pub const OVERHEAD: usize = OVERHEAD;

    pub(crate) fn new(identity: Identity, hash: Hash, incoming: Traffic, outgoing: Traffic) -> Self {
        Self {
            identity,
            suite: Suite(hash),
            incoming,
            outgoing,
            record: vec![0; RECORD_MAX].into(),
            filled: 0,
            content: 0..0,
            sealed: vec![0; Self::SEALED_MAX].into(),
            owes_update: false,
            empty_records: EmptyRecords { left: EmptyRecords::MAX, content: 0 },
        }
    }

    /// Returns the identity of the key with which both ends were authenticated.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the cipher suite.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Returns the buffer for the next bytes from the network. The buffer ends with the bytes that certainly
    /// belong to the present record, so that there is never a second one. The buffer is empty while there is
    /// [`content`](Self::content).
    pub fn room(&mut self) -> &mut [u8] {
        if !self.content.is_empty() {
            return &mut [];
        }
        let end = match self.record.first_chunk::<HEADER>() {
            // Checked when it was filled.
            Some(header) if self.filled >= HEADER => HEADER + record::body_of(*header).unwrap_or(0),
            _ => HEADER,
        };
        &mut self.record[self.filled..end]
    }

    /// Records that `count` bytes are in the [`room`](Self::room), and opens a complete record.
    ///
    /// # Errors
    /// The connection is over: the record is invalid, or is an alert of the peer.
    pub fn filled(&mut self, count: usize) -> Result<(), Failure> {
        self.filled += count;
        let Some(header) = self.record[..self.filled].first_chunk::<HEADER>() else { return Ok(()) };
        let end = HEADER + record::body_of(*header)?;
        if self.filled < end {
            return Ok(());
        }
        self.filled = 0;
        let (kind, length) = self.incoming.open(&mut self.record[..end])?;
        let content = HEADER..HEADER + length;
        self.empty_records.note(if kind == Kind::DATA { length } else { 0 })?;
        match kind {
            Kind::DATA => self.content = content,
            Kind::HANDSHAKE => self.handle_post_handshake(content)?,
            Kind::ALERT => return Err(alert(&self.record[content])),
            _ => return Err(Failure::UNEXPECTED_MESSAGE),
        }
        Ok(())
    }

    /// Returns the received content that was not taken yet.
    #[inline]
    pub fn content(&self) -> &[u8] {
        &self.record[self.content.clone()]
    }

    /// Removes `count` bytes of the content.
    #[inline]
    pub fn take(&mut self, count: usize) {
        self.content.start += count;
        debug_assert!(self.content.start <= self.content.end);
    }

    /// Handles messages after the handshake. Each message is in one record.
    fn handle_post_handshake(&mut self, content: Range<usize>) -> Result<(), Failure> {
        let mut rest = content;
        if rest.is_empty() {
            return Err(Failure::UNEXPECTED_MESSAGE);
        }
        while !rest.is_empty() {
            let [kind, high, middle, low, body @ ..] = &self.record[rest.clone()] else {
                return Err(Failure::MALFORMED);
            };
            let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
            let body = body.get(..length).ok_or(Failure::MALFORMED)?;
            rest.start += 4 + length;
            match (*kind, body) {
                // Both ends have the one key, so no ticket is needed.
                (NEW_SESSION_TICKET, _) => {}
                (KEY_UPDATE, [requests_update @ 0..=1]) if rest.is_empty() => {
                    self.owes_update |= *requests_update == 1;
                    self.incoming.update();
                }
                _ => return Err(Failure::UNEXPECTED_MESSAGE),
            }
        }
        Ok(())
    }

    /// Returns whether there is a [`notice`](Self::notice).
    #[inline]
    pub fn owes(&self) -> bool {
        self.owes_update || self.outgoing.is_worn()
    }

    /// Returns a record that is to be sent before all others, if there is one: a KeyUpdate.
    pub fn notice(&mut self) -> Option<&[u8]> {
        if !self.owes() {
            return None;
        }
        self.owes_update = false;
        let length = self.put(Kind::HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0]);
        self.outgoing.update();
        Some(&self.sealed[..length])
    }

    /// Seals a record of `length` bytes, which `fill` writes.
    ///
    /// # Panics
    /// If there are more than [`CONTENT_MAX`](Self::CONTENT_MAX).
    pub fn seal(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> &[u8] {
        fill(&mut self.sealed[HEADER..HEADER + length]);
        let length = self.outgoing.seal(Kind::DATA, length, &mut self.sealed);
        &self.sealed[..length]
    }

    /// Seals the closing alert, with the reason if there is one.
    pub fn farewell(&mut self, failure: Option<Failure>) -> &[u8] {
        const WARNING: u8 = 1;
        const FATAL: u8 = 2;
        let alert = match failure {
            Some(failure) if !failure.is_peers => [FATAL, failure.alert],
            _ => [WARNING, CLOSE_NOTIFY],
        };
        let length = self.put(Kind::ALERT, &alert);
        &self.sealed[..length]
    }

    #[cfg(test)]
    pub(crate) fn owe_update(&mut self) {
        self.owes_update = true;
    }

    fn put(&mut self, kind: Kind, content: &[u8]) -> usize {
        self.sealed[HEADER..HEADER + content.len()].copy_from_slice(content);
        self.outgoing.seal(kind, content.len(), &mut self.sealed)
    }
}

fn alert(content: &[u8]) -> Failure {
    match content {
        [_, alert] => Failure { alert: *alert, is_peers: true },
        _ => Failure::MALFORMED,
    }
}

#[cfg(test)]
mod tests;
