//! Records (RFC 8446 5): one direction of a connection, in place.

use crate::derive;
use crate::{Hash, session::Failure};
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use std::fmt;
use zeroize::Zeroizing;

/// Bytes of content in a record at most.
pub(crate) const CONTENT_MAX: usize = 1 << 14;

/// Bytes of a record's header.
pub(crate) const HEADER: usize = 5;

/// Bytes of a record beside its content: header, type and tag.
pub(crate) const OVERHEAD: usize = HEADER + 1 + TAG;

/// Bytes of the longest record that a peer may send.
pub(crate) const RECORD_MAX: usize = HEADER + CONTENT_MAX + 256;

const TAG: usize = 16;

/// Bytes after which the key of a direction is replaced. RFC 8446 5.5 has the limit in records of the full
/// size, 2^24.5 of them; what it is about is blocks, of which each record has two besides its content.
const UPDATE_AFTER: u64 = 1 << 38;

/// Content type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(pub(crate) u8);

impl Kind {
    pub(crate) const ALERT: Kind = Kind(21);
    pub(crate) const HANDSHAKE: Kind = Kind(22);
    pub(crate) const DATA: Kind = Kind(23);
}

/// Cipher suite of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suite(pub(crate) Hash);

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Hash::Sha256 => "TLS_AES_128_GCM_SHA256",
            Hash::Sha384 => "TLS_AES_256_GCM_SHA384",
        })
    }
}

/// The keys of one direction.
pub(crate) struct Traffic {
    hash: Hash,
    secret: Zeroizing<[u8; 48]>,
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    /// Sequence number of the next record.
    sequence: u64,
    /// Bytes that were encrypted with the present key.
    bytes: u64,
}

impl fmt::Debug for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traffic").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Traffic {
    /// Creates the state of a traffic secret, from the record `sequence` on.
    pub(crate) fn new(hash: Hash, secret: &[u8], sequence: u64) -> Self {
        let mut kept = Zeroizing::new([0; 48]);
        kept[..hash.length()].copy_from_slice(secret);
        let (key, iv) = keys(hash, secret);
        Self { hash, secret: kept, key, iv, sequence, bytes: 0 }
    }

    /// Derives the next key (RFC 8446 7.2). Both ends change to it at the same record.
    pub(crate) fn update(&mut self) {
        let length = self.hash.length();
        let mut next = Zeroizing::new([0; 48]);
        let prk = hkdf::Prk::new_less_safe(derive::algorithm(self.hash), &self.secret[..length]);
        derive::expand(&prk, b"traffic upd", &[], &mut next[..length]);
        *self = Self::new(self.hash, &next[..length], 0);
    }

    /// Returns whether it is time for the next key.
    pub(crate) fn is_worn(&self) -> bool {
        self.bytes >= UPDATE_AFTER
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        let sequence = self.sequence.to_be_bytes();
        nonce[NONCE_LEN - 8..].iter_mut().zip(sequence).for_each(|(byte, other)| *byte ^= other);
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Makes a record of the `length` bytes that are in `room` behind a header. Returns its bytes.
    ///
    /// # Panics
    /// If there is not [`OVERHEAD`] room beside the content, or more content than a record takes.
    pub(crate) fn seal(&mut self, kind: Kind, length: usize, room: &mut [u8]) -> usize {
        assert!(length <= CONTENT_MAX);
        room[HEADER + length] = kind.0;
        self.close(length + 1, room);
        OVERHEAD + length
    }

    /// Seals `inner` bytes that include the content type.
    pub(crate) fn close(&mut self, inner: usize, room: &mut [u8]) {
        let header = header(inner + TAG);
        room[..HEADER].copy_from_slice(&header);
        self.bytes += (HEADER + inner + TAG + 32) as u64;
        let (body, rest) = room[HEADER..].split_at_mut(inner);
        let nonce = self.nonce();
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(header), body);
        let tag = tag.expect("a record is not too long for AES-GCM");
        rest[..TAG].copy_from_slice(tag.as_ref());
    }

    /// Opens a record whose header was checked with [`body_of`]. Returns what it has in it, and the bytes of
    /// the content, which begins behind the header.
    pub(crate) fn open(&mut self, record: &mut [u8]) -> Result<(Kind, usize), Failure> {
        let nonce = self.nonce();
        let (header, body) = record.split_first_chunk_mut::<HEADER>().ok_or(Failure::MALFORMED)?;
        let inner =
            self.key.open_in_place(nonce, Aad::from(*header), body).map_err(|_| Failure::BAD_RECORD_MAC)?;
        // Zeros behind the type are padding.
        let last = inner.iter().rposition(|byte| *byte != 0).ok_or(Failure::UNEXPECTED_MESSAGE)?;
        if last > CONTENT_MAX {
            return Err(Failure::RECORD_OVERFLOW);
        }
        Ok((Kind(inner[last]), last))
    }
}

fn header(body: usize) -> [u8; HEADER] {
    let [high, low] = (body as u16).to_be_bytes();
    [Kind::DATA.0, 3, 3, high, low]
}

/// Returns the number of bytes that follow a header. After the handshake all records have the header of data.
pub(crate) fn body_of(header: [u8; HEADER]) -> Result<usize, Failure> {
    let [kind, _, _, high, low] = header;
    let body = usize::from(u16::from_be_bytes([high, low]));
    if kind != Kind::DATA.0 {
        return Err(Failure::UNEXPECTED_MESSAGE);
    }
    if body > RECORD_MAX - HEADER {
        return Err(Failure::RECORD_OVERFLOW);
    }
    if body <= TAG {
        return Err(Failure::MALFORMED);
    }
    Ok(body)
}

/// Derives key and IV of a traffic secret (RFC 8446 7.3).
fn keys(hash: Hash, secret: &[u8]) -> (LessSafeKey, [u8; NONCE_LEN]) {
    let algorithm = match hash {
        Hash::Sha256 => &AES_128_GCM,
        Hash::Sha384 => &AES_256_GCM,
    };
    let prk = hkdf::Prk::new_less_safe(derive::algorithm(hash), secret);
    let mut room = Zeroizing::new([0; 32]);
    let key = &mut room[..algorithm.key_len()];
    derive::expand(&prk, b"key", &[], key);
    let mut iv = [0; NONCE_LEN];
    derive::expand(&prk, b"iv", &[], &mut iv);
    let key = UnboundKey::new(algorithm, key).expect("a key as long as its algorithm wants");
    (LessSafeKey::new(key), iv)
}
