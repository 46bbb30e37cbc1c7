//! Translations that a function sends to the drive's classifier.

use super::layer::Uif;
use sluice_uif::Translation;
use sluice_uif::abi::{Reply, translation};
use std::fmt;

/// Translation cache of a classifier, or another receiver of translations. It runs on the drive's reactor and
/// must not block.
///
/// An update that cannot be applied now, because another thread is changing the cache, is tried again until
/// it can. No other reply of the function is executed before.
pub trait Translations: Send + fmt::Debug {
    /// Applies an update. Returns false if it has to be tried again.
    #[must_use]
    fn note(&mut self, update: &Translation) -> bool;

    /// Removes everything. Returns false if it has to be tried again.
    #[must_use]
    fn forget_all(&mut self) -> bool;

    /// Returns about how many places of the cache are visited for this update.
    fn places(&self, update: &Translation) -> u64;
}

/// Places of a cache that are visited before other work of the reactor has its turn. The last update may
/// visit more.
const PLACES_PER_LOOK: u64 = 4096;

/// Update that is still to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingUpdate {
    Everything,
    One(Translation),
}

impl Uif {
    /// Applies a translation of a function's process. It may be anything.
    pub(super) fn translate_reply(&mut self, reply: &Reply) {
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
        self.translate(update);
    }

    /// Applies a translation.
    pub(super) fn translate(&mut self, update: Translation) {
        if let Some(translations) = &mut self.translations {
            self.places_visited = self.places_visited.saturating_add(translations.places(&update).max(1));
            self.pending_update = (!translations.note(&update)).then_some(PendingUpdate::One(update));
        }
    }

    /// Returns whether no more replies are executed until the next look.
    pub(super) fn is_held_up(&self) -> bool {
        self.pending_update.is_some() || self.places_visited >= PLACES_PER_LOOK
    }

    /// Removes all translations: those of an earlier instance are not valid any more.
    pub(super) fn forget_translations(&mut self) {
        if self.translations.is_some() {
            self.pending_update = Some(PendingUpdate::Everything);
            self.apply_pending();
        }
    }

    /// Tries the pending update again. Returns false if it is still pending.
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

    /// Takes the cache of the classifier that the operator put before the drive, or none.
    pub(super) fn take_translations(&mut self) {
        let Some(translations) = self.instance.take_translations() else { return };
        self.translations = translations;
        self.pending_update = None;
        self.forget_translations();
    }
}
