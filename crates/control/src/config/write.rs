//! Writes drives as a configuration file.

use super::Tcp;
use serde_json::{Map, Value};
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::{DriveSpec, GroupSpec, SharedSpec};
use std::fmt::Write;

/// Parts of a daemon that its configuration file would have.
#[derive(Clone, Debug, Default)]
pub struct Exported {
    pub cores: Vec<usize>,
    pub tcp: Tcp,
    pub shared: Vec<SharedSpec>,
    pub groups: Vec<GroupSpec>,
    pub drives: Vec<DriveSpec>,
}

/// Tables of a drive that have a header of their own.
const TABLES: [&str; 4] = ["classifier", "vfio_user", "tcp", "pool"];

/// Lists of a namespace with a line for each element.
const LISTS: [&str; 2] = ["functions", "paths"];

/// Keys that come first in their table.
const FIRST: [&str; 4] = ["name", "target", "kind", "function"];

/// Returns the keys of a table in the order in which they are written.
fn in_order(table: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut keys: Vec<_> = table.iter().filter(|(_, is)| !is.is_null()).collect();
    keys.sort_by_key(|(key, _)| FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len()));
    keys
}

/// Returns a configuration file that makes the same drives.
///
/// # Errors
/// A value has no form in TOML.
pub fn write(exported: &Exported) -> Result<String, ApiError> {
    let mut text = String::new();
    if !exported.cores.is_empty() {
        let cores: Vec<String> = exported.cores.iter().map(usize::to_string).collect();
        line(&mut text, &format!("[daemon]\ncores = [{}]\n", cores.join(", ")));
    }
    tcp(&exported.tcp, &mut text)?;
    for shared in &exported.shared {
        line(&mut text, "[[shared]]");
        keys(&object(shared)?, &mut text)?;
        text.push('\n');
    }
    for group in &exported.groups {
        line(&mut text, "[[group]]");
        keys(&object(group)?, &mut text)?;
        text.push('\n');
    }
    for drive in &exported.drives {
        write_drive(drive, &mut text)?;
    }
    Ok(text)
}

fn line(text: &mut String, words: &str) {
    text.push_str(words);
    text.push('\n');
}

fn tcp(tcp: &Tcp, text: &mut String) -> Result<(), ApiError> {
    if *tcp == Tcp::default() {
        return Ok(());
    }
    line(text, "[tcp]");
    for (key, addresses) in [("listen", &tcp.listen), ("listen_tls", &tcp.listen_tls)] {
        let addresses: Vec<Value> = addresses.iter().map(|address| address.to_string().into()).collect();
        if !addresses.is_empty() {
            line(text, &format!("{key} = {}", value(&addresses.into())?));
        }
    }
    if let Some(keys) = &tcp.discovery_keys {
        line(text, &format!("discovery_keys = {}", value(&json(keys)?)?));
    }
    text.push('\n');
    Ok(())
}

fn write_drive(drive: &DriveSpec, text: &mut String) -> Result<(), ApiError> {
    let mut drive = object(drive)?;
    let tables: Vec<_> = TABLES.iter().filter_map(|name| Some((*name, drive.remove(*name)?))).collect();
    let namespaces = drive.remove("namespaces");
    line(text, "[[drive]]");
    keys(&drive, text)?;
    for (name, table) in &tables {
        if let Value::Object(table) = table {
            line(text, &format!("[drive.{name}]"));
            keys(table, text)?;
        }
    }
    for namespace in namespaces.iter().filter_map(Value::as_array).flatten().filter_map(Value::as_object) {
        line(text, "[[drive.namespace]]");
        keys(namespace, text)?;
    }
    text.push('\n');
    Ok(())
}

/// Writes the keys of a table, a line for each.
fn keys(table: &Map<String, Value>, text: &mut String) -> Result<(), ApiError> {
    for (key, is) in in_order(table) {
        let name = name(key)?;
        match is {
            Value::Number(bytes) if key == "size" => {
                let size = Size(bytes.as_u64().unwrap_or_default());
                line(text, &format!("{name} = \"{size}\""));
            }
            Value::Array(list) if LISTS.contains(&key.as_str()) => {
                line(text, &format!("{name} = ["));
                for element in list {
                    line(text, &format!("  {},", value(element)?));
                }
                line(text, "]");
            }
            is => line(text, &format!("{name} = {}", value(is)?)),
        }
    }
    Ok(())
}

