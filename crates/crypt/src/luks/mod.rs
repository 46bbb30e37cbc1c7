//! LUKS2 headers: what `cryptsetup luksFormat` writes before the data of a disk, or into a file of its own.
//!
//! A header says how the disk is encrypted, and keeps its key: in *keyslots*, each encrypted with a key that is
//! derived from a passphrase. Nothing is ever written. Sources: "LUKS2 On-Disk Format Specification" 1.1.1,
//! and for the anti-forensic splitting "LUKS1 On-Disk Format Specification" 1.2.3, 2.4.
//!
//! A header is bytes from outside: all sizes are bounded before memory is taken for them, and the work that
//! it asks for has [`Limits`].

mod binary;
mod keyslot;
mod metadata;

#[cfg(test)]
mod tests;

use crate::{SecretBytes, sealed};
use metadata::Metadata;
use std::io::{Read, Seek};

/// How a disk is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where its data begins, bytes.
    pub offset: u64,
    /// Bytes of it; `None` for all that follow.
    pub size: Option<u64>,
    /// Bytes that are encrypted under one tweak: 512 to 4096.
    pub sector_size: u32,
    /// What is added to the number of a sector of 512 bytes, to be its tweak.
    pub iv_tweak: u64,
}

/// How much work a passphrase may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory for deriving a key, KiB. 4 GiB, as cryptsetup has it.
    pub memory_kib: u32,
    /// Passes over that memory.
    pub passes: u32,
    /// Iterations of PBKDF2.
    pub iterations: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory_kib: 4 << 20, passes: 100, iterations: 100_000_000 }
    }
}

/// A header that has been read. Its checksum was right, which anybody can make it.
#[derive(Debug)]
pub struct Header {
    metadata: Metadata,
    segment: Segment,
}

impl Header {
    /// Reads the header at the beginning of a disk or a file: the newer one of its two copies that are whole.
    ///
    /// # Errors
    /// In words: there is none, or it describes something else than one disk in AES-XTS.
    pub fn read(file: &mut (impl Read + Seek)) -> Result<Self, String> {
        let metadata = Metadata::parse(&binary::read(file)?)?;
        let segment = metadata.segment()?;
        Ok(Self { metadata, segment })
    }

    pub fn segment(&self) -> Segment {
        self.segment
    }

    /// The disk's key, both halves, by a passphrase. Every keyslot is tried, or one by its number. Takes as
    /// long as whoever made the keyslot wanted it to: seconds for each.
    ///
    /// # Errors
    /// In words: no keyslot opens with this passphrase, or none can be tried.
    pub fn unlock(
        &self,
        file: &mut (impl Read + Seek),
        passphrase: &[u8],
        number: Option<u32>,
        limits: &Limits,
    ) -> Result<SecretBytes, String> {
        let (digest, keyslots) = self.metadata.keyslots(number)?;
        let mut trouble = None;
        for (name, keyslot) in keyslots {
            let key = sealed(|| {
                let key = keyslot.open(file, passphrase, limits)?;
                digest.verify(&key, limits).map(|fits| fits.then_some(key))
            });
            match key {
                Ok(Some(key)) => return Ok(key),
                Ok(None) => {}
                Err(what) => trouble = Some(format!("keyslot {name}: {what}")),
            }
        }
        Err(trouble.unwrap_or_else(|| "no keyslot opens with this passphrase".to_owned()))
    }
}
