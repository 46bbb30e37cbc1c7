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
    fn note(&mut self, news: &Translation) -> bool;

    /// Forgets everything. False if it has to be tried again.
    #[must_use]
    fn forget_all(&mut self) -> bool;
}

/// What is still to be noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unnoted {
    Everything,
    News(Translation),
}

impl Uif {
    /// Notes what the function says. It may be anything.
    pub(super) fn translate(&mut self, reply: &Reply) {
        let (from, length) = (reply.offset, reply.length);
        let news = match reply.operation {
            translation::INSERT => {
                let [to, writable] = reply.cookie;
                Translation::Insert { from, length, to, writable: writable & 1 != 0 }
            }
            translation::FORGET => Translation::Forget { from, length },
            translation::PROTECT => Translation::Protect { from, length },
            _ => return self.seat.counts.invalid.increment(),
        };
        if let Some(translations) = &mut self.translations {
            self.unnoted = (!translations.note(&news)).then_some(Unnoted::News(news));
        }
    }

    /// Nothing of what an earlier function, or none, has said is true any more.
    pub(super) fn forget_translations(&mut self) {
        if self.translations.is_some() {
            self.unnoted = Some(Unnoted::Everything);
            self.note_rest();
        }
    }

    /// Tries again. False if there is still something to note.
    pub(super) fn note_rest(&mut self) -> bool {
        let (Some(unnoted), Some(translations)) = (self.unnoted, &mut self.translations) else { return true };
        let noted = match unnoted {
            Unnoted::Everything => translations.forget_all(),
            Unnoted::News(news) => translations.note(&news),
        };
        if noted {
            self.unnoted = None;
        }
        noted
    }

    /// The operator put another classifier before the drive, or none.
    pub(super) fn take_translations(&mut self) {
        let Some(translations) = self.seat.take_translations() else { return };
        self.translations = translations;
        self.unnoted = None;
        self.forget_translations();
    }
}
