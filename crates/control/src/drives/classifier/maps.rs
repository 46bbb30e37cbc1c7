//! The maps of a classifier, as the API shows and changes them.

use serde::{Deserialize, Serialize};
use sluice_classifier::{Map, MapError, MapKind, Update};
use sluice_spec::error::{ApiError, Kind};
use sluice_spec::words::nearest;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// Maximum number of a map's entries in one response.
pub const ENTRIES_MAX: usize = 65_536;

/// Maximum bytes of keys and values in one response, except that a single larger entry fits.
const PAGE_BYTES: usize = 4 << 20;

/// Attempts to change a map that is being changed. Changes by the program take microseconds.
const TRIES: u32 = 100;

/// A map of a classifier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MapView {
    pub name: String,
    pub kind: MapKindName,
    /// Size of a key, bytes.
    pub key_size: u32,
    /// Size of a value, bytes.
    pub value_size: u32,
    pub max_entries: u32,
    /// Whether the program may not change the map.
    pub read_only: bool,
    /// Whether all drives whose classifiers have such a map share it.
    pub shared: bool,
}

/// Kind of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MapKindName {
    /// Array whose elements always exist.
    Array,
    Hash,
    /// Hash that evicts the least recently used elements.
    LruHash,
    /// Map from ranges of blocks to their locations.
    Translation,
}

impl MapKindName {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::Hash => "hash",
            Self::LruHash => "lru-hash",
            Self::Translation => "translation",
        }
    }
}

/// An element of a map. Bytes are in hexadecimal, in their order in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MapEntry {
    pub key: String,
    pub value: String,
}

/// A map with a page of its entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MapDump {
    pub map: MapView,
    pub entries: Vec<MapEntry>,
    /// Number of entries after this page.
    pub left_out: usize,
    /// The position that the next page begins `from`; none at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<usize>,
}

impl From<&Arc<Map>> for MapView {
    fn from(map: &Arc<Map>) -> Self {
        let def = map.def();
        Self {
            name: def.name.clone(),
            kind: match def.kind {
                MapKind::Array => MapKindName::Array,
                MapKind::Hash => MapKindName::Hash,
                MapKind::LruHash => MapKindName::LruHash,
                MapKind::Translation => MapKindName::Translation,
            },
            key_size: def.key_size,
            value_size: def.value_size,
            max_entries: def.max_entries,
            read_only: def.read_only(),
            shared: def.shared(),
        }
    }
}

/// Returns the map of this name.
pub(super) fn find(maps: &[Arc<Map>], name: &str) -> Result<Arc<Map>, ApiError> {
    if let Some(map) = maps.iter().find(|map| map.def().name == name) {
        return Ok(Arc::clone(map));
    }
    let problem = ApiError::not_found(format!("the classifier has no map `{name}`"));
    Err(match nearest(name, maps.iter().map(|map| map.def().name.as_str())) {
        Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
        None => problem.hint("`sluice classifier maps list` shows what there is"),
    })
}

/// Returns a page of a map, with at most `limit` entries and about [`PAGE_BYTES`].
pub(super) fn dump(map: &Arc<Map>, from: usize, limit: usize) -> MapDump {
    let def = map.def();
    let fitting = PAGE_BYTES / (def.key_size as usize + def.value_size as usize);
    let page = map.page(from, limit.min(fitting).clamp(1, ENTRIES_MAX));
    let entry = |(key, value): &(Vec<u8>, Vec<u8>)| MapEntry { key: to_hex(key), value: to_hex(value) };
    let entries = page.entries.iter().map(entry).collect();
    MapDump { map: map.into(), entries, left_out: page.left, next: page.next }
}

pub(super) fn get(map: &Map, key: &str) -> Result<MapEntry, ApiError> {
    let bytes = from_hex(key, "key", map.def().key_size)?;
    let value = patiently(|| map.get(&bytes)).map_err(|error| failed(map, error))?;
    Ok(MapEntry { key: to_hex(&bytes), value: to_hex(&value) })
}

pub(super) fn set(map: &Map, key: &str, value: &str) -> Result<(), ApiError> {
    let key = from_hex(key, "key", map.def().key_size)?;
    let value = from_hex(value, "value", map.def().value_size)?;
    patiently(|| map.set(&key, &value, Update::Any)).map_err(|error| failed(map, error))
}

pub(super) fn remove(map: &Map, key: &str) -> Result<(), ApiError> {
    let key = from_hex(key, "key", map.def().key_size)?;
    patiently(|| map.remove(&key)).map_err(|error| failed(map, error))
}

/// Repeats an access while the map is being changed, at most [`TRIES`] times.
fn patiently<T>(mut work: impl FnMut() -> Result<T, MapError>) -> Result<T, MapError> {
    for _ in 0..TRIES {
        match work() {
            Err(MapError::Busy) => std::thread::sleep(Duration::from_micros(100)),
            done => return done,
        }
    }
    work()
}

fn failed(map: &Map, error: MapError) -> ApiError {
    let kind = match error {
        MapError::NotFound => Kind::NotFound,
        MapError::Exists | MapError::Full => Kind::Conflict,
        MapError::Busy => Kind::Unavailable,
        MapError::Invalid => Kind::Invalid,
    };
    ApiError::new(kind, format!("map `{}`: {error}", map.def().name))
}

/// Returns two hexadecimal digits for each byte.
pub fn to_hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Parses the `size` bytes of a key or value.
fn from_hex(text: &str, what: &str, size: u32) -> Result<Vec<u8>, ApiError> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let digits: Option<Vec<u8>> = text.as_bytes().iter().map(digit).collect();
    let wrong = || {
        ApiError::invalid(format!("{what}: `{}` is not {size} bytes in hexadecimal", text.escape_debug()))
            .hint(format!("two digits for each byte, {} in all", u64::from(size) * 2))
    };
    let digits = digits.filter(|digits| digits.len() as u64 == u64::from(size) * 2).ok_or_else(wrong)?;
    Ok(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_goes_there_and_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes), "key", 256).expect("it is"), bytes);
        assert_eq!(from_hex("0aF0", "key", 2).expect("it is"), [0x0a, 0xf0]);
        for wrong in ["", "0", "0a", "0a0", "0a0b0c", "0x0a", "ä0a", "g000", "+0a1"] {
            let problem = from_hex(wrong, "key", 2).expect_err(wrong);
            assert_eq!(problem.kind, Kind::Invalid);
        }
    }
}
