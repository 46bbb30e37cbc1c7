//! The state file's bytes: `sluice-state VERSION CHECKSUM LENGTH`, a new line, and as much JSON.

use super::Saved;

/// The first word of the file.
const MAGIC: &str = "sluice-state";

/// Raised when an older daemon could misread the body.
const VERSION: u32 = 1;

pub(super) fn encode(saved: &Saved) -> Vec<u8> {
    let mut body = serde_json::to_string_pretty(saved).expect("plain data with text keys has a JSON form");
    body.push('\n');
    let header = format!("{MAGIC} {VERSION} {:016x} {}\n", checksum(body.as_bytes()), body.len());
    (header + &body).into_bytes()
}

/// What the bytes say, or why they cannot be trusted.
pub(super) fn decode(bytes: &[u8]) -> Result<Saved, String> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or("it has no whole first line")?;
    let (header, body) = (&bytes[..end], &bytes[end + 1..]);
    let (sum, length) = parse_header(header)?;
    if body.len() != length {
        return Err(format!("it should have {length} bytes after its first line and has {}", body.len()));
    }
    if checksum(body) != sum {
        return Err("its checksum does not fit its content".to_owned());
    }
    serde_json::from_slice(body).map_err(|error| format!("its content is not understood: {error}"))
}

fn parse_header(header: &[u8]) -> Result<(u64, usize), String> {
    let header = std::str::from_utf8(header).map_err(|_| "its first line is not text")?;
    let [magic, version, sum, length] = header.split(' ').collect::<Vec<_>>()[..] else {
        return Err("its first line does not have four words".to_owned());
    };
    if magic != MAGIC {
        return Err(format!("it does not start with {MAGIC}"));
    }
    match version.parse::<u32>() {
        Ok(VERSION) => {}
        Ok(newer) if newer > VERSION => {
            return Err(format!(
                "it is of version {newer}, and this daemon knows {VERSION}: use a newer one"
            ));
        }
        _ => return Err(format!("`{version}` is not its version")),
    }
    let sum = u64::from_str_radix(sum, 16).map_err(|_| "its checksum is not a number")?;
    let length = length.parse().map_err(|_| "its length is not a number")?;
    Ok((sum, length))
}

fn checksum(body: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(body)
}
