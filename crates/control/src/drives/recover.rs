//! Recovery of drives that a dead daemon has left.

use super::{Drives, Origin, lock};
use sluice_spec::DriveSpec;
use sluice_spec::error::ApiError;

impl Drives {
    /// Opens a drive for which the engine has what a dead daemon has left, on this reactor. Takes the drive out of
    /// `specs`. The drive is [held](Self::go_on).
    ///
    /// # Errors
    /// No such drive is declared or stored, or it cannot be continued. Its specification stays in `specs`.
    pub fn recover(
        &self,
        specs: &mut Vec<(DriveSpec, Origin)>,
        name: &str,
        reactor: usize,
    ) -> Result<(), ApiError> {
        let at = specs.iter().position(|(spec, _)| spec.name == name);
        let at = at.ok_or_else(|| ApiError::not_found("it is not in the configuration or the state"))?;
        let (spec, origin) = specs[at].clone();
        let reactor = if reactor < self.reactors { reactor } else { self.place(&spec, &[]) };
        let entry = self.open_entry(spec, origin, reactor);
        entry.running.clone().map(drop)?;
        specs.remove(at);
        lock(&self.entries).insert(name.to_owned(), entry);
        Ok(())
    }

    /// Has the records of all drives kept by a holder that is new.
    pub fn keep_again(&self) {
        for (name, running) in self.running() {
            if let Err(problem) = running.keep_again() {
                tracing::warn!(
                    "drive {name}: its hosts are lost if the daemon dies: {}",
                    problem.in_one_line()
                );
            }
        }
    }
}
