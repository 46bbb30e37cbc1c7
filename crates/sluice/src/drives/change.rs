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
        if next != *saved {
            self.state.store(&next)?;
            *saved = next;
        }
        Ok(())
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

    /// What was asked for is what it was before this change.
    pub(super) fn take_back(&self, former: Saved) -> Result<(), Problem> {
        self.store(|saved| saved.take_back(former))
    }

    /// Changes what is known of a drive. Not what others may have changed meanwhile.
    pub(super) fn amend(&self, name: &str, amend: impl FnOnce(&mut Entry)) {
        if let Some(entry) = lock(&self.entries).get_mut(name) {
            amend(entry);
        }
    }
}
