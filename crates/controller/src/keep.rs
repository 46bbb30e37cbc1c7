//! What a controller wants remembered over a restart of the daemon, by somebody who may block.

use crate::erase::Purpose;
use crate::{Subsystem, format};
use std::fmt;

/// What is to be remembered. The host is told when it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// A namespace has blocks of another size from now on, whatever the operator said.
    BlockSize { nsid: u32, block_size: u32 },
}

/// Who remembers.
#[derive(Default)]
pub(crate) struct Keeper(Option<Box<dyn FnMut(Keep)>>);

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keeper").field(&self.0.is_some()).finish()
    }
}

impl Subsystem {
    /// Is called with what to remember, and answers with [`kept`](Self::kept) some time after it has returned. At
    /// most one answer is awaited. Without it everything counts as remembered at once.
    pub fn on_keep(&mut self, keep: impl FnMut(Keep) + 'static) {
        self.keeper = Keeper(Some(Box::new(keep)));
    }

    pub(crate) fn keep(&mut self, what: Keep, now_ns: u64) {
        match &mut self.keeper.0 {
            Some(keep) => keep(what),
            None => self.kept(what, true, now_ns),
        }
    }

    /// What was to be remembered is, or `well` is false.
    pub fn kept(&mut self, what: Keep, well: bool, now_ns: u64) {
        let Keep::BlockSize { nsid, block_size } = what;
        let awaited =
            self.erasure.as_ref().is_some_and(|it| it.purpose == Purpose::Format { nsid, block_size });
        if awaited {
            format::kept(self, nsid, block_size, well);
        }
        self.next_deadline_ns = self.next_deadline_ns.min(now_ns);
    }
}
