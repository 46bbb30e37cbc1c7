//! Losses of acknowledged writes that were reported to a function and perhaps not to all hosts yet.
//!
//! Only the function holds such a loss until the next Flush of a host fails for it. A function that ends before,
//! by a crash, a restart or a move, does not pass the loss on to the next one. So the layer fails that Flush.
//! A function fails one Flush for a loss. The layer fails the next one of each other host, too. A bit is of a
//! controller number. The next host of a controller has the bit of the last one.
//!
//! A function above that has copies continues without this one after one report. So one report is enough there.
//! Every Flush can return that report.

use sluice_command::{Operation, Origin, Request};
use sluice_nvme::Status;

/// Bits of all controllers.
const ALL: u64 = u64::MAX;

/// Bit of the daemon, which gets the status of the Flush at the end of a drive.
const AT_END: u64 = 1 << 63;

#[derive(Debug, Default)]
pub(super) struct UnreportedLoss {
    /// Whether the layer above has copies, so that one report is for all hosts.
    reports_once: bool,
    /// Time of the last report to the function that was not followed by a report to a host.
    since_ns: Option<u64>,
    /// Bit per controller whose next Flush is to fail.
    owed: u64,
    /// Bit per controller that has sent commands.
    seen: u64,
}

/// Returns the bit of a command's controller.
fn bit(origin: &Origin) -> u64 {
    1 << (origin.controller % 64)
}

impl UnreportedLoss {
    /// Creates the state of a layer. The layer above has copies if it `reports_once`.
    pub(super) fn new(reports_once: bool) -> Self {
        Self { reports_once, ..Self::default() }
    }

    /// Returns whether `status` means that acknowledged writes of a layer below may be lost.
    pub(super) fn is_loss(request: &Request, status: Status) -> bool {
        let is_failed_flush = request.operation == Operation::Flush && !status.is_success();
        (is_failed_flush || status.same_code(Status::WRITES_LOST)) && !status.is_of_host()
    }

    /// Notes that a loss is reported to the function.
    pub(super) fn raise(&mut self, now_ns: u64) {
        self.since_ns = Some(now_ns);
    }

    /// Notes the controller of a command. Returns whether a loss may be unreported to it.
    #[inline]
    pub(super) fn see(&mut self, origin: &Origin) -> bool {
        let is_new = self.seen & bit(origin) == 0;
        self.seen |= bit(origin);
        is_new && self.is_open()
    }

    /// Notes a loss whose function is gone already.
    pub(super) fn owe(&mut self) {
        self.owed = ALL;
    }

    /// Notes that the function is gone.
    pub(super) fn orphan(&mut self) {
        if self.since_ns.take().is_some() {
            self.owe();
        }
    }

