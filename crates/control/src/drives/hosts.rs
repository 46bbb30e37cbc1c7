//! What hosts did to drives, each drive's under a lock and in a file of its own: what hosts of one drive store holds up
//! neither those of another nor the operator.

use super::storage::Why;
use super::{Drives, lock};
use crate::state::{HostFile, HostState, Saved, StateFile, StoreBudget};
use sluice_spec::problem::Problem;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What hosts did to one drive. Locked while it is stored, before what is saved of all drives.
#[derive(Debug)]
pub(super) struct Hosted {
    pub(super) state: HostState,
    file: HostFile,
    budget: StoreBudget,
    /// The state file lists the file.
    is_listed: bool,
    /// Why the file cannot be used. No drive is opened without it unless the operator says so.
    lost: Option<Problem>,
}

/// That of all drives.
pub(super) type AllHosted = BTreeMap<String, Arc<Mutex<Hosted>>>;

impl Hosted {
    fn new(file: HostFile) -> Self {
        let budget = StoreBudget::new(Instant::now());
        Self { state: HostState::default(), file, budget, is_listed: false, lost: None }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.file.is_settled()
    }

    /// Notes a store of the drive that is none of these records.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.budget.spend(bytes);
    }

    /// Takes what was stored.
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

/// Loads what hosts did to drives. A state of one piece is taken apart: the files are there before the state file lists
/// them, and until then a start finds what it was.
pub(super) fn load(state: &StateFile, saved: &mut Saved) -> Result<AllHosted, Problem> {
    let mut all: BTreeMap<String, Hosted> =
        saved.hosted.iter().map(|drive| (drive.clone(), Hosted::load(state, drive))).collect();
    for drive in state.drives_with_host_files() {
        if !saved.hosted.contains(&drive) {
            // Of a change that was interrupted.
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
    /// What hosts did to a drive.
    pub(super) fn hosted(&self, drive: &str) -> Arc<Mutex<Hosted>> {
        let mut all = lock(&self.hosted);
        if let Some(hosted) = all.get(drive) {
            return Arc::clone(hosted);
        }
        let hosted = Arc::new(Mutex::new(Hosted::new(self.state.host_file(drive))));
        all.insert(drive.to_owned(), Arc::clone(&hosted));
        hosted
    }

    /// What hosts did to a drive that is about to be opened.
    pub(super) fn usable_hosted(&self, drive: &str, why: Why) -> Result<Arc<Mutex<Hosted>>, Problem> {
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

    /// Remembers what hosts did to a drive. If it cannot be stored, nothing has changed.
    pub(super) fn commit_hosted(
        &self,
        drive: &str,
        hosted: &mut Hosted,
        next: HostState,
    ) -> Result<(), Problem> {
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

    /// Stores what is remembered, whether or not that was stored before.
    pub(super) fn settle_hosted(&self, hosted: &mut Hosted) -> Result<(), Problem> {
        hosted.file.store(&hosted.state, true)
    }

    /// Has the state file list the file of a drive's hosts, which is empty until then. The version before lists it, too:
    /// an operator may go back to that.
    fn list_hosted(&self, drive: &str, hosted: &mut Hosted) -> Result<(), Problem> {
        hosted.file.store(&HostState::default(), false)?;
        let mut saved = lock(&self.saved);
        let mut next = saved.clone();
        next.hosted.insert(drive.to_owned());
        self.commit(&mut saved, next)?;
        self.state.store(&saved)?;
        hosted.is_listed = true;
        Ok(())
    }

    /// Remembers what `note` makes of what was asked for, and nothing of what hosts did to a drive any more.
    pub(super) fn store_without_hosted(
        &self,
        drive: &str,
        note: impl FnOnce(&mut Saved),
    ) -> Result<(), Problem> {
        let hosted = self.hosted(drive);
        // Until the file is gone: nothing of the drive is stored in between.
        let mut hosted = lock(&hosted);
        self.store(|saved| {
            note(saved);
            saved.hosted.remove(drive);
        })?;
        (hosted.state, hosted.is_listed, hosted.lost) = (HostState::default(), false, None);
        hosted.file.remove();
        Ok(())
    }

    /// Stores what is remembered where the disk may have something else.
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

    /// Returns true if hosts of a drive may have another thing stored now.
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
