//! Classifiers that were detached for their errors: they stay so when their drive is opened again, until somebody
//! says otherwise or the program is another.

use super::super::Drives;
use crate::object_file;
use crate::state::{Detached, Saved};
use sluice_spec::DriveSpec;
use sluice_spec::problem::Problem;
use std::sync::Arc;

impl Drives {
    /// Remembers from now on what is detached for its errors.
    pub fn heed_detachments(self: &Arc<Self>) -> Result<(), Problem> {
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
            .map_err(|error| Problem::internal(format!("cannot start a thread: {error}")))
    }

    /// Notes from which namespaces of a drive its classifier is detached now.
    pub(super) fn remember_detachment(&self, name: &str) -> Result<(), Problem> {
        let _only = self.change(name)?;
        let entry = self.entry(name)?;
        let status = entry.running?.classifier()?;
        // Another may have come meanwhile, of which nothing is to be said.
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

/// The namespaces whose commands are not shown to the drive's classifier: it was detached from them, and is the
/// same program still.
pub(in super::super) fn still_detached(spec: &DriveSpec, saved: &Saved) -> Vec<u32> {
    let found = saved.detached.iter().find(|detached| detached.drive == spec.name);
    let Some((detached, classifier)) = found.zip(spec.classifier.as_ref()) else { return Vec::new() };
    let digest = || object_file::read(&classifier.object).map(|bytes| object_file::digest(&bytes));
    let is_same = detached.classifier == *classifier && digest().is_ok_and(|it| it == detached.digest);
    if is_same { detached.namespaces.clone() } else { Vec::new() }
}
