//! What a function tells the drive's classifier: where things are.

use super::layer::Uif;
use sluice_uif::Translation;
use sluice_uif::abi::{Reply, translation};
use std::fmt;

/// A classifier's translation cache, or what else wants to know. On the drive's reactor; nothing blocks.
///
/// What cannot be noted at the moment, because somebody else is changing the cache, is tried again until it is:
/// nothing else that the function says is heard before.
pub trait Translations: Send + fmt::Debug {
    /// Notes this. False if it has to be tried again.
    #[must_use]
    fn note(&mut self, update: &Translation) -> bool;

    /// Forgets everything. False if it has to be tried again.
    #[must_use]
    fn forget_all(&mut self) -> bool;

    /// Places of the cache that are looked at to note this, about.
    fn places(&self, update: &Translation) -> u64;
}

/// Places of a cache that are looked at before other work of the reactor has its turn. What is noted last may
/// take more.
const PLACES_PER_LOOK: u64 = 4096;

/// What is still to be noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingUpdate {
    Everything,
    One(Translation),
}

impl Uif {
    /// Notes what the function says. It may be anything.
    pub(super) fn translate(&mut self, reply: &Reply) {
        let (from, length) = (reply.offset, reply.length);
        let update = match reply.operation {
            translation::INSERT => {
                let [to, writable] = reply.cookie;
                Translation::Insert { from, length, to, writable: writable & 1 != 0 }
            }
            translation::FORGET => Translation::Forget { from, length },
            translation::PROTECT => Translation::Protect { from, length },
            _ => return self.instance.counts.invalid.increment(),
        };
        if let Some(translations) = &mut self.translations {
            self.places_visited = self.places_visited.saturating_add(translations.places(&update).max(1));
            self.pending_update = (!translations.note(&update)).then_some(PendingUpdate::One(update));
        }
    }

    /// True if nothing more is heard until the next look.
    pub(super) fn is_held_up(&self) -> bool {
        self.pending_update.is_some() || self.places_visited >= PLACES_PER_LOOK
    }

    /// Nothing of what an earlier function, or none, has said is true any more.
    pub(super) fn forget_translations(&mut self) {
        if self.translations.is_some() {
            self.pending_update = Some(PendingUpdate::Everything);
            self.apply_pending();
        }
    }

    /// Tries again. False if there is still something to note.
    pub(super) fn apply_pending(&mut self) -> bool {
        let (Some(pending_update), Some(translations)) = (self.pending_update, &mut self.translations) else {
            return true;
        };
        let noted = match pending_update {
            PendingUpdate::Everything => translations.forget_all(),
            PendingUpdate::One(update) => {
                self.places_visited = translations.places(&update);
                translations.note(&update)
            }
        };
        if noted {
            self.pending_update = None;
        }
        noted
    }

    /// The operator put another classifier before the drive, or none.
    pub(super) fn take_translations(&mut self) {
        let Some(translations) = self.instance.take_translations() else { return };
        self.translations = translations;
        self.pending_update = None;
        self.forget_translations();
    }
}
