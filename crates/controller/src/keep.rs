//! What a controller wants remembered over a restart of the daemon, by somebody who may block.

use crate::erase::Purpose;
use crate::{
    FormatRecord, HistoryRecord, ReservationRecord, SanitizeRecord, Subsystem, format, sanitize,
    uncorrectable,
};
use std::fmt;

/// What is to be remembered. The host is told when it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    /// How it stands with a format: one that runs begins again with the next daemon
    /// ([`Subsystem::resume_format`]); once it is done, the namespace has blocks of this size, whatever the
    /// operator said.
    Format(FormatRecord),
    /// How it stands with a sanitize operation: one that runs begins again with the next daemon
    /// ([`Subsystem::resume_sanitize`]).
    Sanitize(SanitizeRecord),
    /// These namespaces have other reservations that persist through power loss, or none any more: all of them, or
    /// none of them.
    Reservations(Vec<(u32, Option<ReservationRecord>)>),
    /// All blocks of a namespace that were marked by Write Uncorrectable, as ranges of bytes
    /// ([`Subsystem::resume_uncorrectable`]).
    Uncorrectable { nsid: u32, ranges: Vec<[u64; 2]> },
    /// What has happened to the drive ([`Subsystem::resume_history`]). No host waits for it.
    History(HistoryRecord),
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
    /// most one answer of each kind is awaited. Without it everything counts as remembered at once.
    pub fn on_keep(&mut self, keep: impl FnMut(Keep) + 'static) {
        self.keeper = Keeper(Some(Box::new(keep)));
    }

    pub(crate) fn keep(&mut self, what: Keep, now_ns: u64) {
        match &mut self.keeper.0 {
            Some(keep) => keep(what),
            None => self.remembered(what, true, now_ns),
        }
    }

    /// What was to be remembered is, or `well` is false.
    pub fn kept(&mut self, what: Keep, well: bool, now_ns: u64) {
        self.remembered(what, well, now_ns);
        self.work_off_orders(now_ns);
    }

    fn remembered(&mut self, what: Keep, well: bool, now_ns: u64) {
        if matches!(what, Keep::Uncorrectable { .. }) {
            uncorrectable::kept(self, well);
        }
        match (self.erasure.as_ref().map(|erasure| erasure.purpose), what) {
            (Some(Purpose::Format { nsid, block_size }), Keep::Format(record))
                if (record.nsid, record.block_size) == (nsid, block_size) =>
            {
                format::kept(self, record, well, now_ns);
            }
            (Some(Purpose::Sanitize(_)), Keep::Sanitize(record)) => {
                sanitize::kept(self, record, well, now_ns);
            }
            (_, Keep::History(_)) => self.history_kept(),
            (_, Keep::Reservations(_)) => self.reservations_kept(well),
            _ => {}
        }
        self.next_deadline_ns = self.next_deadline_ns.min(now_ns);
    }
}
