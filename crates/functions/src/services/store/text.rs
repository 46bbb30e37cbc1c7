//! Numbers and names in the form that users write and read.

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
