//! Files of keys, as nvme-cli writes them.
//!
//! Each line has one key in interchange format (NVMe/TCP Transport 3.6.1.2), `NVMeTLSkey-1:01:BASE64:`, which
//! is what `nvme gen-tls-key` prints. What stands before it says whose it is:
//!
//! - nothing: a configured key, for every host;
//! - a host's NQN: a configured key, for this host;
//! - an [`Identity`]: a key that was derived already, as the `--keyfile` of nvme-cli has them.

use crate::derive::{Configured, Labels};
use crate::{Hash, Identity, Psk, Version};
use base64ct::{Base64, Encoding};
use sluice_crypt::{Given, SecretBytes, Source};
use std::fmt;
use std::path::Path;
use zeroize::Zeroizing;

/// The keys of one party. They stay in memory of their own, and are taken out for a handshake.
#[derive(Debug)]
pub struct Keys {
    text: SecretBytes,
}

/// What is wrong with a file of keys, in words that name the file and the line.
#[derive(Debug, PartialEq, Eq)]
pub struct KeysError(String);

impl fmt::Display for KeysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for KeysError {}

/// One line.
enum Line<'a> {
    /// For this host, or for each.
    Configured(Option<&'a str>, Configured),
    Derived(Identity, Zeroizing<Vec<u8>>),
}

impl Keys {
    /// Reads a file that nobody else may use.
    ///
    /// # Errors
    /// It cannot be read, others may read it, or a line makes no sense.
    pub fn read(path: &Path) -> Result<Self, KeysError> {
        let text = Source::File(path.to_owned()).read(&Given::default()).map_err(KeysError)?;
        Self::new(text)
            .map_err(|(line, what)| KeysError(format!("key file {}, line {line}: {what}", path.display())))
    }

    /// Checks every line. The error is the number of one, and what is wrong with it.
    pub(crate) fn new(text: SecretBytes) -> Result<Self, (usize, &'static str)> {
        let keys = Self { text };
        let mut count = 0;
        for (number, line) in keys.lines() {
            line.map_err(|what| (number, what))?;
            count += 1;
        }
        if count == 0 { Err((1, "there is no key")) } else { Ok(keys) }
    }

    fn lines(&self) -> impl Iterator<Item = (usize, Result<Line<'_>, &'static str>)> {
        let lines = self.text.split(|byte| *byte == b'\n').map(|line| line.trim_ascii()).enumerate();
        lines
            .filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"))
            .map(|(number, line)| (number + 1, Line::parse(line)))
    }

    /// The keys for connections of a host to a subsystem, the likeliest first: those that were derived for the
    /// two, or else what comes of the first one for the host, in each way that there is to derive it. Which of
    /// them the other end has it alone knows.
    pub fn for_host(&self, hostnqn: &str, subnqn: &str) -> Vec<Psk> {
        const VERSIONS: [Version; 2] = [Version::One, Version::Zero];
        let lines = || self.lines().filter_map(|(_, line)| line.ok());
        let derived = lines().filter_map(|line| match line {
            Line::Derived(identity, secret)
                if identity.hostnqn() == hostnqn && identity.subnqn() == subnqn =>
            {
                Some(Psk { identity, secret })
            }
            _ => None,
        });
        let mut derived: Vec<Psk> = derived.take(VERSIONS.len() * Labels::ALL.len()).collect();
        if !derived.is_empty() {
            derived.sort_by_key(|psk| psk.identity.version() != Version::One);
            return derived;
        }
        let is_own = self.has_own(hostnqn);
        let configured = lines().find_map(|line| match line {
            Line::Configured(host, key) if host == is_own.then_some(hostnqn) => Some(key),
            _ => None,
        });
        let Some(key) = configured else { return Vec::new() };
        let ways = VERSIONS.into_iter().flat_map(|version| Labels::ALL.map(|labels| (version, labels)));
        ways.filter_map(|(version, labels)| key.psk(version, labels, hostnqn, subnqn)).collect()
    }

