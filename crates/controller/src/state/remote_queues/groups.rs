//! State of a controller's queue groups while some are served remotely, and the events that recall them.

use crate::state::events::Event;
use crate::state::remote_queues::cause::RecallCause;
use crate::state::remote_queues::tally::{Tallies, Tally};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{LogId, SubmissionEntry};
use std::sync::Arc;

/// Returns whether the owner of remote queue groups has all contents of a log page.
pub(crate) fn is_of_owner(log: LogId) -> bool {
    const THEM: [LogId; 8] = [
        LogId::SUPPORTED_LOG_PAGES,
        LogId::FIRMWARE_SLOT,
        LogId::CHANGED_NAMESPACE_LIST,
        LogId::COMMAND_EFFECTS,
        LogId::SELF_TEST,
        LogId::ASYMMETRIC_NAMESPACE_ACCESS,
        LogId::FEATURE_EFFECTS,
        LogId::MI_COMMAND_EFFECTS,
    ];
    THEM.contains(&log)
}

/// Group from which no entry is taken, until its commands have ended.
#[derive(Debug)]
pub(crate) struct Migrating {
    pub(crate) cq: u16,
    pub(crate) sqs: Vec<u16>,
}

/// State of remote groups that an admin command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// No state of them. The command changes nothing that a remote controller has a copy of.
    Nothing,
    /// Counters of the groups.
    Counters,
    /// Error logs of the groups. If these are empty, the owner's log is complete.
    Errors,
    /// The groups themselves.
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
                log if is_of_owner(log) => Self::Nothing,
                _ => Self::All,
            },
            _ => Self::All,
        }
    }
}

/// Returns whether an I/O command touches only blocks and host memory, so that any controller can execute it.
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

/// Remote group as the owner sees it: identifiers and sizes of its queues.
#[derive(Debug)]
pub(crate) struct RemoteGroup {
    pub(crate) cq: (u16, u32),
    pub(crate) sqs: Vec<(u16, u32)>,
    /// Generation of the map in which the memory of its queues was found.
    pub(crate) generation: u64,
    /// Whether one of its doorbells was written through the owner.
    pub(crate) rung: bool,
}

/// Remote groups of a controller, or the role of a remote controller.
#[derive(Debug, Default)]
pub(crate) struct RemoteGroups {
    pub(crate) is_remote: bool,
    pub(crate) groups: Vec<RemoteGroup>,
    pub(crate) migrating: Option<Migrating>,
    /// First cause of the recall that is under way.
    pub(crate) recall_cause: Option<RecallCause>,
    /// Whether a doorbell of a remote group was written through the owner.
    pub(crate) rung: bool,
    /// Whether a reset was started while remote controllers used the doorbells.
    pub(super) stale: bool,
    /// Invalid doorbell writes that a remote controller found. The owner reports them to the host.
    pub(crate) doorbell_errors: Vec<(u16, Event)>,
    /// Counters of a remote controller.
    pub(crate) tally: Option<Arc<Tally>>,
}

impl RemoteGroups {
    /// Returns whether some queue of the host is served by another controller.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        self.is_remote || !self.groups.is_empty()
    }

    /// Returns the number of remote groups.
    pub(crate) fn count(&self) -> u32 {
        self.groups.len() as u32
    }

    /// Recalls all groups. Returns whether some queue is elsewhere, so that the caller must wait.
    pub(crate) fn recall(&mut self, cause: RecallCause) -> bool {
        if self.is_split() {
            self.recall_cause.get_or_insert(cause);
        }
        self.is_split()
    }

    /// Returns whether recalled groups have not returned yet.
    pub(crate) fn waits(&self) -> bool {
        self.recall_cause.is_some() && !self.groups.is_empty()
    }

    /// Returns whether an admin command must wait: for all queues, or until the counters of remote turns are
    /// complete.
    pub(crate) fn defers_admin(&mut self, remote: &mut Tallies, entry: &SubmissionEntry) -> bool {
        if !self.is_split() {
            return false;
        }
        let cause = RecallCause::AdminCommand(entry.opcode);
        match Takes::of(entry) {
            Takes::Nothing => false,
            Takes::Counters => !remote.are_complete(),
            Takes::Errors => !remote.are_complete() || remote.logged() > 0 && self.recall(cause),
            Takes::All => self.recall(cause),
        }
    }

    /// Returns whether an I/O command must wait. Only called while queues are split.
    pub(crate) fn defers(&mut self, entry: &SubmissionEntry) -> bool {
        !is_of_blocks(entry) && self.recall(RecallCause::IoCommand(entry.opcode))
    }

    /// Notes a doorbell write, and returns the size of the queue if it is remote.
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

    /// Stores an invalid doorbell write, for the owner to report. Returns false if this controller is an
    /// owner.
    pub(crate) fn defer_doorbell_error(&mut self, queue: u16, event: Event) -> bool {
        if self.is_remote {
            self.doorbell_errors.push((queue, event));
            self.recall_cause.get_or_insert(RecallCause::Doorbell);
        }
        self.is_remote
    }

    /// Delays the reset of the doorbells until all queues are here, and returns whether it is delayed. Remote
    /// controllers read the same doorbells and would take zeros for new tails.
    pub(crate) fn delays_reset(&mut self) -> bool {
        self.stale |= self.recall(RecallCause::Reset);
        self.stale
    }

    pub(crate) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }
}
