//! Sizes as people write them: `64MiB`, `1GiB`, or a number of bytes.

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// Units, largest first, so that the first one that divides a size gives its shortest form.
const UNITS: [(&str, u64); 10] = [
    ("PiB", 1 << 50),
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("PB", 1_000_000_000_000_000),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
];

/// Number of [`UNITS`] that are powers of two; only those are written.
const BINARY_UNITS: usize = 5;

impl Size {
    /// The largest size that a file offset can address.
    pub const MAX: Size = Size(i64::MAX as u64);
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit =
            UNITS[..BINARY_UNITS].iter().find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor));
        match unit {
            Some((name, factor)) => f.pad(&format!("{}{name}", self.0 / factor)),
            None => f.pad(&format!("{}B", self.0)),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| not_a_size(text))?;
        number
            .checked_mul(factor(unit.trim(), text)?)
            .map(Size)
            .ok_or_else(|| format!("`{text}` is too large"))
    }
}

fn factor(unit: &str, text: &str) -> Result<u64, String> {
    if unit.is_empty() || unit == "B" {
        return Ok(1);
    }
    if let Some((_, factor)) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
        return Ok(*factor);
    }
    // `64M` means 2^20 to some tools and 10^6 to others, so the user has to choose.
    match UNITS.iter().find(|(name, _)| unit.len() == 1 && name[..1].eq_ignore_ascii_case(unit)) {
        Some((name, _)) => Err(format!("`{text}` has two meanings: say {name} or {}B", &name[..1])),
        None => Err(not_a_size(text)),
    }
}

fn not_a_size(text: &str) -> String {
    format!("`{text}` is not a size: write a whole number with KiB, MiB, GiB or TiB, such as `64MiB`")
}

/// Serialization as a number of bytes, because programs read it.
impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as \"64MiB\" or a number of bytes")
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
        Ok(Size(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
        u64::try_from(bytes).map(Size).map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        text.parse().map_err(E::custom)
    }
}

impl utoipa::PartialSchema for Size {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String).examples(["64MiB"]);
        let bytes = ObjectBuilder::new().schema_type(Type::Integer).description(Some("Bytes."));
        OneOfBuilder::new()
            .item(bytes)
            .item(text)
            .description(Some("A number of bytes, or words such as 64MiB; answers are always numbers."))
            .into()
    }
}

impl utoipa::ToSchema for Size {}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u64, String> {
        text.parse::<Size>().map(|size| size.0)
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        assert_eq!(parse(" 1 gib "), Ok(1 << 30));
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("4096B"), Ok(4096));
        assert_eq!(parse("2TB"), Ok(2_000_000_000_000));
    }

    #[test]
    fn what_is_no_size_is_refused_in_words() {
        assert_eq!(parse("64M"), Err("`64M` has two meanings: say MiB or MB".into()));
        assert_eq!(parse("99999999PiB"), Err("`99999999PiB` is too large".into()));
        for text in ["", "MiB", "-1", "1.5GiB", "64MiBs", "18446744073709551616", "6é"] {
            assert!(parse(text).is_err_and(|words| words.contains("is not a size")), "{text}");
        }
    }

    #[test]
    fn sizes_are_written_as_they_are_read() {
        for (bytes, text) in
            [(0, "0B"), (513, "513B"), (1536, "1536B"), (64 << 20, "64MiB"), (3 << 40, "3TiB")]
        {
            assert_eq!(Size(bytes).to_string(), text);
            assert_eq!(parse(text), Ok(bytes));
        }
    }
}
