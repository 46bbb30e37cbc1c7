//! Encoding of state files: `MAGIC VERSION CHECKSUM LENGTH`, a newline, and LENGTH bytes of JSON.

use super::Saved;
use super::hosts::HostState;
use serde::de::DeserializeOwned;

/// The first word of the state file.
const MAGIC: &str = "sluice-state";

/// Current version. It is raised when an older daemon could misread the body.
const VERSION: u32 = 2;

/// The version of a state without files of hosts, as written by older daemons.
const ONE_PIECE: u32 = 1;

/// The first word of the file of a drive's hosts.
const HOSTS_MAGIC: &str = "sluice-hosts";

const HOSTS_VERSION: u32 = 1;

pub(super) fn encode(saved: &Saved) -> Vec<u8> {
    let version = if saved.hosted.is_empty() { ONE_PIECE } else { VERSION };
    let body = serde_json::to_string_pretty(saved).expect("plain data with text keys has a JSON form");
    framed(MAGIC, version, body)
}

pub(super) fn encode_hosts(state: &HostState) -> Vec<u8> {
    let body = serde_json::to_string(state).expect("plain data with text keys has a JSON form");
    framed(HOSTS_MAGIC, HOSTS_VERSION, body)
}

fn framed(magic: &str, version: u32, mut body: String) -> Vec<u8> {
    body.push('\n');
    let header = format!("{magic} {version} {:016x} {}\n", checksum(body.as_bytes()), body.len());
    (header + &body).into_bytes()
}

/// Decodes the state file. The error describes why it cannot be trusted.
pub(super) fn decode(bytes: &[u8]) -> Result<Saved, String> {
    decode_as(bytes, MAGIC, VERSION)
}

/// Decodes the file of a drive's hosts. The error describes why it cannot be trusted.
pub(super) fn decode_hosts(bytes: &[u8]) -> Result<HostState, String> {
    decode_as(bytes, HOSTS_MAGIC, HOSTS_VERSION)
}

fn decode_as<T: DeserializeOwned>(bytes: &[u8], magic: &str, newest: u32) -> Result<T, String> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or("it has no whole first line")?;
    let (header, body) = (&bytes[..end], &bytes[end + 1..]);
    let (sum, length) = parse_header(header, magic, newest)?;
    if body.len() != length {
        return Err(format!("it should have {length} bytes after its first line and has {}", body.len()));
    }
    if checksum(body) != sum {
        return Err("its checksum does not fit its content".to_owned());
    }
    serde_json::from_slice(body).map_err(|error| format!("its content is not understood: {error}"))
}

fn parse_header(header: &[u8], expected: &str, newest: u32) -> Result<(u64, usize), String> {
    let header = std::str::from_utf8(header).map_err(|_| "its first line is not text")?;
    let [magic, version, sum, length] = header.split(' ').collect::<Vec<_>>()[..] else {
        return Err("its first line does not have four words".to_owned());
    };
    if magic != expected {
        return Err(format!("it does not start with {expected}"));
    }
    match version.parse::<u32>() {
        Ok(version) if (1..=newest).contains(&version) => {}
        Ok(newer) if newer > newest => {
            return Err(format!("it is of version {newer}, and this daemon knows {newest}: use a newer one"));
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
