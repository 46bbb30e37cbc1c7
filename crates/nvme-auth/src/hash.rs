//! The hash functions that the two ends may agree on.

use hmac::digest::{Digest, KeyInit};
use hmac::{Hmac, Mac};
use sha2::{Sha256, Sha384, Sha512};
use std::ops::Deref;
use zeroize::Zeroize;

/// A hash function (Base, figure "HashID").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    Sha256 = 1,
    Sha384 = 2,
    Sha512 = 3,
}

impl Hash {
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// Returns the HashID.
    pub fn id(self) -> u8 {
        self as u8
    }

    pub fn of(id: u8) -> Option<Hash> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Returns the bytes of a hash, of a challenge and of a response.
    pub fn length(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// Computes the HMAC of `parts`, one after the other.
    pub(crate) fn mac(self, key: &[u8], parts: &[&[u8]]) -> Value {
        match self {
            Hash::Sha256 => mac::<Hmac<Sha256>>(key, parts),
            Hash::Sha384 => mac::<Hmac<Sha384>>(key, parts),
            Hash::Sha512 => mac::<Hmac<Sha512>>(key, parts),
        }
    }

    pub(crate) fn digest(self, bytes: &[u8]) -> Value {
        match self {
            Hash::Sha256 => Value::of(&Sha256::digest(bytes)),
            Hash::Sha384 => Value::of(&Sha384::digest(bytes)),
            Hash::Sha512 => Value::of(&Sha512::digest(bytes)),
        }
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Value {
    let mut mac = <M as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    Value::of(&mac.finalize().into_bytes())
}

/// A hash or a code, of as many bytes as the function gives. Overwritten when it goes.
#[derive(Clone)]
pub(crate) struct Value {
    bytes: [u8; Self::MAX],
    length: usize,
}

impl Value {
    const MAX: usize = 64;

    /// Copies bytes, of which there are no more than a hash has.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut value = Self { bytes: [0; Self::MAX], length: bytes.len() };
        value.bytes[..bytes.len()].copy_from_slice(bytes);
        value
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}
