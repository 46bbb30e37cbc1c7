//! What is done while queues of a controller are apart, and what brings them together first.

use super::migrate::Migrating;
use super::{RecallCause, Tally};
use crate::admin::log;
use crate::events::Event;
use crate::{Controller, Subsystem};
use sluice_nvme::LogId;
use sluice_nvme::SubmissionEntry;
use sluice_nvme::opcode::{admin, io};
use std::sync::Arc;

/// What an admin command takes of groups that are away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// It looks at nothing of them and changes nothing that an outpost has a copy of.
    Nothing,
    /// What they have counted.
    Counters,
    /// What they have written into their error logs, which home has if that is nothing.
    Errors,
    /// The groups.
    All,
}

impl Takes {
    fn of(entry: &SubmissionEntry) -> Self {
        match entry.opcode {
            admin::ASYNC_EVENT_REQUEST | admin::KEEP_ALIVE | admin::IDENTIFY | admin::GET_FEATURES => {
                Self::Nothing
            }
            admin::GET_LOG_PAGE => match LogId(entry.cdw10 as u8) {
                LogId::SMART_HEALTH | LogId::SANITIZE_STATUS => Self::Counters,
                LogId::ERROR_INFORMATION => Self::Errors,
                log if log::is_of_owner(log) => Self::Nothing,
                _ => Self::All,
            },
            _ => Self::All,
        }
    }
}

/// An I/O command that touches nothing but blocks and the host's memory, and so is done wherever its queue is.
fn is_of_blocks(entry: &SubmissionEntry) -> bool {
    let listed = matches!(
        entry.opcode,
        io::READ
            | io::WRITE
            | io::FLUSH
            | io::WRITE_ZEROES
            | io::DATASET_MANAGEMENT
            | io::COMPARE
            | io::VERIFY
    );
    listed && entry.fuse() == 0
}

/// A group that is away, as home knows it: identifiers of its queues, with their sizes.
#[derive(Debug)]
pub(super) struct RemoteGroup {
    pub(super) cq: (u16, u32),
    pub(super) sqs: Vec<(u16, u32)>,
    /// Of the map in which its queues' memory was found.
    pub(super) generation: u64,
    /// One of its doorbells came this way.
    pub(super) rung: bool,
}

/// Whether the queues of a controller are in one place.
#[derive(Debug, Default)]
pub(crate) struct RemoteGroups {
    pub(super) is_remote: bool,
    pub(super) groups: Vec<RemoteGroup>,
    pub(super) migrating: Option<Migrating>,
    /// Something is to be done that takes all of them: what was first.
    pub(super) recall_cause: Option<RecallCause>,
    /// A doorbell of a group that is away came this way.
    rung: bool,
    /// A reset was begun while doorbells were others', too.
    pub(super) stale: bool,
    /// What an outpost found wrong with doorbells, for home to tell the host.
    pub(super) doorbell_errors: Vec<(u16, Event)>,
    /// What an outpost counts.
    pub(super) tally: Option<Arc<Tally>>,
}

impl RemoteGroups {
    /// Not every queue of the controller is here.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        self.is_remote || !self.groups.is_empty()
    }

    /// Groups that are away.
    pub(crate) fn count(&self) -> u32 {
        self.groups.len() as u32
    }

    /// This takes all queues. True if they are not here: then it has to wait.
    pub(crate) fn recall(&mut self, cause: RecallCause) -> bool {
        if self.is_split() {
            self.recall_cause.get_or_insert(cause);
        }
        self.is_split()
    }

    /// Queues of its are awaited.
    pub(crate) fn waits(&self) -> bool {
        self.recall_cause.is_some() && !self.groups.is_empty()
    }

    /// True if the admin command has to wait: until all queues are here, or until what was done elsewhere is counted.
    pub(crate) fn defers_admin(&mut self, subsystem: &mut Subsystem, entry: &SubmissionEntry) -> bool {
        if !self.is_split() {
            return false;
        }
        let remote = &mut subsystem.health.remote;
        let cause = RecallCause::AdminCommand(entry.opcode);
        match Takes::of(entry) {
            Takes::Nothing => false,
            Takes::Counters => !remote.are_complete(),
            Takes::Errors => !remote.are_complete() || remote.logged() > 0 && self.recall(cause),
            Takes::All => self.recall(cause),
        }
    }

    /// The same for an I/O command, of a controller that is apart.
    pub(crate) fn defers(&mut self, entry: &SubmissionEntry) -> bool {
        !is_of_blocks(entry) && self.recall(RecallCause::IoCommand(entry.opcode))
    }

    /// The doorbell of a queue is rung. Entries of that, if it is away.
    pub(crate) fn ring(&mut self, id: u16, is_cq: bool) -> Option<u32> {
        let of_group = |group: &mut RemoteGroup| {
            let size = match is_cq {
                true => (group.cq.0 == id).then_some(group.cq.1),
                false => group.sqs.iter().find(|(sq, _)| *sq == id).map(|(_, size)| *size),
            };
            group.rung |= size.is_some();
            size
        };
        let size = self.groups.iter_mut().find_map(of_group);
        self.rung |= size.is_some();
        size
    }

    /// True if an outpost keeps it, for home to tell the host.
    pub(crate) fn defer_doorbell_error(&mut self, queue: u16, event: Event) -> bool {
        if self.is_remote {
            self.doorbell_errors.push((queue, event));
            self.recall_cause.get_or_insert(RecallCause::Doorbell);
        }
        self.is_remote
    }

    /// The doorbells are others', too, who would take zeros for news: they are reset when all queues are here.
    pub(crate) fn delays_reset(&mut self) -> bool {
        self.stale |= self.recall(RecallCause::Reset);
        self.stale
    }

    pub(crate) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }
}

impl Controller {
    /// Every queue of the host is served here.
    pub fn has_all_queues(&self) -> bool {
        self.remote_groups.groups.is_empty()
    }

    /// What is to be done that takes all queues, or an outpost has met.
    pub fn recall_cause(&self) -> Option<RecallCause> {
        let is_fatal = self.remote_groups.is_split() && self.registers.is_fatal();
        self.remote_groups.recall_cause.or(is_fatal.then_some(RecallCause::Fatal))
    }

    /// Has groups that are away come home.
    pub fn recall_groups(&mut self, cause: RecallCause) {
        self.remote_groups.recall(cause);
    }

    /// Names the groups that are away, by their completion queues, whose doorbells were rung since this was last asked: their
    /// outposts may sleep.
    pub fn take_rung(&mut self, mut each: impl FnMut(u16)) {
        if std::mem::take(&mut self.remote_groups.rung) {
            let groups = self.remote_groups.groups.iter_mut();
            let rung = groups.filter_map(|group| std::mem::take(&mut group.rung).then_some(group.cq.0));
            rung.for_each(&mut each);
        }
    }
}