/// Returns a value on one line.
fn value(is: &Value) -> Result<String, ApiError> {
    Ok(match is {
        Value::Null => return Err(no_form("null")),
        Value::Bool(_) => is.to_string(),
        Value::Number(number) if number.is_u64() && number.as_i64().is_none() => {
            return Err(no_form(&number.to_string()));
        }
        Value::Number(number) => number.to_string(),
        Value::String(text) => string(text)?,
        Value::Array(list) => {
            let list: Vec<String> = list.iter().map(value).collect::<Result<_, _>>()?;
            format!("[{}]", list.join(", "))
        }
        Value::Object(table) => {
            let mut text = String::new();
            for (key, is) in in_order(table) {
                let before = if text.is_empty() { "" } else { "," };
                let _ = write!(text, "{before} {} = {}", name(key)?, value(is)?);
            }
            format!("{{{text} }}")
        }
    })
}

/// Returns a string as a basic string of TOML, whose escapes are those of JSON.
fn string(text: &str) -> Result<String, ApiError> {
    let json = serde_json::to_string(text).map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(json.replace('\u{7f}', "\\u007f"))
}

fn name(key: &str) -> Result<String, ApiError> {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if !key.is_empty() && key.bytes().all(is_bare) { Ok(key.to_owned()) } else { string(key) }
}

fn json(of: &impl serde::Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(of).map_err(|error| ApiError::internal(error.to_string()))
}

fn object(of: &impl serde::Serialize) -> Result<Map<String, Value>, ApiError> {
    match json(of)? {
        Value::Object(object) => Ok(object),
        other => Err(no_form(&other.to_string())),
    }
}

fn no_form(what: &str) -> ApiError {
    ApiError::internal(format!("{what} has no form in a configuration file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use std::path::Path;

    #[test]
    fn a_drive_is_read_as_it_was_written() {
        let text = r#"
            [daemon]
            cores = [0, 1]
            [tcp]
            listen = ["127.0.0.1:4420"]
            listen_tls = ["[::1]:4421"]
            [[shared]]
            name = "fast"
            type = "memory-pool"
            size = "1GiB"
            reactor = 1
            [[group]]
            name = "gold"
            limits = { iops = 1000, write_bandwidth = "10MB" }
            [[drive]]
            name = "web"
            serial = "A\"B"
            reactor = 1
            [drive.tcp]
            nqn = "nqn.2026-11.example:web"
            [drive.vfio_user]
            sockets = 2
            [[drive.namespace]]
            target = "file"
            path = "/srv/a \t\u007f\"'é.img"
            size = 1000448
            functions = [
              { kind = "uif", function = "encrypt", options = { "key file" = "/k", other = "x=\"y\"" } },
              { kind = "stripe", chunk = "64KiB", layers = [ { target = "null", size = "1MiB" } ] },
            ]
            [[drive.namespace]]
            target = "memory-pool"
            shared = "fast"
            size = "64MiB"
            block_size = 4096
            paths = [ { name = "p", target = "file", path = "/own" } ]
            [[drive]]
            name = "pooled"
            [drive.pool]
            target = "memory"
            size = "1GiB"
        "#;
        let read = |text: &str| {
            parse(text, Path::new("/etc/sluice.toml")).unwrap_or_else(|error| panic!("{error}\n{text}"))
        };
        let was = read(text);
        let (cores, tcp) = (was.daemon.cores.clone(), was.tcp.clone());
        let (shared, groups, drives) = (was.shared.clone(), was.groups.clone(), was.drives.clone());
        let exported = Exported { cores, tcp, shared, groups, drives };
        let is = read(&write(&exported).expect("it can be written"));
        assert_eq!(is, was);
    }

    #[test]
    fn a_number_beyond_those_of_toml_is_refused() {
        let number: Value = u64::MAX.into();
        assert!(value(&number).is_err() && value(&i64::MAX.into()).is_ok() && value(&Value::Null).is_err());
    }
}
