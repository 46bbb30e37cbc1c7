//! The programs that a benchmark starts.

use sluice_spec::error::ApiError;
use std::path::PathBuf;

/// Returns the path of this program.
pub(crate) fn own() -> Result<PathBuf, ApiError> {
    std::env::current_exe().map_err(|error| ApiError::internal(format!("cannot find this program: {error}")))
}

/// Returns the path at which `sluice` belongs, beside this program.
pub(crate) fn beside() -> Result<PathBuf, ApiError> {
    Ok(own()?.with_file_name("sluice"))
}

/// Returns the path of `sluice`, if it is there.
pub(crate) fn daemon() -> Result<PathBuf, ApiError> {
    let daemon = beside()?;
    match daemon.exists() {
        true => Ok(daemon),
        false => Err(ApiError::not_found(format!("there is no {}", daemon.display()))
            .hint("`make build` makes it, in the same folder")),
    }
}
