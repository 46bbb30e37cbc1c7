//! Changes that hosts made to drives, with a lock and a file per drive. A store for the hosts of one drive
//! delays neither the hosts of another drive nor the operator.

use super::storage::Why;
use super::{Drives, lock};
use crate::state::{HostFile, HostState, Saved, StateFile, StoreBudget};
use sluice_spec::error::ApiError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Changes that hosts made to one drive. It is locked while it is stored, and before the state of all drives.
#[derive(Debug)]
pub(super) struct Hosted {
    pub(super) state: HostState,
    file: HostFile,
    budget: StoreBudget,
    /// Whether the state file lists the file.
    is_listed: bool,
    /// Error that makes the file unusable. The drive is not opened without its file unless the operator
    /// insists.
    lost: Option<ApiError>,
}

/// Changes that hosts made to all drives, by drive.
pub(super) type AllHosted = BTreeMap<String, Arc<Mutex<Hosted>>>;

impl Hosted {
    fn new(file: HostFile) -> Self {
        let budget = StoreBudget::new(Instant::now());
        Self { state: HostState::default(), file, budget, is_listed: false, lost: None }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.file.is_settled()
    }

    /// Counts a store of the drive that is not part of its host state.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.budget.spend(bytes);
    }

    /// Loads the stored host state of a drive that the state file lists.
    fn load(state: &StateFile, drive: &str) -> Self {
        let mut hosted = Self { is_listed: true, ..Self::new(state.host_file(drive)) };
        match hosted.file.load() {
            Ok(Some(found)) => hosted.state = found,
            Ok(None) => hosted.lost = Some(hosted.file.missing()),
            Err(problem) => hosted.lost = Some(problem),
        }
        hosted
    }
}

/// Loads the changes that hosts made to drives. A state of the single-file format is split: the files exist
/// before the state file lists them. Until then, a start finds the former state.
pub(super) fn load(state: &StateFile, saved: &mut Saved) -> Result<AllHosted, ApiError> {
    let mut all: BTreeMap<String, Hosted> =
        saved.hosted.iter().map(|drive| (drive.clone(), Hosted::load(state, drive))).collect();
    for drive in state.drives_with_host_files() {
        if !saved.hosted.contains(&drive) {
            // The file is left from an interrupted change.
            state.host_file(&drive).remove();
        }
    }
    for (drive, records) in saved.take_hosts() {
        let mut hosted = Hosted::new(state.host_file(&drive));
        hosted.file.store(&records, false)?;
        (hosted.state, hosted.is_listed) = (records, true);
        saved.hosted.insert(drive.clone());
        all.insert(drive, hosted);
    }
    all.values().filter_map(|hosted| hosted.lost.as_ref()).for_each(|problem| {
        tracing::error!("{}", problem.in_one_line());
    });
    Ok(all.into_iter().map(|(drive, hosted)| (drive, Arc::new(Mutex::new(hosted)))).collect())
}

impl Drives {
    /// Returns the host state of a drive; it is empty if hosts made no change.
    pub(super) fn hosted(&self, drive: &str) -> Arc<Mutex<Hosted>> {
        let mut all = lock(&self.hosted);
        if let Some(hosted) = all.get(drive) {
            return Arc::clone(hosted);
        }
        let hosted = Arc::new(Mutex::new(Hosted::new(self.state.host_file(drive))));
        all.insert(drive.to_owned(), Arc::clone(&hosted));
        hosted
    }

    /// Returns the host state of a drive that is about to be opened. Fails if its file cannot be used, unless
    /// `why` adopts the storage without it.
    pub(super) fn usable_hosted(&self, drive: &str, why: Why) -> Result<Arc<Mutex<Hosted>>, ApiError> {
        let hosted = self.hosted(drive);
        let mut found = lock(&hosted);
        if let Some(problem) = found.lost.take_if(|_| why.adopts()) {
            tracing::warn!("drive {drive} is opened without what its hosts did: {}", problem.error);
            let state = HostState::default();
            self.commit_hosted(drive, &mut found, state)?;
        }
        match &found.lost {
            Some(problem) => Err(problem.clone()),
            None => {
                drop(found);
                Ok(hosted)
            }
        }
    }

