//! Preview of the drives that a daemon would open, and of refusals before the open.

use super::{merge, storage};
use crate::config::Config;
use crate::state::StateFile;
use sluice_spec::DriveSpec;
use sluice_spec::error::ApiError;
use std::path::Path;

/// A drive, with the reason if its storage is refused.
#[derive(Debug)]
pub struct Foreseen {
    pub spec: DriveSpec,
    pub refused: Option<ApiError>,
}

/// Reads the state in a folder, and merges it with the configuration. Creates, locks and changes no file.
///
/// # Errors
/// An error for which the daemon would open no drive at all.
pub fn foresee(config: &Config, state: &Path) -> Result<Vec<Foreseen>, ApiError> {
    let mut saved = StateFile::peek(state)?;
    if let Some(applying) = saved.applying.take() {
        applying.take_back(&mut saved);
    }
    let specs = merge::merge(config, &mut saved)?;
    storage::note_older(specs.iter().map(|(spec, _)| spec), &mut saved);
    let foresee = |(spec, _)| match storage::foresee(&spec, &saved) {
        Ok(spec) => Foreseen { spec, refused: None },
        Err(problem) => Foreseen { spec, refused: Some(problem) },
    };
    Ok(specs.into_iter().map(foresee).collect())
}
