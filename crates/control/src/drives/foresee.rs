//! The drives that a daemon would open, and what it would refuse before it opens them.

use super::{merge, storage};
use crate::config::Config;
use crate::state::StateFile;
use sluice_spec::DriveSpec;
use sluice_spec::problem::Problem;
use std::path::Path;

/// A drive, and why its storage is refused, if it is.
#[derive(Debug)]
pub struct Foreseen {
    pub spec: DriveSpec,
    pub refused: Option<Problem>,
}

/// Reads the state in a folder, and puts it together with the configuration. Nothing is made, locked or changed.
///
/// # Errors
/// Those for which no drive would be opened.
pub fn foresee(config: &Config, state: &Path) -> Result<Vec<Foreseen>, Problem> {
    let mut saved = StateFile::peek(state)?;
    let specs = merge::merge(config, &mut saved)?;
    storage::note_older(specs.iter().map(|(spec, _)| spec), &mut saved);
    let foresee = |(spec, _)| match storage::foresee(&spec, &saved) {
        Ok(spec) => Foreseen { spec, refused: None },
        Err(problem) => Foreseen { spec, refused: Some(problem) },
    };
    Ok(specs.into_iter().map(foresee).collect())
}