    /// Stores the changed host state of a drive. If it cannot be stored, the state is unchanged.
    pub(super) fn commit_hosted(
        &self,
        drive: &str,
        hosted: &mut Hosted,
        next: HostState,
    ) -> Result<(), ApiError> {
        if next == hosted.state && hosted.file.is_settled() {
            return Ok(());
        }
        if !hosted.is_listed {
            self.list_hosted(drive, hosted)?;
        }
        let bytes = next.check_size(&hosted.state, drive)?;
        hosted.budget.spend(bytes);
        hosted.file.store(&next, false)?;
        hosted.state = next;
        Ok(())
    }

    /// Stores the current host state, whether or not it was stored before.
    pub(super) fn settle_hosted(&self, hosted: &mut Hosted) -> Result<(), ApiError> {
        hosted.file.store(&hosted.state, true)
    }

    /// Adds a drive's file to the list in the state file; the file is empty until then. The state is stored
    /// twice, so that the previous version lists the file, too: an operator may go back to that version.
    fn list_hosted(&self, drive: &str, hosted: &mut Hosted) -> Result<(), ApiError> {
        hosted.file.store(&HostState::default(), false)?;
        let mut saved = lock(&self.saved);
        let mut next = saved.clone();
        next.hosted.insert(drive.to_owned());
        self.commit(&mut saved, next)?;
        self.state.store(&saved)?;
        hosted.is_listed = true;
        Ok(())
    }

    /// Stores a change of the state by `note`, together with the removal of a drive's host state.
    pub(super) fn store_without_hosted(
        &self,
        drive: &str,
        note: impl FnOnce(&mut Saved),
    ) -> Result<(), ApiError> {
        let hosted = self.hosted(drive);
        // The lock is held until the file is removed, so that no change of the drive is stored in between.
        let mut hosted = lock(&hosted);
        self.store(|saved| {
            note(saved);
            saved.hosted.remove(drive);
        })?;
        (hosted.state, hosted.is_listed, hosted.lost) = (HostState::default(), false, None);
        hosted.file.remove();
        Ok(())
    }

    /// Stores the host states again whose files may differ from memory.
    pub(super) fn settle_all_hosted(&self) {
        let all: Vec<_> = lock(&self.hosted).values().cloned().collect();
        for hosted in all {
            let mut hosted = lock(&hosted);
            if hosted.file.is_settled() || hosted.lost.is_some() {
                continue;
            }
            match self.settle_hosted(&mut hosted) {
                Ok(()) => tracing::info!(
                    "the stored state is right again: the changes that were refused are not in it"
                ),
                Err(problem) => tracing::debug!("the stored state may still be another: {problem}"),
            }
        }
    }

    /// Stores the host state of all drives, whether or not it was stored before.
    pub(super) fn store_all_hosted_again(&self) -> Result<(), ApiError> {
        let all: Vec<_> = lock(&self.hosted).values().cloned().collect();
        let stored = all.into_iter().map(|hosted| {
            let mut hosted = lock(&hosted);
            let has_file = hosted.is_listed && hosted.lost.is_none();
            if has_file { self.settle_hosted(&mut hosted) } else { Ok(()) }
        });
        stored.fold(Ok(()), Result::and)
    }

    /// Returns whether the hosts of a drive may cause another store now. Logs if they must wait.
    pub(super) fn may_store(&self, drive: &str, now: Instant) -> bool {
        let hosted = self.hosted(drive);
        let mut hosted = lock(&hosted);
        let may = hosted.budget.allows(now);
        if !may {
            hosted.budget.say_that_they_wait(drive, now);
        }
        may
    }

    #[cfg(test)]
    pub(super) fn host_state(&self, drive: &str) -> HostState {
        lock(&self.hosted(drive)).state.clone()
    }
}

#[cfg(test)]
mod tests;
