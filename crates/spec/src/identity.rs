//! Identifiers of a drive for hosts, derived from its names.

/// Computes a hash that must never change: guests store identifiers derived from it.
pub(super) fn stable_hash(text: &str) -> u64 {
    twox_hash::XxHash3_64::oneshot(text.as_bytes())
}

/// Derives a UUID of version 8 from a text (RFC 9562 5.8).
pub fn uuid(text: &str) -> [u8; 16] {
    let low = twox_hash::XxHash3_64::oneshot_with_seed(1, text.as_bytes());
    let mut bytes = (u128::from(stable_hash(text)) << 64 | u128::from(low)).to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// Derives an NVMe Qualified Name from a text, in the form that needs no registered domain (Base 4.7).
pub fn uuid_nqn(text: &str) -> String {
    format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid_text(&uuid(text)))
}

fn uuid_text(bytes: &[u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(*bytes));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