    /// Returns whether the end of a Flush must be [checked](Self::flushed).
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.owed != 0 || self.since_ns.is_some()
    }

    /// Returns whether the next Flush of a host that has sent commands fails for a loss.
    pub(super) fn is_owed(&self) -> bool {
        self.owed == ALL || self.owed & self.seen != 0
    }

    /// Returns whether a loss may not have been reported to a host that has sent commands.
    pub(super) fn is_unreported(&self) -> bool {
        self.is_owed() || self.since_ns.is_some()
    }

    /// Returns the status for the host of a Flush that ends; the function was sent the Flush last at
    /// `sent_ns`.
    pub(super) fn flushed(&mut self, status: Status, sent_ns: u64, origin: &Origin) -> Status {
        let (own, told) = match origin.sq == Origin::INTERNAL_SQ {
            _ if self.reports_once => (ALL, ALL),
            // The Flush at the end of a drive returns the status to the daemon, if no host has it.
            true if origin.is_of_subsystem() => (AT_END, AT_END),
            // No host gets the status of another internal one.
            true => (0, 0),
            false => (bit(origin), bit(origin) | AT_END),
        };
        if status.same_code(Status::WRITE_FAULT) {
            let others = if self.since_ns.take().is_some() { ALL } else { self.owed };
            self.owed = others & !told;
        } else if status.is_success() && self.owed & own != 0 {
            self.owed &= !told;
            return Status::WRITE_FAULT;
        } else if status.is_success() && self.since_ns.is_some_and(|since_ns| since_ns < sent_ns) {
            // The loss was reported to the function before, and it has another copy of the data.
            self.since_ns = None;
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(controller: u8) -> Origin {
        Origin { controller, ..Origin::default() }
    }

    #[test]
    fn a_loss_that_a_function_took_with_it_fails_one_flush_of_each_host() {
        let mut loss = UnreportedLoss::default();
        [0, 1].into_iter().for_each(|host| _ = loss.see(&of(host)));
        assert!(!loss.is_open() && !loss.is_unreported());
        loss.raise(5);
        assert_eq!(
            loss.flushed(Status::SUCCESS, 5, &of(0)),
            Status::SUCCESS,
            "perhaps it was answered before"
        );
        loss.orphan();
        assert!(loss.is_owed());
        let internal = Origin { sq: Origin::INTERNAL_SQ, ..of(0) };
        assert_eq!(loss.flushed(Status::SUCCESS, 6, &internal), Status::SUCCESS, "no host gets that");
        let other = loss.flushed(Status::INTERNAL_ERROR, 6, &of(0));
        assert_eq!(other, Status::INTERNAL_ERROR, "that says nothing of it");
        for host in [0, 1] {
            assert!(loss.is_unreported());
            assert_eq!(loss.flushed(Status::SUCCESS, 7, &of(host)), Status::WRITE_FAULT);
            assert_eq!(loss.flushed(Status::SUCCESS, 8, &of(host)), Status::SUCCESS);
        }
        assert!(!loss.is_unreported(), "no other host has sent a command");
        let at_end = Origin { sq: Origin::INTERNAL_SQ, ..of(Origin::SUBSYSTEM) };
        assert_eq!(loss.flushed(Status::SUCCESS, 9, &at_end), Status::SUCCESS, "hosts have been told");
        assert_eq!(
            loss.flushed(Status::SUCCESS, 9, &of(2)),
            Status::WRITE_FAULT,
            "it may have been there before"
        );
    }

    #[test]
    fn a_loss_reported_to_one_host_is_reported_to_the_others() {
        let mut loss = UnreportedLoss::default();
        [0, 1].into_iter().for_each(|host| _ = loss.see(&of(host)));
        loss.raise(5);
        assert_eq!(loss.flushed(Status::WRITE_FAULT, 6, &of(0)), Status::WRITE_FAULT);
        assert_eq!(loss.flushed(Status::SUCCESS, 7, &of(0)), Status::SUCCESS);
        assert_eq!(loss.flushed(Status::SUCCESS, 8, &of(1)), Status::WRITE_FAULT);
        assert_eq!(loss.flushed(Status::SUCCESS, 9, &of(1)), Status::SUCCESS);
        // The function fails the Flush of the other one itself for another loss: once is enough.
        loss.raise(10);
        assert_eq!(loss.flushed(Status::WRITE_FAULT, 11, &of(1)), Status::WRITE_FAULT);
        assert_eq!(loss.flushed(Status::WRITE_FAULT, 12, &of(0)), Status::WRITE_FAULT);
        assert_eq!(loss.flushed(Status::SUCCESS, 13, &of(0)), Status::SUCCESS);
        assert!(!loss.is_unreported());
    }

    #[test]
    fn an_unreported_loss_fails_the_flush_at_the_end() {
        let at_end = Origin { sq: Origin::INTERNAL_SQ, ..of(Origin::SUBSYSTEM) };
        let mut loss = UnreportedLoss::default();
        loss.owe();
        assert_eq!(loss.flushed(Status::SUCCESS, 5, &at_end), Status::WRITE_FAULT);
        assert_eq!(loss.flushed(Status::SUCCESS, 6, &at_end), Status::SUCCESS);
    }

    #[test]
    fn a_function_above_that_has_copies_gets_one_report() {
        let at_end = Origin { sq: Origin::INTERNAL_SQ, ..of(Origin::SUBSYSTEM) };
        for first in [of(0), Origin::LAYER, at_end] {
            for is_gone in [false, true] {
                let mut loss = UnreportedLoss::new(true);
                [0, 1].into_iter().for_each(|host| _ = loss.see(&of(host)));
                loss.raise(5);
                let status = if is_gone { Status::SUCCESS } else { Status::WRITE_FAULT };
                if is_gone {
                    loss.orphan();
                }
                assert_eq!(loss.flushed(status, 6, &first), Status::WRITE_FAULT);
                assert!(!loss.is_open(), "the member is out");
                for next in [of(0), of(1), Origin::LAYER, at_end] {
                    assert_eq!(loss.flushed(Status::SUCCESS, 7, &next), Status::SUCCESS);
                }
            }
        }
    }

    #[test]
    fn a_controller_that_sends_its_first_command_after_a_loss_changes_what_is_unreported() {
        let mut loss = UnreportedLoss::default();
        assert!(!loss.see(&of(0)), "there is no loss");
        loss.raise(5);
        assert_eq!(loss.flushed(Status::WRITE_FAULT, 6, &of(0)), Status::WRITE_FAULT);
        assert!(!loss.is_unreported());
        assert!(!loss.see(&of(0)) && loss.see(&of(1)));
        assert!(loss.is_unreported());
        assert!(!loss.see(&of(1)), "nothing has changed");
    }

    #[test]
    fn a_function_that_has_a_copy_takes_nothing_with_it() {
        let mut loss = UnreportedLoss::default();
        loss.see(&of(0));
        loss.raise(5);
        assert_eq!(loss.flushed(Status::SUCCESS, 6, &of(0)), Status::SUCCESS);
        loss.orphan();
        assert!(!loss.is_open());
    }
}
