//! Changes of drives: one at a time for each drive, and each stored before it applies.
//!
//! A change may take as long as a machine that does not respond. So it excludes only other changes of the
//! same drive. Changes of other drives, and stores for hosts, proceed meanwhile.

use super::{Drives, Entry, lock, upgrade};
use crate::state::Saved;
use sluice_spec::error::{ApiError, Kind};
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
    /// Begins a change, after it has waited until no other change of the drive is in progress.
    pub(super) fn begin(&self, drive: &str) -> Change<'_> {
        let mut drives = lock(&self.drives);
        while drives.contains(drive) {
            drives = self.over.wait(drives).unwrap_or_else(PoisonError::into_inner);
        }
        drives.insert(drive.to_owned());
        Change { changes: self, drive: drive.to_owned() }
    }

    /// Begins a change, unless another change of the drive is in progress.
    pub(super) fn try_begin(&self, drive: &str) -> Option<Change<'_>> {
        let is_only = lock(&self.drives).insert(drive.to_owned());
        is_only.then(|| Change { changes: self, drive: drive.to_owned() })
    }

    pub(super) fn is_under_way(&self, drive: &str) -> bool {
        lock(&self.drives).contains(drive)
    }

    /// Returns whether no drive is being changed.
    pub(super) fn are_over(&self) -> bool {
        lock(&self.drives).is_empty()
    }
}

/// Guard of a change, the only one of its drive while the guard lives.
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
    /// Begins a change of a drive, which is the drive's only one until the guard is dropped. Refuses it while
    /// the daemon stops.
    pub(super) fn change(&self, drive: &str) -> Result<Change<'_>, ApiError> {
        let only = self.changes.begin(drive);
        self.may_change().map(|()| only)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(SeqCst)
    }

    pub(super) fn may_change(&self) -> Result<(), ApiError> {
        if self.upgrading.load(SeqCst) {
            return Err(upgrade::under_way());
        }
        match self.is_ending() {
            false => Ok(()),
            true => Err(ApiError::new(Kind::Unavailable, "the daemon is stopping").hint("start it again")),
        }
    }

    /// Returns a copy of the current state.
    pub(super) fn saved(&self) -> Saved {
        lock(&self.saved).clone()
    }

    /// Stores the state that `note` makes of the current one. If it cannot be stored, the state is unchanged.
    pub(super) fn store(&self, note: impl FnOnce(&mut Saved)) -> Result<(), ApiError> {
        let _stores = self.stores.read().unwrap_or_else(PoisonError::into_inner);
        let mut saved = lock(&self.saved);
        let mut next = saved.clone();
        note(&mut next);
        self.commit(&mut saved, next)
    }

    /// Replaces the state by `next`. If `next` cannot be stored, the state is unchanged.
    pub(super) fn commit(&self, saved: &mut Saved, next: Saved) -> Result<(), ApiError> {
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

    /// Stores the current state again if the disk may hold another one. That is so after an error while a
    /// change was stored or taken back.
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

    /// Stores a change of a drive, then makes it. In this order, a restart after a crash in between completes
    /// the change.
    pub(super) fn store_and_do(
        &self,
        drive: &str,
        note: impl FnOnce(&mut Saved),
        act: impl FnOnce() -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let former = self.saved();
        self.store(note)?;
        act().or_else(|problem| self.take_back(drive, &former).and(Err(problem)))
    }

    /// Restores the requested state of a drive from before a change. The former state applies even if it
    /// cannot be stored now.
    pub(super) fn take_back(&self, drive: &str, former: &Saved) -> Result<(), ApiError> {
        let mut saved = lock(&self.saved);
        let mut next = saved.clone();
        next.take_back(drive, former);
        if next == *saved && self.state.is_settled() {
            return Ok(());
        }
        self.put(&mut saved, next);
        self.state.store_owed(&saved)
    }

    /// Notes what has happened already. The note applies even if it cannot be stored now: the next store that succeeds has
    /// it.
    pub(super) fn note_owed(&self, note: impl FnOnce(&mut Saved)) {
        let _stores = self.stores.read().unwrap_or_else(PoisonError::into_inner);
        let mut saved = lock(&self.saved);
        let mut next = saved.clone();
        note(&mut next);
        if next == *saved && self.state.is_settled() {
            return;
        }
        self.put(&mut saved, next);
        if let Err(problem) = self.state.store_owed(&saved) {
            tracing::error!("a state that applies is not stored yet: {}", problem.in_one_line());
        }
    }

    /// Amends the entry of a drive. Fields that another thread may have changed meanwhile are not to be
    /// replaced.
    pub(super) fn amend(&self, name: &str, amend: impl FnOnce(&mut Entry)) {
        let mut entries = lock(&self.entries);
        let Some(entry) = entries.get_mut(name) else { return };
        // A running drive that `amend` replaces ends when it is dropped. That may take long, so the lock is
        // released first.
        let former = entry.clone();
        amend(entry);
        drop(entries);
        drop(former);
    }
}
