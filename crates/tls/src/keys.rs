//! Files of keys, in the format of nvme-cli.
//!
//! Each line has one key in interchange format (NVMe/TCP Transport 3.6.1.2), `NVMeTLSkey-1:01:BASE64:`, which
//! is the output of `nvme gen-tls-key`. A prefix names its owner:
//!
//! - nothing: a configured key, for every host;
//! - a host's NQN: a configured key, for this host;
//! - an [`Identity`]: a key that was derived already, as the `--keyfile` of nvme-cli has them.

use crate::derive::{Configured, Labels};
use crate::{Hash, Identity, Psk, Version};
use base64ct::{Base64, Encoding};
use sluice_crypt::{Given, SecretBytes, Source};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use zeroize::Zeroizing;

/// The keys of one party. They stay in memory of their own, and are copied out for a handshake only if it may
/// need them.
///
/// Owners of keys are no secret. They are parsed once: a handshake of a host costs as much with a hundred
/// keys in the file as with one.
#[derive(Debug)]
pub struct Keys {
    text: SecretBytes,
    lines: Vec<Line>,
}

/// An error of a file of keys, which names the file and the line.
#[derive(Debug, PartialEq, Eq)]
pub struct KeysError(String);

impl fmt::Display for KeysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for KeysError {}

/// A line with a key.
#[derive(Debug)]
struct Line {
    owner: Owner,
    /// Range of its key in the text.
    key: Range<usize>,
}

#[derive(Debug)]
enum Owner {
    /// A configured key, for this host, or for each.
    Configured(Option<String>),
    /// A key that was derived.
    Derived(Identity),
}

impl Keys {
    /// Reads a file that only its owner may access.
    ///
    /// # Errors
    /// The file cannot be read, other users may read it, or a line is malformed.
    pub fn read(path: &Path) -> Result<Self, KeysError> {
        let text = Source::File(path.to_owned()).read(&Given::default()).map_err(KeysError)?;
        Self::new(text)
            .map_err(|(line, what)| KeysError(format!("key file {}, line {line}: {what}", path.display())))
    }

    /// Checks every line. The error is the number of one, and what is wrong with it.
    pub(crate) fn new(text: SecretBytes) -> Result<Self, (usize, &'static str)> {
        let (mut lines, mut start) = (Vec::new(), 0);
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let content = line.trim_ascii();
            if !content.is_empty() && !content.starts_with(b"#") {
                let at = start + line.len() - line.trim_ascii_start().len();
                lines.push(Line::parse(content, at).map_err(|what| (number + 1, what))?);
            }
            start += line.len() + 1;
        }
        if lines.is_empty() { Err((1, "there is no key")) } else { Ok(Self { text, lines }) }
    }

    /// Takes the key of a line out, which was checked.
    fn take_out(&self, line: &Line) -> Option<Configured> {
        let text = str::from_utf8(&self.text[line.key.clone()]).ok()?;
        let (hash, key) = interchange(text).ok()?;
        Some(Configured { hash, key })
    }

    /// Returns the configured keys for this host: its own, or if it has none those for every host.
    fn configured(&self, hostnqn: &str) -> impl Iterator<Item = &Line> {
        let is_own = self.has_own(hostnqn);
        let wanted = is_own.then(|| hostnqn.to_owned());
        self.lines
            .iter()
            .filter(move |line| matches!(&line.owner, Owner::Configured(host) if *host == wanted))
    }

    /// Returns the derived keys, with their identities.
    fn derived(&self) -> impl Iterator<Item = (&Line, &Identity)> {
        self.lines.iter().filter_map(|line| match &line.owner {
            Owner::Derived(identity) => Some((line, identity)),
            Owner::Configured(_) => None,
        })
    }

    fn psk(&self, line: &Line, identity: &Identity) -> Option<Psk> {
        Some(Psk { identity: identity.clone(), secret: self.take_out(line)?.key })
    }

    /// Returns the keys for connections of a host to a subsystem, the likeliest first. The keys are the
    /// derived ones for the two. If there are none, they come from the first configured key for the host,
    /// derived in each possible way. The file does not show which of them the peer has.
    pub fn for_host(&self, hostnqn: &str, subnqn: &str) -> Vec<Psk> {
        const VERSIONS: [Version; 2] = [Version::One, Version::Zero];
        let is_theirs = |identity: &Identity| identity.hostnqn() == hostnqn && identity.subnqn() == subnqn;
        let derived = self.derived().filter(|(_, identity)| is_theirs(identity));
        let derived = derived.filter_map(|(line, identity)| self.psk(line, identity));
        let mut derived: Vec<Psk> = derived.take(VERSIONS.len() * Labels::ALL.len()).collect();
        if !derived.is_empty() {
            derived.sort_by_key(|psk| psk.identity.version() != Version::One);
            return derived;
        }
        let Some(key) = self.configured(hostnqn).next().and_then(|line| self.take_out(line)) else {
            return Vec::new();
        };
        let ways = VERSIONS.into_iter().flat_map(|version| Labels::ALL.map(|labels| (version, labels)));
        ways.filter_map(|(version, labels)| key.psk(version, labels, hostnqn, subnqn)).collect()
    }

    /// Returns whether there is a key for this host alone, which excludes the keys for every host.
    fn has_own(&self, hostnqn: &str) -> bool {
        self.lines.iter().any(|line| matches!(&line.owner, Owner::Configured(Some(host)) if host == hostnqn))
    }

    /// Returns whether there may be a key for this host.
    pub fn names(&self, hostnqn: &str) -> bool {
        self.lines.iter().any(|line| match &line.owner {
            Owner::Configured(host) => host.as_ref().is_none_or(|host| host == hostnqn),
            Owner::Derived(identity) => identity.hostnqn() == hostnqn,
        })
    }

    /// Returns the keys that an identity may mean. There may be several, since an identity does not contain
    /// the way of derivation.
    pub fn candidates(&self, identity: &Identity) -> Vec<Psk> {
        let (hostnqn, subnqn) = (identity.hostnqn(), identity.subnqn());
        let derived = self.derived().filter(|(_, other)| *other == identity);
        let derived = derived.filter_map(|(line, identity)| self.psk(line, identity));
        let configured = self.configured(hostnqn).filter_map(|line| self.take_out(line)).flat_map(|key| {
            Labels::ALL
                .map(|labels| key.psk(identity.version(), labels, hostnqn, subnqn))
                .into_iter()
                .flatten()
        });
        derived.chain(configured).filter(|psk| psk.identity == *identity).collect()
    }
}

impl Line {
    /// Reads and checks a line that begins here in the text.
    fn parse(line: &[u8], start: usize) -> Result<Self, &'static str> {
        let line = str::from_utf8(line).map_err(|_| "it is not text")?;
        let (owner, text) = match line.rsplit_once([' ', '\t']) {
            Some((owner, text)) => (Some(owner.trim()), text),
            None => (None, line),
        };
        let (_, key) = interchange(text)?;
        let end = start + line.len();
        let of = |owner| Ok(Self { owner, key: end - text.len()..end });
        let Some(owner) = owner else { return of(Owner::Configured(None)) };
        if let Some(identity) = Identity::parse(owner) {
            return match key.len() == identity.hash.length() {
                true => of(Owner::Derived(identity)),
                false => Err("the key is not as long as the hash in its identity"),
            };
        }
        if owner.starts_with("nqn.") && !owner.contains(char::is_whitespace) {
            return of(Owner::Configured(Some(owner.to_owned())));
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
