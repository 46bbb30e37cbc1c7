//! Writes that a controller has acknowledged and that no Flush has made durable.
//!
//! A controller that loses power loses them, and a later Flush succeeds nevertheless. So the state outlives
//! the connection. The writes count as lost if the controller of a new connection does not prove that it kept
//! its power. The layers above are then notified.

use super::{NamespaceInfo, PowerId};
use sluice_command::{Operation, Origin, Request};
use sluice_nvme::Status;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Bits of all hosts of the drive, by the number of their controller, and of the layers above, by the number
/// of the subsystem.
const ALL: u64 = u64::MAX;

/// Way in which the layers above are notified of a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossNotice {
    /// The next Flush of each host fails with Write Fault.
    #[default]
    FailFlush,
    /// The next command of any kind fails with [`Status::WRITES_LOST`]. The layer above has copies, and reads
    /// another one from then on.
    FailCommand,
}

/// State of a namespace that an earlier daemon did not flush at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviousSession {
    /// Power identifier of the controller, if it reported one.
    pub power: Option<PowerId>,
    /// Bit per controller of the drive whose host may have outlived the earlier daemon.
    pub survivors: u64,
}

/// The unflushed writes of one namespace, along all paths to it. One thread changes the state.
#[derive(Debug)]
pub(crate) struct Unflushed {
    notice: LossNotice,
    /// Count of acknowledged writes, and how many of them a Flush has made durable.
    acknowledged: AtomicU64,
    durable: AtomicU64,
    /// Bit per controller whose host was not notified of a loss yet.
    unreported: AtomicU64,
    /// Bit per controller whose host is to be notified of the next loss.
    survivors: AtomicU64,
    /// Set while `unreported` is not empty.
    lost: AtomicBool,
    /// Set if a host was notified of the last loss.
    was_reported: AtomicBool,
}

impl Unflushed {
    /// Creates the state, with the unflushed writes of an earlier daemon if there are some.
    pub(crate) fn new(notice: LossNotice, previous_session: Option<PreviousSession>) -> Self {
        let survivors = previous_session.map_or(ALL, |previous_session| previous_session.survivors);
        let acknowledged = AtomicU64::new(previous_session.is_some().into());
        Self {
            notice,
            acknowledged,
            durable: AtomicU64::new(0),
            unreported: AtomicU64::new(0),
            survivors: AtomicU64::new(survivors),
            lost: AtomicBool::new(false),
            was_reported: AtomicBool::new(false),
        }
    }

    /// Returns whether the layer above has copies, and continues without this one.
    pub(crate) fn has_copies(&self) -> bool {
        self.notice == LossNotice::FailCommand
    }

    /// Returns the count of acknowledged writes. All of them are durable after the success of a Flush that is
    /// sent now.
    #[inline]
    pub(crate) fn mark(&self) -> u64 {
        self.acknowledged.load(Relaxed)
    }

    /// Records the success of a request, or of a part of one. `mark` is the [`mark`](Self::mark) at the time
    /// it was sent.
    #[inline]
    pub(crate) fn succeeded(&self, request: &Request, mark: u64) {
        match request.operation {
            Operation::Read => {}
            Operation::Flush => self.flushed(mark),
            Operation::Write | Operation::WriteZeroes if request.fua => {}
            _ => self.wrote(),
        }
    }

    #[inline]
    pub(crate) fn wrote(&self) {
        self.acknowledged.store(self.acknowledged.load(Relaxed) + 1, Relaxed);
    }

    pub(crate) fn flushed(&self, mark: u64) {
        self.durable.store(self.durable.load(Relaxed).max(mark), Relaxed);
    }

    /// Records a new connection, to a controller with this `info`. Returns whether acknowledged writes may be
    /// lost. `power` is the identifier of the last connection's controller, and is replaced.
    pub(crate) fn on_connect(&self, info: &NamespaceInfo, power: &mut Option<PowerId>) -> bool {
        let has_kept = info.has_kept_power(*power);
        *power = info.power;
        !has_kept && self.reconnected()
    }

    /// Records a new connection to a controller that may have lost its power. Returns whether there were
    /// writes to lose.
    pub(crate) fn reconnected(&self) -> bool {
        let is_dirty = self.acknowledged.load(Relaxed) > self.durable.load(Relaxed);
        if is_dirty {
            self.lose();
        }
        is_dirty
    }

    fn lose(&self) {
        // A loss is reported once, even if the report comes late.
        self.flushed(self.mark());
        let unreported = self.unreported.load(Relaxed) | self.survivors.swap(ALL, Relaxed);
        self.unreported.store(unreported, Relaxed);
        self.lost.store(unreported != 0, Relaxed);
        self.was_reported.store(false, Relaxed);
    }

