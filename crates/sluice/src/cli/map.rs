//! `sluice classifier maps`.

use super::classifier;
use super::converse;
use clap::Subcommand;
use sluice_api::client::{Client, segment};
use sluice_api::{MapList, ValueRequest};
use sluice_control::drives::{MapDump, MapEntry, MapKindName, MapView, to_hex};
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;
use sluice_spec::table::Table;

#[derive(Debug, Subcommand)]
pub(super) enum MapCommand {
    /// List the maps of a drive's classifier
    List { drive: String },
    /// Show the entries of a map
    Dump { drive: String, map: String },
    /// Show one entry of a map
    Get {
        drive: String,
        map: String,
        /// A number, or `hex:` and the bytes
        key: String,
    },
    /// Set an entry of a map
    Set {
        drive: String,
        map: String,
        /// A number, or `hex:` and the bytes
        key: String,
        /// A number, or 64-bit numbers with commas between them, or `hex:` and the bytes
        value: String,
    },
    /// Delete an entry of a map
    Delete {
        drive: String,
        map: String,
        /// A number, or `hex:` and the bytes
        key: String,
    },
}

pub(super) fn run(command: MapCommand, client: &Client, output: Output) -> Result<(), ApiError> {
    match command {
        MapCommand::List { drive } => output.answer(&fetch(client, &drive)?, list),
        MapCommand::Dump { drive, map } => output.answer(&fetch_all(client, &path(&drive, &map))?, dump),
        MapCommand::Get { drive, map, key } => {
            let (path, _) = entry_path(client, &drive, &map, &key)?;
            output.answer(&converse(client.get::<MapEntry>(&path))?, |entry| {
                format!("{}\n", people(&entry.value))
            })
        }
        MapCommand::Set { drive, map, key, value } => {
            let (path, view) = entry_path(client, &drive, &map, &key)?;
            let request = ValueRequest { value: bytes("value", &value, view.value_size)? };
            converse(client.put_quietly(&path, &request))?;
            output.answer(&serde_json::json!({ "set": key }), |_| format!("{map}: {key} is {value}\n"))
        }
        MapCommand::Delete { drive, map, key } => {
            let (path, _) = entry_path(client, &drive, &map, &key)?;
            converse(client.delete(&path))?;
            output.answer(&serde_json::json!({ "deleted": key }), |_| format!("{map}: {key} deleted\n"))
        }
    }
}

fn path(drive: &str, map: &str) -> String {
    format!("{}/maps/{}", classifier::path(drive), segment(map))
}

fn fetch(client: &Client, drive: &str) -> Result<MapList, ApiError> {
    converse(client.get(&format!("{}/maps", classifier::path(drive))))
}

/// Fetches all entries of a map, page by page.
fn fetch_all(client: &Client, path: &str) -> Result<MapDump, ApiError> {
    let mut whole = converse(client.get::<MapDump>(path))?;
    while let Some(from) = whole.next {
        let page = converse(client.get::<MapDump>(&format!("{path}?from={from}")))?;
        whole.entries.extend(page.entries);
        (whole.next, whole.left_out) = (page.next, page.left_out);
    }
    if whole.map.kind != MapKindName::Array {
        whole.entries.sort_by(|one, other| one.key.cmp(&other.key));
        whole.entries.dedup_by(|one, other| one.key == other.key);
    }
    Ok(whole)
}

/// Returns the API path of an entry, and the map that the entry belongs to.
fn entry_path(client: &Client, drive: &str, map: &str, key: &str) -> Result<(String, MapView), ApiError> {
    let maps = fetch(client, drive)?.maps;
    let Some(view) = maps.into_iter().find(|view| view.name == map) else {
        return Err(ApiError::not_found(format!("the classifier of drive `{drive}` has no map `{map}`"))
            .hint(format!("`sluice classifier maps list {drive}` shows what there is")));
    };
    let key = bytes("key", key, view.key_size)?;
    Ok((format!("{}/{key}", path(drive, map)), view))
}

