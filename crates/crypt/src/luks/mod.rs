//! LUKS2 headers: what `cryptsetup luksFormat` writes before the data of a disk, or into a file of its own.
//!
//! A header says how the disk is encrypted, and keeps its key: in *keyslots*, each encrypted with a key that is
//! derived from a passphrase. Nothing is ever written. Sources: "LUKS2 On-Disk Format Specification" 1.1.1,
//! and for the anti-forensic splitting "LUKS1 On-Disk Format Specification" 1.2.3, 2.4.
//!
//! A header is bytes from outside: all sizes are bounded before memory is taken for them, and the work that
//! it asks for has [`Limits`].

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
    /// long as the keyslots ask for, within the limits: seconds for each.
    ///
    /// # Errors
    /// In words: no keyslot opens with this passphrase, or some could not be tried.
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