    /// There is a key for this host alone: what is for every host is not for it then.
    fn has_own(&self, hostnqn: &str) -> bool {
        let mut lines = self.lines().filter_map(|(_, line)| line.ok());
        lines.any(|line| matches!(line, Line::Configured(Some(host), _) if host == hostnqn))
    }

    /// There may be a key for this host.
    pub fn names(&self, hostnqn: &str) -> bool {
        self.lines().filter_map(|(_, line)| line.ok()).any(|line| match line {
            Line::Configured(host, _) => host.is_none_or(|host| host == hostnqn),
            Line::Derived(identity, _) => identity.hostnqn() == hostnqn,
        })
    }

    /// The keys that an identity may mean. There may be several, since it does not say how its key was
    /// derived.
    pub fn candidates(&self, identity: &Identity) -> Vec<Psk> {
        let (hostnqn, subnqn) = (identity.hostnqn(), identity.subnqn());
        let is_own = self.has_own(hostnqn);
        let of_line = |line| match line {
            Line::Derived(other, secret) => vec![Psk { identity: other, secret }],
            Line::Configured(host, key) if host == is_own.then_some(hostnqn) => {
                let derive = |labels| key.psk(identity.version(), labels, hostnqn, subnqn);
                Labels::ALL.into_iter().filter_map(derive).collect()
            }
            Line::Configured(..) => Vec::new(),
        };
        let all = self.lines().filter_map(|(_, line)| line.ok()).flat_map(of_line);
        all.filter(|psk| psk.identity == *identity).collect()
    }
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Result<Self, &'static str> {
        let line = str::from_utf8(line).map_err(|_| "it is not text")?;
        let (owner, text) = match line.rsplit_once([' ', '\t']) {
            Some((owner, text)) => (Some(owner.trim()), text),
            None => (None, line),
        };
        let (hash, key) = interchange(text)?;
        let Some(owner) = owner else { return Ok(Self::Configured(None, Configured { hash, key })) };
        if let Some(identity) = Identity::parse(owner) {
            return match key.len() == identity.hash.length() {
                true => Ok(Self::Derived(identity, key)),
                false => Err("the key is not as long as the hash in its identity"),
            };
        }
        if owner.starts_with("nqn.") && !owner.contains(char::is_whitespace) {
            return Ok(Self::Configured(Some(owner), Configured { hash, key }));
        }
        Err(
            "what stands before the key is neither a host's NQN nor an identity such as NVMe0R01 HOSTNQN SUBNQN",
        )
    }
}

/// Reads a key: the hash for the retained key, and its bytes.
fn interchange(text: &str) -> Result<(Option<Hash>, Zeroizing<Vec<u8>>), &'static str> {
    const FORM: &str = "the key is not of the form NVMeTLSkey-1:01:BASE64: that `nvme gen-tls-key` writes";
    const CRC: usize = 4;
    let rest = text.strip_prefix("NVMeTLSkey-1:").and_then(|rest| rest.strip_suffix(':')).ok_or(FORM)?;
    let (hash, encoded) = rest.split_once(':').ok_or(FORM)?;
    let hash = match hash {
        "00" => None,
        "01" => Some(Hash::Sha256),
        "02" => Some(Hash::Sha384),
        _ => return Err("the key names a hash that is neither 00, 01 nor 02"),
    };
    let mut room = Zeroizing::new([0; Hash::Sha384.length() + CRC]);
    let decoded = Base64::decode(encoded, &mut room[..]).map_err(|_| "the key is not Base64, or too long")?;
    let (key, crc) = decoded.split_last_chunk::<CRC>().ok_or("the key is too short")?;
    if crc32fast::hash(key) != u32::from_le_bytes(*crc) {
        return Err("the checksum of the key is wrong: part of it was changed or left out");
    }
    let own = Hash::of_length(key.len()).ok_or("the key has neither 32 nor 48 bytes")?;
    if hash.is_some_and(|hash| hash != own) {
        return Err("the key is not as long as its hash");
    }
    Ok((hash, Zeroizing::new(key.to_vec())))
}

#[cfg(test)]
pub(crate) mod tests;
