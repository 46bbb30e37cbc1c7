//! Keyslots, which turn a passphrase into the disk's key (specification, sections 3.2 to 3.4).

use super::budget::Budget;
use super::hash::Hash;
use super::metadata::{Bytes, Number, plain};
use crate::{SecretBytes, Xts};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use serde::Deserialize;
use std::io::{Read, Seek, SeekFrom};
use zeroize::{Zeroize, Zeroizing};

/// Stripes that a key is split into, at most: the number in the specification.
const STRIPES_MAX: u32 = 4000;

/// Bytes of a sector of a keyslot's area.
const SECTOR: usize = 512;

/// An encrypted key.
#[derive(Debug, Deserialize)]
pub(super) struct Keyslot {
    key_size: u32,
    #[serde(default = "usual")]
    priority: u8,
    af: Splitting,
    area: Area,
    kdf: Derivation,
}

/// Returns the priority between "ignored unless requested", 0, and "preferred", 2.
fn usual() -> u8 {
    1
}

/// Anti-forensic splitting of a key: no stripe is of use without all others.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Splitting {
    Luks1 { stripes: u32, hash: Hash },
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Area {
    Raw { offset: Number, size: Number, encryption: String, key_size: u32 },
}

/// Derivation of a key from a passphrase.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Derivation {
    Pbkdf2 { hash: Hash, iterations: u32, salt: Bytes },
    Argon2i { time: u32, memory: u32, cpus: u32, salt: Bytes },
    Argon2id { time: u32, memory: u32, cpus: u32, salt: Bytes },
}

/// Digest that identifies a key without revealing it.
#[derive(Debug, Deserialize)]
pub(super) struct Digest {
    keyslots: Vec<String>,
    segments: Vec<String>,
    #[serde(flatten)]
    how: Derivation,
    digest: Bytes,
}

impl Keyslot {
    pub(super) fn is_usual(&self) -> bool {
        self.priority > 0
    }

    pub(super) fn is_preferred(&self) -> bool {
        self.priority > 1
    }

    /// Returns the key that results from this passphrase, which may be a wrong one.
    pub(super) fn open(
        &self,
        file: &mut (impl Read + Seek),
        passphrase: &[u8],
        budget: &mut Budget,
    ) -> Result<SecretBytes, String> {
        let Splitting::Luks1 { stripes, hash } = self.af;
        let Area::Raw { offset, size, encryption, key_size } = &self.area;
        if encryption != "aes-xts-plain64" {
            return Err(format!("it is encrypted with {}, not aes-xts-plain64", plain(encryption)));
        }
        if ![32, 64].contains(&self.key_size) || ![32, 64].contains(key_size) {
            return Err("its keys are not of 32 or 64 bytes".to_owned());
        }
        let length = u64::from(self.key_size) * u64::from(stripes);
        if !(1..=STRIPES_MAX).contains(&stripes) || length.next_multiple_of(SECTOR as u64) > size.0 {
            return Err("its size makes no sense".to_owned());
        }
        let mut area = Zeroizing::new(vec![0; (length as usize).next_multiple_of(SECTOR)]);
        let read = file.seek(SeekFrom::Start(offset.0)).and_then(|_| file.read_exact(&mut area));
        read.map_err(|error| format!("it cannot be read: {error}"))?;
        let derived = self.kdf.derive(passphrase, *key_size as usize, budget)?;
        let cipher = Xts::new(&derived).ok_or("its key has a length that AES-XTS has not")?;
        for (number, sector) in area.chunks_exact_mut(SECTOR).enumerate() {
            cipher.decrypt(number as u128, sector);
        }
        merge(&area[..length as usize], self.key_size as usize, hash)
    }
}

/// Merges the stripes of a key: each but the last is xored to the state and diffused.
fn merge(area: &[u8], key_size: usize, hash: Hash) -> Result<SecretBytes, String> {
    let mut key = SecretBytes::zeros(key_size).map_err(no_memory)?;
    let mut pieces = area.chunks_exact(key_size).peekable();
    while let Some(piece) = pieces.next() {
        key.iter_mut().zip(piece).for_each(|(byte, other)| *byte ^= other);
        if pieces.peek().is_some() {
            hash.diffuse(&mut key);
        }
    }
    Ok(key)
}

impl Digest {
    pub(super) fn is_of(&self, segment: &str) -> bool {
        self.segments.iter().any(|name| name == segment)
    }

    pub(super) fn has(&self, keyslot: &str) -> bool {
        self.keyslots.iter().any(|name| name == keyslot)
    }

    /// Returns whether this is the key.
    pub(super) fn verify(&self, key: &[u8], budget: &mut Budget) -> Result<bool, String> {
        let Bytes(digest) = &self.digest;
        if !(20..=64).contains(&digest.len()) || !matches!(self.how, Derivation::Pbkdf2 { .. }) {
            return Err("the digest of the disk's key makes no sense".to_owned());
        }
        let computed = self.how.derive(key, digest.len(), budget)?;
        let differs = computed.iter().zip(digest).fold(0, |differs, (a, b)| differs | (a ^ b));
        Ok(differs == 0)
    }
}

impl Derivation {
    /// Derives `length` bytes of key.
    fn derive(&self, passphrase: &[u8], length: usize, budget: &mut Budget) -> Result<SecretBytes, String> {
        let mut key = SecretBytes::zeros(length).map_err(no_memory)?;
        match self {
            Self::Pbkdf2 { hash, iterations, salt } => {
                budget.take_iterations(*iterations)?;
                hash.pbkdf2(passphrase, &salt.0, *iterations, &mut key);
            }
            Self::Argon2i { time, memory, cpus, salt } => {
                let cost = Cost { passes: *time, memory_kib: *memory, lanes: *cpus };
                cost.run(Algorithm::Argon2i, passphrase, &salt.0, &mut key, budget)?;
            }
            Self::Argon2id { time, memory, cpus, salt } => {
                let cost = Cost { passes: *time, memory_kib: *memory, lanes: *cpus };
                cost.run(Algorithm::Argon2id, passphrase, &salt.0, &mut key, budget)?;
            }
        }
        Ok(key)
    }
}

/// Cost of deriving a key with Argon2.
struct Cost {
    passes: u32,
    memory_kib: u32,
    lanes: u32,
}

impl Cost {
    fn run(
        &self,
        algorithm: Algorithm,
        passphrase: &[u8],
        salt: &[u8],
        key: &mut [u8],
        budget: &mut Budget,
    ) -> Result<(), String> {
        let Self { passes, memory_kib, lanes } = *self;
        budget.take_argon2(passes, memory_kib, lanes)?;
        let nonsense = |error| format!("its parameters make no sense: {error}");
        let params = Params::new(memory_kib, passes, lanes, Some(key.len())).map_err(nonsense)?;
        let mut blocks = Vec::new();
        blocks
            .try_reserve_exact(params.block_count())
            .map_err(|_| format!("there is no memory of {memory_kib} KiB to derive its key"))?;
        blocks.resize(params.block_count(), Block::default());
        let context = Argon2::new(algorithm, Version::V0x13, params);
        let done = context.hash_password_into_with_memory(passphrase, salt, key, &mut blocks);
        blocks.iter_mut().for_each(Zeroize::zeroize);
        done.map_err(nonsense)
    }
}

fn no_memory(error: std::io::Error) -> String {
    format!("there is no memory for a key: {error}")
}
