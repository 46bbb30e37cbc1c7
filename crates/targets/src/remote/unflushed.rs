//! Writes that a controller has acknowledged and that no Flush has made durable.
//!
//! A controller that loses power loses them, and a later Flush succeeds nevertheless. So the state outlives
//! the connection. The writes count as lost if the controller of a new connection does not prove that it kept
//! its power. The layers above are then notified.
//!
//! A Flush along any path makes all earlier writes to the namespace durable (NVM Command Set, Flush). A
//! shutdown counts for its controller alone (Base 3.6, Shutdown Processing): other controllers of the subsystem may still
//! have volatile writes that came along their paths.

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
    /// Each path, and after the paths the one of an earlier daemon, which is not known.
    paths: Box<[Path]>,
    /// Bit per controller whose host was not notified of a loss yet.
    unreported: AtomicU64,
    /// Bit per controller whose host is to be notified of the next loss.
    survivors: AtomicU64,
    /// Set while `unreported` is not empty.
    lost: AtomicBool,
    /// Set if a host was notified of the last loss.
    was_reported: AtomicBool,
}

/// State of a path to the namespace.
#[derive(Debug, Default)]
struct Path {
    /// Count of acknowledged writes at the last one of this path; 0 if there was none since its last shutdown.
    last: AtomicU64,
    is_connected: AtomicBool,
}

impl Unflushed {
    /// Creates the state of a namespace with one path, with the unflushed writes of an earlier daemon if there are some.
    pub(crate) fn new(notice: LossNotice, previous_session: Option<PreviousSession>) -> Self {
        Self::along(1, notice, previous_session)
    }

    /// Creates the state of a namespace with this number of paths.
    pub(crate) fn along(paths: usize, notice: LossNotice, previous_session: Option<PreviousSession>) -> Self {
        let paths: Box<[Path]> = (0..=paths).map(|_| Path::default()).collect();
        if let Some(unknown) = paths.last() {
            unknown.last.store(previous_session.is_some().into(), Relaxed);
        }
        let survivors = previous_session.map_or(ALL, |previous_session| previous_session.survivors);
        let acknowledged = AtomicU64::new(previous_session.is_some().into());
        Self {
            notice,
            acknowledged,
            durable: AtomicU64::new(0),
            paths,
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
        self.succeeded_along(0, request, mark);
    }

    /// Records the same along a path.
    #[inline]
    pub(crate) fn succeeded_along(&self, path: usize, request: &Request, mark: u64) {
        match request.operation {
            Operation::Read => {}
            Operation::Flush => self.flushed(mark),
            Operation::Write | Operation::WriteZeroes if request.fua => {}
            _ => self.wrote(path),
        }
    }

    #[inline]
    fn wrote(&self, path: usize) {
        let count = self.acknowledged.load(Relaxed) + 1;
        self.acknowledged.store(count, Relaxed);
        if let Some(path) = self.paths.get(path) {
            path.last.store(count, Relaxed);
        }
    }

    /// Records that the controller of a path was shut down in order: all writes that it acknowledged are durable.
    pub(crate) fn was_shut_down(&self, path: usize) {
        // An earlier daemon has used the same path, if there is only one.
        let unknown = (self.paths.len() == 2).then_some(1);
        for path in [Some(path), unknown].into_iter().flatten().filter_map(|path| self.paths.get(path)) {
            path.last.store(0, Relaxed);
        }
    }

    /// Records that the connection of a path is lost.
    pub(crate) fn disconnected(&self, path: usize) {
        self.paths.get(path).into_iter().for_each(|path| path.is_connected.store(false, Relaxed));
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

    /// Records a new connection along a path, like [`on_connect`](Self::on_connect). A controller that `was_shut_down` in
    /// order before has lost no write. Its connection is no reason to doubt those of connected paths.
    pub(crate) fn on_connect_along(
        &self,
        path: usize,
        was_shut_down: bool,
        info: &NamespaceInfo,
        power: &mut Option<PowerId>,
    ) -> bool {
        self.paths.get(path).into_iter().for_each(|path| path.is_connected.store(true, Relaxed));
        if !was_shut_down || info.has_changed_power(*power) {
            return self.on_connect(info, power);
        }
        let has_kept = info.has_kept_power(*power);
        *power = info.power;
        !has_kept && self.lose_if(|path| !path.is_connected.load(Relaxed))
    }

    /// Records a new connection to a controller that may have lost its power. Returns whether there were
    /// writes to lose.
    pub(crate) fn reconnected(&self) -> bool {
        self.lose_if(|_| true)
    }

    /// Records a loss if a path that is in doubt has unflushed writes. Returns whether that is so.
    fn lose_if(&self, is_in_doubt: impl Fn(&Path) -> bool) -> bool {
        let durable = self.durable.load(Relaxed);
        let is_lost = self.paths.iter().any(|path| path.last.load(Relaxed) > durable && is_in_doubt(path));
        if is_lost {
            self.lose();
        }
        is_lost
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
        let is_at_end = origin.is_of_subsystem();
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
            unflushed.wrote(0);
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
        unflushed.wrote(0);
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

    /// Writes along two paths, of which the controllers are reset one after the other.
    #[test]
    fn a_shutdown_makes_the_writes_of_its_own_path_durable() {
        let info = NamespaceInfo::assumed(1 << 20, 512);
        let write = request(Operation::Write, false);
        let written = || {
            let unflushed = Unflushed::along(2, LossNotice::FailFlush, None);
            for path in [0, 1] {
                assert!(!unflushed.on_connect_along(path, false, &info, &mut None));
            }
            [0, 1].into_iter().for_each(|path| unflushed.succeeded_along(path, &write, 0));
            unflushed
        };
        let in_order = written();
        for path in [0, 1] {
            in_order.was_shut_down(path);
            in_order.disconnected(path);
            assert!(!in_order.on_connect_along(path, true, &info, &mut None), "nothing is lost");
        }
        assert!(!in_order.reconnected() && !in_order.is_lost(), "all of it is durable");
        let second_fails = written();
        second_fails.was_shut_down(0);
        assert!(!second_fails.on_connect_along(0, true, &info, &mut None));
        second_fails.disconnected(1);
        assert!(second_fails.on_connect_along(1, false, &info, &mut None), "its writes were volatile");
        let both_fail = written();
        both_fail.was_shut_down(0);
        [0, 1].into_iter().for_each(|path| both_fail.disconnected(path));
        assert!(both_fail.on_connect_along(0, true, &info, &mut None), "the second one may not come back");
        let flushed = written();
        flushed.succeeded_along(0, &request(Operation::Flush, false), flushed.mark());
        assert!(!flushed.reconnected(), "a Flush counts for both");
    }

    #[test]
    fn writes_of_an_earlier_daemon_came_along_any_path() {
        let previous = Some(PreviousSession { power: None, survivors: ALL });
        for (paths, is_lost) in [(1, false), (2, true)] {
            let unflushed = Unflushed::along(paths, LossNotice::FailFlush, previous);
            unflushed.was_shut_down(0);
            assert_eq!(unflushed.reconnected(), is_lost, "{paths}");
        }
    }
}
