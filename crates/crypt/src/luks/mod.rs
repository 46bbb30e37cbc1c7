//! LUKS2 headers, which `cryptsetup luksFormat` writes before the data of a disk, or into a file of their
//! own.
//!
//! A header describes the encryption of a disk, and stores its key: in *keyslots*, each encrypted with a key
//! that is derived from a passphrase. Nothing is ever written. Sources: "LUKS2 On-Disk Format Specification"
//! 1.1.1, and for the anti-forensic splitting "LUKS1 On-Disk Format Specification" 1.2.3, 2.4.
//!
//! A header is bytes from outside: all sizes are bounded before memory is allocated for them, and the work
//! that it requires has [`Limits`].

mod binary;
mod budget;
mod hash;
mod keyslot;
mod metadata;

#[cfg(test)]
mod tests;

use crate::{SecretBytes, sealed};
use budget::Budget;
pub use budget::Limits;
use metadata::{Candidates, Metadata};
use std::io::{Read, Seek};

/// Encryption of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of its data in bytes.
    pub offset: u64,
    /// Size of its data in bytes; `None` for all that follow.
    pub size: Option<u64>,
    /// Bytes that are encrypted under one tweak: 512 to 4096.
    pub sector_size: u32,
    /// Number added to that of a sector of 512 bytes, to get its tweak.
    pub iv_tweak: u64,
}

/// A header that has been read, with a right checksum, which anyone can compute.
#[derive(Debug)]
pub struct Header {
    metadata: Metadata,
    segment: Segment,
}

impl Header {
    /// Reads the header at the beginning of a disk or a file: the newer one of its two copies that are valid.
    ///
    /// # Errors
    /// There is none, or it describes something else than one disk in AES-XTS; in words.
    pub fn read(file: &mut (impl Read + Seek)) -> Result<Self, String> {
        let metadata = Metadata::parse(&binary::read(file)?)?;
        let segment = metadata.segment()?;
        Ok(Self { metadata, segment })
    }

    pub fn segment(&self) -> Segment {
        self.segment
    }

    /// Returns the disk's key, both halves, for a passphrase. Every keyslot is tried, or one by its number.
    /// Takes as long as the keyslots require, within the limits: seconds for each.
    ///
    /// # Errors
    /// No keyslot opens with this passphrase, or some could not be tried; in words.
    pub fn unlock(
        &self,
        file: &mut (impl Read + Seek),
        passphrase: &[u8],
        number: Option<u32>,
        limits: &Limits,
    ) -> Result<SecretBytes, String> {
        let Candidates { digest, keyslots, mut untried } = self.metadata.keyslots(number)?;
        let mut budget = Budget::new(limits);
        for (name, keyslot) in keyslots {
            if !budget.has_time() {
                untried.push((
                    name,
                    "the time for one header is up: name it with the option keyslot".to_owned(),
                ));
                continue;
            }
            let key = sealed(|| {
                let key = keyslot.open(file, passphrase, &mut budget)?;
                digest.verify(&key, &mut budget).map(|fits| fits.then_some(key))
            });
            match key {
                Ok(Some(key)) => return Ok(key),
                Ok(None) => {}
                Err(what) => untried.push((name, what)),
            }
        }
        match untried.first() {
            None => Err("no keyslot opens with this passphrase".to_owned()),
            Some((name, what)) => Err(format!("keyslot {name}: {what}")),
        }
    }
}
