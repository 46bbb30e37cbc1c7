//! Derivation of the key of a TLS connection from a configured key (NVMe/TCP Transport 3.6.1.3, RFC 8446
//! 7.1).

use crate::{Hash, Identity, Psk, Version};
use aws_lc_rs::{digest, hkdf, hmac};
use base64ct::{Base64, Encoding};
use zeroize::Zeroizing;

/// Encoding of a label and its context before they are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Labels {
    /// HKDF-Expand-Label of RFC 8446, as the specification demands.
    Standard,
    /// Encoding of libnvme before version 1.16, and with `--compat`: the length in the machine's byte order,
    /// and label and context without their own lengths. Debian 13 has such a version.
    Compat,
}

impl Labels {
    pub(crate) const ALL: [Labels; 2] = [Labels::Standard, Labels::Compat];
}

/// A key as an operator has it.
pub(crate) struct Configured {
    /// Hash for the retained key; without it the configured key is the retained key.
    pub(crate) hash: Option<Hash>,
    pub(crate) key: Zeroizing<Vec<u8>>,
}

impl Configured {
    /// Derives the key for a host and a subsystem; `None` if their names are invalid.
    pub(crate) fn psk(&self, version: Version, labels: Labels, hostnqn: &str, subnqn: &str) -> Option<Psk> {
        let retained = match self.hash {
            None => self.key.clone(),
            Some(hash) => {
                let mut retained = Zeroizing::new(vec![0; self.key.len()]);
                let context = hostnqn.as_bytes();
                expand_label(hash, &self.key, labels, b"HostNQN", context, &mut retained);
                retained
            }
        };
        let hash = self.hash.or(Hash::of_length(self.key.len()))?;
        let (identity, context) = match version {
            Version::Zero => {
                let identity = Identity::new(hash, hostnqn, subnqn, None)?;
                let context = identity.as_str().to_owned();
                (identity, context)
            }
            Version::One => {
                let digest = digest_of(hash, &retained, hostnqn, subnqn);
                let context = format!("{:02} {digest}", hash.number());
                (Identity::new(hash, hostnqn, subnqn, Some(&digest))?, context)
            }
        };
        if labels == Labels::Standard && context.len() > usize::from(u8::MAX) {
            return None;
        }
        let mut secret = Zeroizing::new(vec![0; hash.length()]);
        expand_label(hash, &retained, labels, b"nvme-tls-psk", context.as_bytes(), &mut secret);
        Some(Psk { identity, secret })
    }
}

/// Returns the digest at the end of an identity of version 1.
fn digest_of(hash: Hash, retained: &[u8], hostnqn: &str, subnqn: &str) -> String {
    let algorithm = match hash {
        Hash::Sha256 => hmac::HMAC_SHA256,
        Hash::Sha384 => hmac::HMAC_SHA384,
    };
    let text = format!("{hostnqn} {subnqn} NVMe-over-Fabrics");
    Base64::encode_string(hmac::sign(&hmac::Key::new(algorithm, retained), text.as_bytes()).as_ref())
}

/// Computes HKDF-Extract without a salt, and HKDF-Expand-Label.
fn expand_label(hash: Hash, key: &[u8], labels: Labels, label: &[u8], context: &[u8], out: &mut [u8]) {
    let prk = hkdf::Salt::none(algorithm(hash)).extract(key);
    match labels {
        Labels::Standard => expand(&prk, label, context, out),
        Labels::Compat => fill(&prk, &[&(out.len() as u16).to_le_bytes(), b"tls13 ", label, context], out),
    }
}

/// Computes HKDF-Expand-Label (RFC 8446 7.1).
pub(crate) fn expand(prk: &hkdf::Prk, label: &[u8], context: &[u8], out: &mut [u8]) {
    let length = (out.len() as u16).to_be_bytes();
    let sizes = [b"tls13 ".len() as u8 + label.len() as u8, context.len() as u8];
    fill(prk, &[&length, &sizes[..1], b"tls13 ", label, &sizes[1..], context], out);
}

fn fill(prk: &hkdf::Prk, info: &[&[u8]], out: &mut [u8]) {
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let filled = prk.expand(info, Length(out.len())).and_then(|okm| okm.fill(out));
    filled.expect("a key is no longer than HKDF can make");
}

pub(crate) fn algorithm(hash: Hash) -> hkdf::Algorithm {
    match hash {
        Hash::Sha256 => hkdf::HKDF_SHA256,
        Hash::Sha384 => hkdf::HKDF_SHA384,
    }
}

/// Checks the binder of an external key, which proves that the peer has the key (RFC 8446 4.2.11.2).
pub(crate) fn binds(psk: &Psk, hello: &[&[u8]], binder: &[u8]) -> bool {
    let hash = psk.identity.hash;
    let (digest, hmac) = match hash {
        Hash::Sha256 => (&digest::SHA256, hmac::HMAC_SHA256),
        Hash::Sha384 => (&digest::SHA384, hmac::HMAC_SHA384),
    };
    let early = hkdf::Salt::none(algorithm(hash)).extract(&psk.secret);
    let mut room = Zeroizing::new([0; 48]);
    let key = &mut room[..hash.length()];
    expand(&early, b"ext binder", digest::digest(digest, &[]).as_ref(), key);
    let prk = hkdf::Prk::new_less_safe(algorithm(hash), key);
    expand(&prk, b"finished", &[], key);
    let mut transcript = digest::Context::new(digest);
    hello.iter().for_each(|part| transcript.update(part));
    hmac::verify(&hmac::Key::new(hmac, key), transcript.finish().as_ref(), binder).is_ok()
}
