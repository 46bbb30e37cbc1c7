//! Numbers and names in the form that users write and read.

use super::layout::Shape;
use super::table::{Table, Version};

/// Bytes of the longest name of a version.
pub(crate) const NAME_MAX: usize = 64;

/// Parses `64KiB`, `20GiB`, or a number of bytes.
pub(crate) fn parse_bytes(words: &str) -> Option<u64> {
    let digits = words.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &words[digits.len()..] {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Formats bytes in the same form.
pub(crate) fn format_bytes(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes} bytes"), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// Returns whether a version may have this name: letters, digits, `-`, `_` and `.`.
pub(crate) fn is_name(name: &str) -> bool {
    let possible = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(possible)
}

/// Returns versions as a list of JSON.
pub(crate) fn versions_in_json(versions: &[Version]) -> String {
    // A name has no character that JSON escapes.
    let one =
        |Version { name, created, .. }: &Version| format!("{{\"name\":\"{name}\",\"created\":{created}}}");
    format!("[{}]", versions.iter().map(one).collect::<Vec<_>>().join(","))
}

/// Returns the fill level of a store of that shape, in JSON.
pub(crate) fn table_in_json(table: &Table, Shape { size, chunk }: Shape) -> String {
    let (all, free) = table.room();
    format!(
        "{{\"ready\":true,\"size\":{size},\"chunk\":{chunk},\"mapped\":{},\"store\":{},\"free\":{},\"low\":{},\"versions\":{}}}",
        table.mapped() * chunk,
        all * chunk,
        free * chunk,
        free * 5 < all,
        table.versions().len(),
    )
}

/// Returns a text as a string of JSON, without its quotes.
pub(crate) fn in_json(words: &str) -> String {
    words
        .chars()
        .map(|c| match c {
            '"' | '\\' => format!("\\{c}"),
            c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
            c => c.to_string(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_json_has_it() {
        let words = "a snapshot store's \"x\" \\ y\n";
        assert_eq!(in_json(words), "a snapshot store's \\\"x\\\" \\\\ y\\u000a");
    }
}
