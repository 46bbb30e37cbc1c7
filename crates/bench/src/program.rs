//! The programs that a benchmark starts.

use sluice_spec::problem::Problem;
use std::path::PathBuf;

/// Returns the path of this program.
pub(crate) fn own() -> Result<PathBuf, Problem> {
    std::env::current_exe().map_err(|error| Problem::internal(format!("cannot find this program: {error}")))
}

/// Returns the path at which `sluice` belongs, beside this program.
pub(crate) fn beside() -> Result<PathBuf, Problem> {
    Ok(own()?.with_file_name("sluice"))
}

/// Returns the path of `sluice`, if it is there.
pub(crate) fn daemon() -> Result<PathBuf, Problem> {
    let daemon = beside()?;
    match daemon.exists() {
        true => Ok(daemon),
        false => Err(Problem::not_found(format!("there is no {}", daemon.display()))
            .hint("`make build` makes it, in the same folder")),
    }
}
