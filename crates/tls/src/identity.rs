//! The names of keys (NVMe/TCP Transport 3.6.1.4).

use crate::Hash;
use std::fmt;

/// Version of the derivation in a key's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `NVMe0R01 HOSTNQN SUBNQN`: the key depends on the names of both.
    Zero,
    /// `NVMe1R01 HOSTNQN SUBNQN DIGEST`: the digest identifies one of several keys.
    One,
}

/// The name of a key, checked as far as its form.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    text: String,
    pub(crate) hash: Hash,
    host_end: usize,
    subsystem_end: usize,
}

/// `NVMe`, the version, `R` or `G`, the hash, a space.
const PREFIX: usize = "NVMe0R01 ".len();

/// NQNs of 223 bytes, a digest of 64, and what is between.
const LENGTH_MAX: usize = 560;

impl Identity {
    /// Reads one; `None` if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > LENGTH_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return None;
        }
        let (prefix, names) = text.split_at_checked(PREFIX)?;
        let [b'N', b'V', b'M', b'e', version @ b'0'..=b'1', b'R' | b'G', b'0', hash @ b'1'..=b'2', b' '] =
            prefix.as_bytes()
        else {
            return None;
        };
        let parts: Vec<&str> = names.split(' ').collect();
        let (host, subsystem) = match (version, &parts[..]) {
            (b'0', [host, subsystem]) => (host, subsystem),
            (b'1', [host, subsystem, digest]) if !digest.is_empty() => (host, subsystem),
            _ => return None,
        };
        if host.is_empty() || subsystem.is_empty() {
            return None;
        }
        let host_end = PREFIX + host.len();
        let subsystem_end = host_end + 1 + subsystem.len();
        Some(Self { text: text.to_owned(), hash: Hash::of_number(hash - b'0')?, host_end, subsystem_end })
    }

    pub(crate) fn new(hash: Hash, hostnqn: &str, subnqn: &str, digest: Option<&str>) -> Option<Self> {
        let number = hash.number();
        match digest {
            None => Self::parse(&format!("NVMe0R{number:02} {hostnqn} {subnqn}")),
            Some(digest) => Self::parse(&format!("NVMe1R{number:02} {hostnqn} {subnqn} {digest}")),
        }
    }

    /// Returns the whole text, as it is sent.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the host's NVMe Qualified Name.
    pub fn hostnqn(&self) -> &str {
        &self.text[PREFIX..self.host_end]
    }

    /// Returns the subsystem's NVMe Qualified Name.
    pub fn subnqn(&self) -> &str {
        &self.text[self.host_end + 1..self.subsystem_end]
    }

    /// Returns the version of the derivation.
    pub fn version(&self) -> Version {
        if self.text.as_bytes()[4] == b'0' { Version::Zero } else { Version::One }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_versions_are_read() {
        let zero = Identity::parse("NVMe0R01 nqn.host nqn.sub").expect("an identity");
        assert_eq!((zero.hostnqn(), zero.subnqn()), ("nqn.host", "nqn.sub"));
        assert_eq!((zero.version(), zero.hash), (Version::Zero, Hash::Sha256));
        let one = Identity::parse("NVMe1G02 nqn.host nqn.sub abc=").expect("an identity");
        assert_eq!((one.hostnqn(), one.subnqn()), ("nqn.host", "nqn.sub"));
        assert_eq!((one.version(), one.hash), (Version::One, Hash::Sha384));
        assert_eq!(one.to_string(), "NVMe1G02 nqn.host nqn.sub abc=");
    }

    #[test]
    fn other_names_are_none() {
        let cases = [
            "",
            "NVMe0R01 ",
            "NVMe0R01 a",
            "NVMe0R01 a ",
            "NVMe0R01  b",
            "NVMe0R01 a b c",
            "NVMe1R01 a b",
            "NVMe1R01 a b ",
            "NVMe2R01 a b c",
            "NVMe0X01 a b",
            "NVMe0R00 a b",
            "NVMe0R03 a b",
            "NVMe0R11 a b",
            "nVMe0R01 a b",
            "NVMe0R01\u{a0}a b",
            "NVMe0R01 a\n b",
        ];
        for text in cases {
            assert_eq!(Identity::parse(text), None, "{text:?}");
        }
        let of_bytes = |bytes: usize| Identity::parse(&format!("NVMe0R01 {} b", "a".repeat(bytes - 11)));
        assert!(of_bytes(LENGTH_MAX).is_some());
        assert_eq!(of_bytes(LENGTH_MAX + 1), None);
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_was_said(text in "NVMe[0-2][RG]0[0-3] [a-z ]{0,12}") {
            if let Some(identity) = Identity::parse(&text) {
                prop_assert_eq!(identity.as_str(), &text[..]);
                let names = format!("{} {}", identity.hostnqn(), identity.subnqn());
                prop_assert!(text[PREFIX..].starts_with(&names));
            }
        }
    }
}
