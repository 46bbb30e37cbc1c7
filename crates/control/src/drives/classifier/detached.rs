//! Classifiers that were detached for their errors. They stay detached when their drive is opened again,
//! until an operator changes that or the program changes.

use super::super::Drives;
use crate::object_file;
use crate::state::{Detached, Saved};
use sluice_spec::DriveSpec;
use sluice_spec::error::ApiError;
use std::sync::Arc;

impl Drives {
    /// Starts a thread that stores detachments for errors.
    pub fn heed_detachments(self: &Arc<Self>) -> Result<(), ApiError> {
        let Some(names) = self.engine.detachments() else { return Ok(()) };
        let drives = Arc::downgrade(self);
        let heed = move || {
            for name in names {
                let Some(drives) = drives.upgrade() else { return };
                if let Err(problem) = drives.remember_detachment(&name) {
                    tracing::warn!(
                        "drive {name} will have its classifier again when it is opened: {}",
                        problem.in_one_line()
                    );
                }
            }
        };
        std::thread::Builder::new()
            .name("detached".to_owned())
            .spawn(heed)
            .map(drop)
            .map_err(|error| ApiError::internal(format!("cannot start a thread: {error}")))
    }

    /// Stores the namespaces of a drive from which its classifier is detached now.
    pub(super) fn remember_detachment(&self, name: &str) -> Result<(), ApiError> {
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        let status = entry.running?.classifier()?;
        // The classifier may have been removed meanwhile; then there is no detachment to store.
        let (Some(classifier), Some(status)) = (entry.spec.classifier, status) else { return Ok(()) };
        self.store(|saved| {
            saved.detached.retain(|detached| detached.drive != name);
            if !status.detached.is_empty() {
                let (digest, namespaces) = (status.digest, status.detached);
                saved.detached.push(Detached { drive: name.to_owned(), classifier, digest, namespaces });
            }
        })
    }
}

/// Returns the namespaces that the drive's classifier was detached from, if the program is still the same.
pub(in super::super) fn still_detached(spec: &DriveSpec, saved: &Saved) -> Vec<u32> {
    let found = saved.detached.iter().find(|detached| detached.drive == spec.name);
    let Some((detached, classifier)) = found.zip(spec.classifier.as_ref()) else { return Vec::new() };
    let digest = || object_file::read(&classifier.object).map(|bytes| object_file::digest(&bytes));
    let is_same = detached.classifier == *classifier && digest().is_ok_and(|it| it == detached.digest);
    if is_same { detached.namespaces.clone() } else { Vec::new() }
}
