//! Files that describe a drive or a function, in JSON as the API takes it or in TOML as the configuration has it.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sluice_spec::error::ApiError;
use std::io::Read;
use std::path::Path;

/// Reads the keys in a file; `-` is standard input. JSON begins with a brace.
pub(super) fn read(file: &Path) -> Result<Map<String, Value>, ApiError> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|mut opened| opened.read_to_string(&mut text))
    }
    .map_err(|error| ApiError::io("read", file, &error))?;
    match text.trim_start().starts_with('{') {
        true => serde_json::from_str(&text).map_err(|error| misfit(file, &error.to_string())),
        false => toml::from_str(&text).map_err(|error| misfit(file, error.to_string().trim_end())),
    }
}

/// Builds the value that the keys describe.
pub(super) fn understand<T: DeserializeOwned>(file: &Path, keys: Map<String, Value>) -> Result<T, ApiError> {
    serde_json::from_value(Value::Object(keys)).map_err(|error| misfit(file, &error.to_string()))
}

fn misfit(file: &Path, words: &str) -> ApiError {
    let hint = sluice_spec::words::hint_for(words).unwrap_or_else(|| "see `sluice openapi`".to_owned());
    ApiError::invalid(format!("{}: {words}", file.display())).hint(hint)
}
