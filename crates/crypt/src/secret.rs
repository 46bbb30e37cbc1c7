//! Bytes of secrets.

use sluice_memory::Secret;
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::ops::{Deref, DerefMut};

/// A key or a passphrase, on pages of its own (see [`Secret`]), of up to [`MAX`](Self::MAX) bytes.
pub struct SecretBytes {
    memory: Secret<[u8; Self::MAX]>,
    length: usize,
}

impl SecretBytes {
    /// Bytes of the longest secret.
    pub const MAX: usize = 8 << 10;

    /// Creates `length` zeros, to be overwritten.
    ///
    /// # Errors
    /// There is no memory, or `length` is more than [`MAX`](Self::MAX).
    pub fn zeros(length: usize) -> io::Result<Self> {
        if length > Self::MAX {
            return Err(ErrorKind::InvalidInput.into());
        }
        Ok(Self { memory: Secret::zeros()?, length })
    }

    /// Creates a copy.
    pub fn copy_of(bytes: &[u8]) -> io::Result<Self> {
        let mut copy = Self::zeros(bytes.len())?;
        copy.copy_from_slice(bytes);
        Ok(copy)
    }

    /// Reads to the end, with no buffer on the way. `None` if there is more than fits.
    pub fn read(mut from: impl Read) -> io::Result<Option<Self>> {
        let mut secret = Self::zeros(Self::MAX)?;
        secret.length = 0;
        loop {
            let room = &mut secret.memory[secret.length..];
            if room.is_empty() {
                return Ok((from.read(&mut [0])? == 0).then_some(secret));
            }
            match from.read(room) {
                Ok(0) => return Ok(Some(secret)),
                Ok(read) => secret.length += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Deref for SecretBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

impl DerefMut for SecretBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.length]
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretBytes({})", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_read_and_what_does_not_is_refused() {
        for length in [0, 1, 64, SecretBytes::MAX - 1, SecretBytes::MAX] {
            let bytes: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let secret = SecretBytes::read(&bytes[..]).expect("memory").expect("it fits");
            assert!(*secret == bytes[..]);
            assert_eq!(format!("{secret:?}"), format!("SecretBytes({length})"));
        }
        assert!(SecretBytes::read(&[1; SecretBytes::MAX + 1][..]).expect("memory").is_none());
        assert!(SecretBytes::zeros(SecretBytes::MAX + 1).is_err());
    }
}
