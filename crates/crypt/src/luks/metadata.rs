//! The metadata: JSON (specification, chapter 3).

use super::Segment;
use super::keyslot::{Digest, Keyslot};
use base64ct::{Base64, Encoding};
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::Value;
use std::collections::BTreeMap;

/// Letters of a quotation from a header.
const WORDS_MAX: usize = 120;

/// Keyslots of one header, the limit of cryptsetup.
const KEYSLOTS_MAX: usize = 32;

/// Keyslots that may open a disk.
pub(super) struct Candidates<'a> {
    /// Digest that identifies the disk's key.
    pub(super) digest: Digest,
    /// Keyslots to be tried, by their names, in this order.
    pub(super) keyslots: Vec<(&'a str, Keyslot)>,
    /// Keyslots that cannot be tried, with the reason.
    pub(super) untried: Vec<(&'a str, String)>,
}

/// Used part of the metadata. Objects of other kinds are not parsed.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    keyslots: BTreeMap<String, Value>,
    segments: BTreeMap<String, Value>,
    digests: BTreeMap<String, Value>,
    config: Config,
}

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    requirements: Requirements,
}

#[derive(Debug, Default, Deserialize)]
struct Requirements {
    #[serde(default)]
    mandatory: Vec<String>,
}

#[derive(Deserialize)]
struct CryptSegment {
    offset: Number,
    size: Size,
    iv_tweak: Number,
    encryption: String,
    sector_size: u32,
    integrity: Option<Value>,
}

/// Number in a string: the notation for large numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number(pub(super) u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(|_| D::Error::custom("not a number"))
    }
}

/// A number or "dynamic".
struct Size(Option<u64>);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match String::deserialize(from)?.as_str() {
            "dynamic" => Ok(Self(None)),
            text => text.parse().map(|size| Self(Some(size))).map_err(|_| D::Error::custom("not a size")),
        }
    }
}

/// Bytes, in base64.
#[derive(Clone, Debug)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Base64::decode_vec(&text).map(Self).map_err(|_| D::Error::custom("not base64"))
    }
}

impl Metadata {
    pub(super) fn parse(json: &[u8]) -> Result<Self, String> {
        let metadata: Self = serde_json::from_slice(json)
            .map_err(|error| format!("the LUKS header's metadata makes no sense: {}", plain(&error)))?;
        let keyslots = metadata.keyslots.len();
        if keyslots > KEYSLOTS_MAX {
            return Err(format!("the LUKS header has {keyslots} keyslots; {KEYSLOTS_MAX} are possible"));
        }
        match metadata.config.requirements.mandatory.first() {
            // Such as a reencryption that is not finished.
            Some(one) => Err(format!("the LUKS header requires what Sluice cannot do: {}", plain(one))),
            None => Ok(metadata),
        }
    }

    /// Returns the only segment.
    pub(super) fn segment(&self) -> Result<Segment, String> {
        let (_, value) = self.only_segment()?;
        let segment: CryptSegment = object("segment", value)?;
        if segment.encryption != "aes-xts-plain64" || segment.integrity.is_some() {
            return Err(format!(
                "the LUKS disk is encrypted with {}{}, not with aes-xts-plain64 alone",
                plain(&segment.encryption),
                if segment.integrity.is_some() { " and integrity" } else { "" }
            ));
        }
        let sector = u64::from(segment.sector_size);
        if !(512..=4096).contains(&sector) || !sector.is_power_of_two() {
            return Err(format!("the LUKS disk has sectors of {sector} bytes"));
        }
        let Number(offset) = segment.offset;
        if !offset.is_multiple_of(sector) || !segment.size.0.unwrap_or(0).is_multiple_of(sector) {
            return Err("the LUKS disk does not consist of whole sectors".to_owned());
        }
        let (size, sector_size) = (segment.size.0, segment.sector_size);
        Ok(Segment { offset, size, sector_size, iv_tweak: segment.iv_tweak.0 })
    }

    /// Returns all keyslots that may be tried, preferred ones first, or the one of this number.
    pub(super) fn keyslots(&self, number: Option<u32>) -> Result<Candidates<'_>, String> {
        let digest = self.digest()?;
        let wanted = number.map(|number| number.to_string());
        let (mut keyslots, mut untried) = (Vec::new(), Vec::new());
        for (name, value) in self.keyslots.iter().filter(|(name, _)| digest.has(name)) {
            if wanted.as_ref().is_none_or(|wanted| wanted == name) && value["type"] == "luks2" {
                match object::<Keyslot>("keyslot", value) {
                    Ok(keyslot) => keyslots.push((name.as_str(), keyslot)),
                    // Another keyslot may open the disk nevertheless.
                    Err(words) => untried.push((name.as_str(), words)),
                }
            }
        }
        keyslots.retain(|(_, keyslot)| keyslot.is_usual() || number.is_some());
        keyslots.sort_by_key(|(_, keyslot)| !keyslot.is_preferred());
        match (keyslots.is_empty() && untried.is_empty(), wanted) {
            (false, _) => Ok(Candidates { digest, keyslots, untried }),
            (true, Some(number)) => {
                Err(format!("the LUKS header has no keyslot {number} with the disk's key"))
            }
            (true, None) => Err("the LUKS header has no keyslot with the disk's key".to_owned()),
        }
    }

    /// Returns the digest that identifies the disk's key. An unreadable digest is an error if there is no
    /// other of the disk.
    fn digest(&self) -> Result<Digest, String> {
        let (segment, _) = self.only_segment()?;
        let mut unreadable = None;
        for value in self.digests.values() {
            match object::<Digest>("digest", value) {
                Ok(digest) if digest.is_of(segment) => return Ok(digest),
                Ok(_) => {}
                Err(words) => unreadable = Some(words),
            }
        }
        Err(unreadable.unwrap_or_else(|| "the LUKS header has no digest of the disk's key".to_owned()))
    }

    fn only_segment(&self) -> Result<(&str, &Value), String> {
        let mut segments = self.segments.iter();
        match (segments.next(), segments.next()) {
            (Some((name, value)), None) if value["type"] == "crypt" => Ok((name, value)),
            _ => Err("the LUKS disk is not one encrypted segment: is a reencryption under way?".to_owned()),
        }
    }
}

fn object<'a, T: Deserialize<'a>>(kind: &str, value: &'a Value) -> Result<T, String> {
    T::deserialize(value)
        .map_err(|error| format!("a {kind} of the LUKS header makes no sense: {}", plain(&error)))
}

/// Makes words that may contain bytes of the header safe for a terminal and a line of a log.
pub(super) fn plain(words: &impl ToString) -> String {
    words.to_string().chars().filter(|letter| !letter.is_control()).take(WORDS_MAX).collect()
}
