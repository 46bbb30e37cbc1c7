//! Changes of the drives: one at a time for each drive, and each stored before it counts.
//!
//! A change may take as long as a machine that does not answer. So it excludes other changes of the same drive alone:
//! changes of other drives, and what hosts want remembered, go on.

use super::{Drives, Entry, lock};
use crate::state::Saved;
use sluice_spec::problem::{Kind, Problem};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Condvar, Mutex, PoisonError};

/// Drives that are being changed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    drives: Mutex<BTreeSet<String>>,
    over: Condvar,
}

impl Changes {
    /// Waits until no other change of the drive is under way.
    pub(super) fn begin(&self, drive: &str) -> Change<'_> {
        let mut drives = lock(&self.drives);
        while drives.contains(drive) {
            drives = self.over.wait(drives).unwrap_or_else(PoisonError::into_inner);
        }
        drives.insert(drive.to_owned());
        Change { changes: self, drive: drive.to_owned() }
    }

    /// The same, unless another change of the drive is under way.
    pub(super) fn try_begin(&self, drive: &str) -> Option<Change<'_>> {
        let is_only = lock(&self.drives).insert(drive.to_owned());
        is_only.then(|| Change { changes: self, drive: drive.to_owned() })
    }

    pub(super) fn is_under_way(&self, drive: &str) -> bool {
        lock(&self.drives).contains(drive)
    }

    /// Returns true if no drive is being changed.
    pub(super) fn are_over(&self) -> bool {
        lock(&self.drives).is_empty()
    }
}

/// The only change of a drive, for as long as this lives.
#[must_use]
pub(super) struct Change<'a> {
    changes: &'a Changes,
    drive: String,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        lock(&self.changes.drives).remove(&self.drive);
        self.changes.over.notify_all();
    }
}

impl Drives {
    /// Begins a change of a drive, which is the drive's only one until the guard is dropped.
    pub(super) fn change(&self, drive: &str) -> Result<Change<'_>, Problem> {
        let only = self.changes.begin(drive);
        self.may_change().map(|()| only)
    }

    pub(super) fn may_change(&self) -> Result<(), Problem> {
        match self.ending.load(SeqCst) {
            false => Ok(()),
            true => Err(Problem::new(Kind::Unavailable, "the daemon is stopping").hint("start it again")),
        }
    }

    /// What is remembered now.
    pub(super) fn saved(&self) -> Saved {
        lock(&self.saved).clone()
    }

    /// Remembers what `note` makes of what is remembered. If that cannot be stored, nothing has changed.
    pub(super) fn store(&self, note: impl FnOnce(&mut Saved)) -> Result<(), Problem> {
        let mut saved = lock(&self.saved);
        let mut next = saved.clone();
        note(&mut next);
        self.commit(&mut saved, next)
    }

    /// Remembers this from now on. If it cannot be stored, nothing has changed.
    pub(super) fn commit(&self, saved: &mut Saved, next: Saved) -> Result<(), Problem> {
        if next != *saved || !self.state.is_settled() {
            self.state.store(&next)?;
            self.put(saved, next);
        }
        Ok(())
    }

    fn put(&self, saved: &mut Saved, next: Saved) {
        if next.ana != saved.ana {
            lock(&self.ana).clone_from(&next.ana);
        }
        *saved = next;
    }

    /// Stores what is remembered where the disk may have something else: an error came when a change was stored or
    /// taken back.
    pub(super) fn settle(&self) {
        self.settle_all_hosted();
        let saved = lock(&self.saved);
        if self.state.is_settled() {
            return;
        }
        match self.state.store_owed(&saved) {
            Ok(()) => {
                tracing::info!("the stored state is right again: the changes that were refused are not in it")
            }
            Err(problem) => tracing::debug!("the stored state may still be another: {problem}"),
        }
    }

    /// Remembers what was asked for of a drive, and does it. That is the order: after a crash in between, the next start
    /// goes the rest of the way.
    pub(super) fn store_and_do(
        &self,
        drive: &str,
        note: impl FnOnce(&mut Saved),
        act: impl FnOnce() -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let former = self.saved();
        self.store(note)?;
        act().or_else(|problem| self.take_back(drive, &former).and(Err(problem)))
    }

    /// What was asked for of a drive is what it was before this change: also if that cannot be stored now.
    pub(super) fn take_back(&self, drive: &str, former: &Saved) -> Result<(), Problem> {
        let mut saved = lock(&self.saved);
        let mut next = saved.clone();
        next.take_back(drive, former);
        if next == *saved && self.state.is_settled() {
            return Ok(());
        }
        self.put(&mut saved, next);
        self.state.store_owed(&saved)
    }

    /// Changes what is known of a drive. Not what others may have changed meanwhile.
    pub(super) fn amend(&self, name: &str, amend: impl FnOnce(&mut Entry)) {
        let mut entries = lock(&self.entries);
        let Some(entry) = entries.get_mut(name) else { return };
        // A drive that is no longer in it ends when it is dropped, which may take long: not under the lock.
        let former = entry.clone();
        amend(entry);
        drop(entries);
        drop(former);
    }
}
