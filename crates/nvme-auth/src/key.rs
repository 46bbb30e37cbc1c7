//! Keys as they are written down (Base, "Secret Representation"): `DHHC-1:01:` and the secret with its checksum
//! in Base64, and a colon.

use crate::Hash;
use crate::hash::Value;
use base64ct::{Base64, Encoding};
use sluice_crypt::{SecretBytes, sealed};
use std::{error, fmt};
use subtle::ConstantTimeEq;

/// Bytes of the checksum behind the secret.
const CHECKSUM: usize = 4;

/// Constant part of every transformed key.
const LABEL: &[u8] = b"NVMe-over-Fabrics";

/// The secret that a host and a subsystem share, for one direction.
#[derive(Debug)]
pub struct Key {
    secret: SecretBytes,
    /// Transformation into the key of a host or subsystem; none if the secret is used unchanged.
    transform: Option<Hash>,
}

/// Reason why a text is no key. It has no information about the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The text does not begin with `DHHC-1:`, or has no colons in the right places.
    Format,
    /// The hash for the transformation is not supported.
    Transform,
    /// The secret is not Base64 of 32, 48 or 64 bytes and a checksum.
    Secret,
    /// Something was left out or mistyped.
    Checksum,
    /// There is no memory for it.
    Memory,
}

impl Key {
    /// Reads a key, and whatever space is before and after it.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &[u8]) -> Result<Self, KeyError> {
        sealed(|| parse(text.trim_ascii()))
    }

    /// Returns the transformed key of the host or subsystem with this NQN.
    pub(crate) fn of(&self, nqn: &str) -> Value {
        match self.transform {
            Some(hash) => hash.mac(&self.secret, &[nqn.as_bytes(), LABEL]),
            None => Value::of(&self.secret),
        }
    }

    /// Returns whether both have the same secret.
    pub fn is_like(&self, other: &Key) -> bool {
        sealed(|| self.secret.ct_eq(&other.secret).into())
    }
}

fn parse(text: &[u8]) -> Result<Key, KeyError> {
    let rest = text.strip_prefix(b"DHHC-1:").ok_or(KeyError::Format)?;
    let (transform, rest) = rest.split_at_checked(2).ok_or(KeyError::Format)?;
    let transform = match transform {
        b"00" => None,
        b"01" => Some(Hash::Sha256),
        b"02" => Some(Hash::Sha384),
        b"03" => Some(Hash::Sha512),
        _ => return Err(KeyError::Transform),
    };
    let encoded = rest.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b":")).ok_or(KeyError::Format)?;
    let mut decoded = SecretBytes::zeros(encoded.len()).map_err(|_| KeyError::Memory)?;
    let length = Base64::decode(encoded, &mut decoded).map_err(|_| KeyError::Secret)?.len();
    let secret = length.checked_sub(CHECKSUM).and_then(|at| decoded[..length].split_at_checked(at));
    let (secret, checksum) =
        secret.filter(|(it, _)| [32, 48, 64].contains(&it.len())).ok_or(KeyError::Secret)?;
    if crc32fast::hash(secret).to_le_bytes() != checksum {
        return Err(KeyError::Checksum);
    }
    let secret = SecretBytes::copy_of(secret).map_err(|_| KeyError::Memory)?;
    Ok(Key { secret, transform })
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyError::Format => "it is no key as `nvme gen-dhchap-key` writes one (DHHC-1:01:...:)",
            KeyError::Transform => "a key is transformed with hash 00, 01, 02 or 03, and no other",
            KeyError::Secret => "its secret is not 32, 48 or 64 bytes with a checksum, in Base64",
            KeyError::Checksum => "its checksum is wrong: something was left out, or mistyped",
            KeyError::Memory => "there is no memory for a key",
        })
    }
}

impl error::Error for KeyError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(transform: u8, secret: &[u8]) -> String {
        let bytes = [secret, &crc32fast::hash(secret).to_le_bytes()].concat();
        format!("DHHC-1:{transform:02}:{}:", Base64::encode_string(&bytes))
    }

    #[test]
    fn what_is_written_is_read() {
        for (transform, length) in [(0, 32), (1, 32), (2, 48), (3, 64), (0, 64)] {
            let secret: Vec<u8> = (0..length).map(|n| n * 3).collect();
            let key = Key::parse(format!("{}\n", written(transform, &secret)).as_bytes()).expect("a key");
            assert!(*key.secret == *secret);
            assert_eq!(key.transform.map_or(0, Hash::id), transform);
            assert!(!format!("{key:?}").contains("33"), "{key:?}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let cases = [
            (String::new(), KeyError::Format),
            ("DHHC-1:".to_owned(), KeyError::Format),
            (written(1, &[7; 32]).replace("DHHC-1", "DHHC-2"), KeyError::Format),
            (written(1, &[7; 32]).trim_end_matches(':').to_owned(), KeyError::Format),
            (written(4, &[7; 32]), KeyError::Transform),
            (written(1, &[7; 31]), KeyError::Secret),
            (written(1, &[]), KeyError::Secret),
            ("DHHC-1:01:A:".to_owned(), KeyError::Secret),
            ("DHHC-1:01::".to_owned(), KeyError::Secret),
            (format!("DHHC-1:01:{}:", "A".repeat(9000)), KeyError::Memory),
        ];
        for (text, error) in cases {
            assert_eq!(Key::parse(text.as_bytes()).err(), Some(error), "{text}");
        }
    }

    #[test]
    fn keys_are_alike_by_their_secret() {
        let key = |transform, byte| Key::parse(written(transform, &[byte; 32]).as_bytes()).expect("a key");
        assert!(key(0, 5).is_like(&key(1, 5)));
        assert!(!key(1, 5).is_like(&key(1, 6)));
    }

    proptest! {
        #[test]
        fn a_typing_error_is_noticed(secret in proptest::collection::vec(any::<u8>(), 32), at in 10usize..50, by in 1u8..=255) {
            let mut text = written(1, &secret).into_bytes();
            let end = text.len() - 1;
            let at = at.min(end - 1);
            let other = text[at] ^ by;
            prop_assume!(!other.is_ascii_whitespace());
            text[at] = other;
            prop_assert!(Key::parse(&text).is_err());
        }
    }
}