    /// Returns whether some host was not notified of a loss.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// Returns the status with which a command reports an earlier loss; none if it is to be executed.
    #[cold]
    pub(crate) fn take_loss(&self, request: &Request, origin: &Origin) -> Option<Status> {
        if self.notice == LossNotice::FailCommand {
            self.mark_reported(ALL);
            return Some(Status::WRITES_LOST);
        }
        let bit = 1 << (origin.controller % 64);
        if request.operation != Operation::Flush || self.unreported.load(Relaxed) & bit == 0 {
            return None;
        }
        // No host gets the status of an internal Flush. The internal Flush at the end of a drive returns the
        // status to the daemon, if no host was notified.
        let is_internal = origin.sq == Origin::INTERNAL_SQ;
        let is_at_end = is_internal && origin.controller == Origin::SUBSYSTEM;
        if is_internal && !is_at_end || is_at_end && self.was_reported.load(Relaxed) {
            return None;
        }
        self.mark_reported(bit);
        self.was_reported.fetch_or(origin.is_host() && !is_internal, Relaxed);
        Some(Status::WRITE_FAULT)
    }

    fn mark_reported(&self, bits: u64) {
        let unreported = self.unreported.load(Relaxed) & !bits;
        self.unreported.store(unreported, Relaxed);
        self.lost.store(unreported != 0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: Operation, fua: bool) -> Request {
        Request { operation, fua, ..Request::default() }
    }

    fn of(controller: u8) -> Origin {
        Origin { controller, ..Origin::default() }
    }

    #[test]
    fn what_was_not_flushed_is_lost_with_a_connection() {
        let unflushed = Unflushed::new(LossNotice::FailFlush, None);
        assert!(!unflushed.reconnected());
        unflushed.succeeded(&request(Operation::Write, true), 0);
        unflushed.succeeded(&request(Operation::Read, false), 0);
        assert!(!unflushed.reconnected(), "none of it was volatile");
        for operation in [Operation::Write, Operation::WriteZeroes, Operation::Deallocate] {
            unflushed.succeeded(&request(operation, false), 0);
            assert!(unflushed.reconnected() && unflushed.is_lost());
            assert!(!unflushed.reconnected(), "it is lost once");
        }
        let flush = request(Operation::Flush, false);
        assert_eq!(unflushed.take_loss(&request(Operation::Write, false), &of(0)), None);
        for controller in [0, 1, Origin::SUBSYSTEM] {
            assert_eq!(unflushed.take_loss(&flush, &of(controller)), Some(Status::WRITE_FAULT));
            assert_eq!(unflushed.take_loss(&flush, &of(controller)), None, "it is told once");
        }
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_was_sent() {
        let unflushed = Unflushed::new(LossNotice::FailFlush, None);
        let (write, flush) = (request(Operation::Write, false), request(Operation::Flush, false));
        unflushed.succeeded(&write, 0);
        let mark = unflushed.mark();
        unflushed.succeeded(&write, 0);
        unflushed.succeeded(&flush, mark);
        assert!(unflushed.reconnected(), "the second write came later");
        unflushed.succeeded(&write, 0);
        unflushed.succeeded(&flush, unflushed.mark());
        assert!(!unflushed.reconnected());
    }

    /// Checks internal Flushes: that of a controller at its shutdown, and that of a drive at its end.
    #[test]
    fn the_end_of_a_drive_is_told_of_a_loss_that_no_host_was_told_of() {
        let flush = request(Operation::Flush, false);
        let internal = |controller| Origin { sq: Origin::INTERNAL_SQ, ..of(controller) };
        let (shutdown, end) = (internal(0), internal(Origin::SUBSYSTEM));
        for is_told in [false, true] {
            let unflushed = Unflushed::new(LossNotice::FailFlush, None);
            unflushed.wrote();
            assert!(unflushed.reconnected());
            assert_eq!(unflushed.take_loss(&flush, &shutdown), None, "no host gets its status");
            if is_told {
                assert_eq!(unflushed.take_loss(&flush, &of(0)), Some(Status::WRITE_FAULT));
            }
            let told = (!is_told).then_some(Status::WRITE_FAULT);
            assert_eq!(unflushed.take_loss(&flush, &end), told);
            assert_eq!(unflushed.take_loss(&flush, &end), None, "it is told once");
        }
    }

    #[test]
    fn hosts_that_ended_with_the_machine_are_not_told() {
        let flush = request(Operation::Flush, false);
        let unflushed =
            Unflushed::new(LossNotice::FailFlush, Some(PreviousSession { power: None, survivors: 2 }));
        assert!(unflushed.reconnected());
        assert_eq!(unflushed.take_loss(&flush, &of(0)), None);
        assert_eq!(unflushed.take_loss(&flush, &of(1)), Some(Status::WRITE_FAULT));
        unflushed.wrote();
        assert!(unflushed.reconnected());
        assert_eq!(
            unflushed.take_loss(&flush, &of(0)),
            Some(Status::WRITE_FAULT),
            "that one it has lived to see"
        );
    }

    #[test]
    fn a_layer_that_has_copies_is_told_by_any_command() {
        let previous_session = PreviousSession { power: None, survivors: ALL };
        let unflushed = Unflushed::new(LossNotice::FailCommand, Some(previous_session));
        assert!(!unflushed.is_lost() && unflushed.reconnected() && unflushed.is_lost());
        let read = request(Operation::Read, false);
        assert_eq!(unflushed.take_loss(&read, &of(0)), Some(Status::WRITES_LOST));
        assert!(!unflushed.is_lost());
    }
}