/// Converts a key or value of the command line into `size` bytes in hexadecimal.
fn bytes(what: &str, text: &str, size: u32) -> Result<String, ApiError> {
    if let Some(hex) = text.strip_prefix("hex:") {
        return Ok(hex.to_owned());
    }
    let size = size as usize;
    let wrong = || {
        ApiError::invalid(format!("`{text}` is not a {what} of {size} bytes")).hint(
            "write a number that fits; for a value of several words as many numbers with commas between \
             them; or `hex:` and two digits for each byte",
        )
    };
    let numbers: Option<Vec<u64>> = text.split(',').map(|word| number(word.trim())).collect();
    let numbers = numbers.ok_or_else(wrong)?;
    let all: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let fits = all.len() >= size && all.len() < size + 8 && all[size..].iter().all(|byte| *byte == 0);
    if fits { Ok(to_hex(&all[..size])) } else { Err(wrong()) }
}

fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Converts bytes from hexadecimal to numbers where possible: up to 8 bytes are one number, more are 64-bit
/// words.
fn people(hex: &str) -> String {
    let digits = hex.len() / 2;
    if digits > 8 && !digits.is_multiple_of(8) {
        return format!("hex:{hex}");
    }
    let words = hex.as_bytes().chunks(16).map(|word| {
        let pairs = word.chunks(2).rev().map(|pair| String::from_utf8_lossy(pair).into_owned());
        u64::from_str_radix(&pairs.collect::<String>(), 16).ok().map(|word| word.to_string())
    });
    let words: Option<Vec<String>> = words.collect();
    words.map_or_else(|| format!("hex:{hex}"), |words| words.join(","))
}

fn list(list: &MapList) -> String {
    let mut table = Table::new(&["NAME", "KIND", "KEY", "VALUE", "ENTRIES", "ACCESS"]);
    for map in &list.maps {
        table.row(vec![
            map.name.clone(),
            map.kind.as_str().to_owned(),
            map.key_size.to_string(),
            map.value_size.to_string(),
            map.max_entries.to_string(),
            if map.read_only { "read".to_owned() } else { "write".to_owned() },
        ]);
    }
    table.text()
}

fn dump(dump: &MapDump) -> String {
    let is_zero = |entry: &&MapEntry| entry.value.bytes().all(|digit| digit == b'0');
    // An array's elements always exist, so elements that were never used are left out.
    let hides_zeros = dump.map.kind == MapKindName::Array;
    let hidden = if hides_zeros { dump.entries.iter().filter(is_zero).count() } else { 0 };
    let mut table = Table::new(&["KEY", "VALUE"]);
    for entry in dump.entries.iter().filter(|entry| !hides_zeros || !is_zero(entry)) {
        table.row(vec![people(&entry.key), people(&entry.value)]);
    }
    let mut text = table.text();
    if hidden > 0 {
        text += &format!("{hidden} elements are zero\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_bytes() {
        assert_eq!(bytes("key", "258", 4).expect("it fits"), "02010000");
        assert_eq!(bytes("key", "0xff", 1).expect("it fits"), "ff");
        assert_eq!(bytes("value", "1, 2", 16).expect("it fits"), "01000000000000000200000000000000");
        assert_eq!(bytes("value", "1,2", 12).expect("it fits"), "010000000000000002000000");
        assert_eq!(bytes("key", "hex:00aa", 2).expect("it is passed on"), "00aa");
        for (text, size) in [("256", 1), ("1", 16), ("1,2,3", 16), ("x", 4), ("", 4), ("-1", 8)] {
            bytes("key", text, size).expect_err(text);
        }
    }

    #[test]
    fn bytes_become_numbers() {
        assert_eq!(people("02010000"), "258");
        assert_eq!(people("01000000000000000200000000000000"), "1,2");
        assert_eq!(people("000102030405060708"), "hex:000102030405060708");
    }
}
