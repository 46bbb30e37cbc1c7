//! Hash functions by their names in cryptsetup.

use super::metadata::plain;
use blake2::{Blake2b512, Blake2s256};
use hmac::SimpleHmac;
use pbkdf2::{pbkdf2, pbkdf2_hmac};
use ripemd::Ripemd160;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};
use sha3::{Sha3_224, Sha3_256, Sha3_384, Sha3_512};
use whirlpool::Whirlpool;

/// A hash function that a header may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
    Sha3_224,
    Sha3_256,
    Sha3_384,
    Sha3_512,
    Ripemd160,
    Whirlpool,
    Blake2b512,
    Blake2s256,
}

const NAMES: [(&str, Hash); 13] = [
    ("sha1", Hash::Sha1),
    ("sha224", Hash::Sha224),
    ("sha256", Hash::Sha256),
    ("sha384", Hash::Sha384),
    ("sha512", Hash::Sha512),
    ("sha3-224", Hash::Sha3_224),
    ("sha3-256", Hash::Sha3_256),
    ("sha3-384", Hash::Sha3_384),
    ("sha3-512", Hash::Sha3_512),
    ("ripemd160", Hash::Ripemd160),
    ("whirlpool", Hash::Whirlpool),
    ("blake2b-512", Hash::Blake2b512),
    ("blake2s-256", Hash::Blake2s256),
];

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let known = NAMES.iter().find(|(known, _)| *known == name);
        known
            .map(|(_, hash)| *hash)
            .ok_or_else(|| D::Error::custom(format!("Sluice has no hash {}", plain(&name))))
    }
}

impl Hash {
    /// Runs PBKDF2 with HMAC of this hash.
    pub(super) fn pbkdf2(self, passphrase: &[u8], salt: &[u8], iterations: u32, key: &mut [u8]) {
        match self {
            Self::Sha1 => pbkdf2_hmac::<Sha1>(passphrase, salt, iterations, key),
            Self::Sha224 => pbkdf2_hmac::<Sha224>(passphrase, salt, iterations, key),
            Self::Sha256 => pbkdf2_hmac::<Sha256>(passphrase, salt, iterations, key),
            Self::Sha384 => pbkdf2_hmac::<Sha384>(passphrase, salt, iterations, key),
            Self::Sha512 => pbkdf2_hmac::<Sha512>(passphrase, salt, iterations, key),
            Self::Sha3_224 => pbkdf2_hmac::<Sha3_224>(passphrase, salt, iterations, key),
            Self::Sha3_256 => pbkdf2_hmac::<Sha3_256>(passphrase, salt, iterations, key),
            Self::Sha3_384 => pbkdf2_hmac::<Sha3_384>(passphrase, salt, iterations, key),
            Self::Sha3_512 => pbkdf2_hmac::<Sha3_512>(passphrase, salt, iterations, key),
            Self::Ripemd160 => pbkdf2_hmac::<Ripemd160>(passphrase, salt, iterations, key),
            Self::Whirlpool => pbkdf2_hmac::<Whirlpool>(passphrase, salt, iterations, key),
            // HMAC takes a password of any length.
            Self::Blake2b512 => drop(pbkdf2::<SimpleHmac<Blake2b512>>(passphrase, salt, iterations, key)),
            Self::Blake2s256 => drop(pbkdf2::<SimpleHmac<Blake2s256>>(passphrase, salt, iterations, key)),
        }
    }

    /// Replaces bytes by numbered hashes of them, one hash length at a time.
    pub(super) fn diffuse(self, bytes: &mut [u8]) {
        match self {
            Self::Sha1 => diffuse::<Sha1>(bytes),
            Self::Sha224 => diffuse::<Sha224>(bytes),
            Self::Sha256 => diffuse::<Sha256>(bytes),
            Self::Sha384 => diffuse::<Sha384>(bytes),
            Self::Sha512 => diffuse::<Sha512>(bytes),
            Self::Sha3_224 => diffuse::<Sha3_224>(bytes),
            Self::Sha3_256 => diffuse::<Sha3_256>(bytes),
            Self::Sha3_384 => diffuse::<Sha3_384>(bytes),
            Self::Sha3_512 => diffuse::<Sha3_512>(bytes),
            Self::Ripemd160 => diffuse::<Ripemd160>(bytes),
            Self::Whirlpool => diffuse::<Whirlpool>(bytes),
            Self::Blake2b512 => diffuse::<Blake2b512>(bytes),
            Self::Blake2s256 => diffuse::<Blake2s256>(bytes),
        }
    }
}

fn diffuse<H: sha2::Digest>(bytes: &mut [u8]) {
    for (number, block) in (0u32..).zip(bytes.chunks_mut(<H as sha2::Digest>::output_size())) {
        let hash = H::new().chain_update(number.to_be_bytes()).chain_update(&*block).finalize();
        let length = block.len();
        block.copy_from_slice(&hash[..length]);
    }
}
