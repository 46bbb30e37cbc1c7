//! Changes of the drives: one at a time, and each stored before it counts.
//!
//! What hosts want remembered is stored meanwhile: a change may take as long as a machine that does not answer, and the
//! commands of other drives wait for that.

use super::{Drives, Entry, lock};
use crate::problem::{Kind, Problem};
use crate::state::Saved;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::SeqCst;

impl Drives {
    /// Begins a change, which is the only one until the guard is dropped.
    pub(super) fn change(&self) -> Result<MutexGuard<'_, ()>, Problem> {
        let only = lock(&self.changes);
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
            *saved = next;
        }
        Ok(())
    }

    /// Stores what is remembered where the disk may have something else: an error came when a change was stored or
    /// taken back.
    pub(super) fn settle(&self) {
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

    /// Remembers what was asked for, and does it. That is the order: after a crash in between, the next start goes the
    /// rest of the way.
    pub(super) fn store_and_do(
        &self,
        note: impl FnOnce(&mut Saved),
        act: impl FnOnce() -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let former = self.saved();
        self.store(note)?;
        act().or_else(|problem| self.take_back(former).and(Err(problem)))
    }

    /// What was asked for is what it was before this change: also if that cannot be stored now.
    pub(super) fn take_back(&self, former: Saved) -> Result<(), Problem> {
        let mut saved = lock(&self.saved);
        let mut next = saved.clone();
        next.take_back(former);
        if next == *saved && self.state.is_settled() {
            return Ok(());
        }
        *saved = next;
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
