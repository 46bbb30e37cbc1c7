//! Changes that a controller may still execute although their connection is lost.
//!
//! A change is neither sent again nor ended before the controller certainly cannot execute it any more.
//! Otherwise an old write could follow a newer one to the same blocks (Base 2.1, 9.6).

use super::in_flight::Remaining;
use crate::remote::NamespaceInfo;
use std::time::Duration;

/// Time in which a controller without a Keep Alive Timer may not detect the end of a connection.
const UNNOTICED: Duration = Duration::from_secs(60);

/// Returns how long the controller may execute commands of a lost connection. `has_ended` means that the
/// controller has seen the end of the connection; otherwise the controller's Keep Alive Timer ends it. After
/// that passes the Command Quiesce Time, or the time of one command if the controller reports none. A
/// controller that holds back overlapping commands needs no such time.
pub(super) fn delay(
    info: &NamespaceInfo,
    keep_alive: Duration,
    timeout: Duration,
    has_ended: bool,
) -> Duration {
    let intervals = if info.restarts_keep_alive { 3 } else { 2 };
    let unnoticed = match has_ended {
        true => Duration::ZERO,
        false if keep_alive.is_zero() => UNNOTICED,
        false => keep_alive.saturating_mul(intervals),
    };
    let quiesce = if info.holds_back { Duration::ZERO } else { info.quiesce.unwrap_or(timeout) };
    unnoticed.saturating_add(quiesce)
}

#[derive(Debug)]
struct PendingChange {
    /// The command; none if it has ended, and only the next connection waits.
    remaining: Option<Remaining>,
    /// Time from which on the controller cannot execute it; none while its connection is not reset.
    until_ns: Option<u64>,
}

/// Changes of lost connections, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Quiescing {
    changes: Vec<PendingChange>,
    /// Time of the connection that was lost last.
    until_ns: Option<u64>,
}

impl Quiescing {
    /// Records the loss of a connection, which is not reset yet.
    pub(super) fn lost(&mut self) {
        self.until_ns = None;
    }

    /// Records the reset of the connection. Its controller cannot execute its commands after `until_ns`.
    pub(super) fn reset(&mut self, until_ns: u64) {
        self.until_ns = Some(until_ns);
        self.changes.iter_mut().for_each(|change| {
            change.until_ns.get_or_insert(until_ns);
        });
    }

    /// Adds a change of the connection that was lost last. Without a command, only the next connection waits
    /// for it.
    pub(super) fn add(&mut self, remaining: Option<Remaining>) {
        self.changes.push(PendingChange { remaining, until_ns: self.until_ns });
    }

    /// Returns whether no other connection may be used.
    pub(super) fn blocks_connection(&self) -> bool {
        self.changes.iter().any(|change| change.remaining.is_none())
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns the time at which the next change is over; none if none is scheduled.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.changes.iter().filter_map(|change| change.until_ns).min()
    }

    /// Removes the commands that can continue.
    pub(super) fn take_quiesced(&mut self, now_ns: u64) -> Vec<Remaining> {
        let is_quiesced =
            |change: &mut PendingChange| change.until_ns.is_some_and(|until_ns| until_ns <= now_ns);
        self.changes.extract_if(.., is_quiesced).filter_map(|change| change.remaining).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_command::Ticket;

    fn remaining(ticket: u32) -> Remaining {
        Remaining { ticket: Ticket(ticket), done: 0, since_ns: None }
    }

    #[test]
    fn a_controller_gets_the_time_that_it_may_need() {
        let second = Duration::from_secs(1);
        let mut info = NamespaceInfo::assumed(1 << 20, 512);
        let (keep_alive, timeout) = (5 * second, 10 * second);
        assert_eq!(delay(&info, keep_alive, timeout, true), timeout);
        assert_eq!(delay(&info, keep_alive, timeout, false), 2 * keep_alive + timeout);
        assert_eq!(delay(&info, Duration::ZERO, timeout, false), UNNOTICED + timeout);
        (info.quiesce, info.restarts_keep_alive) = (Some(second), true);
        assert_eq!(delay(&info, keep_alive, timeout, true), second);
        assert_eq!(delay(&info, keep_alive, timeout, false), 3 * keep_alive + second);
        info.holds_back = true;
        assert_eq!(delay(&info, keep_alive, timeout, true), Duration::ZERO);
        assert_eq!(delay(&info, keep_alive, timeout, false), 3 * keep_alive);
    }

    #[test]
    fn each_waits_for_its_own_connection() {
        let mut quiescing = Quiescing::default();
        quiescing.lost();
        quiescing.add(Some(remaining(1)));
        assert_eq!((quiescing.deadline_ns(), quiescing.take_quiesced(u64::MAX)), (None, vec![]));
        quiescing.reset(100);
        // The kernel was done with this one later.
        quiescing.add(Some(remaining(2)));
        quiescing.lost();
        quiescing.add(Some(remaining(3)));
        assert_eq!(quiescing.deadline_ns(), Some(100));
        assert_eq!(quiescing.take_quiesced(99), []);
        assert_eq!(quiescing.take_quiesced(100), [remaining(1), remaining(2)]);
        quiescing.reset(200);
        assert_eq!(quiescing.take_quiesced(300), [remaining(3)]);
        assert!(!quiescing.blocks_connection() && quiescing.len() == 0);
        quiescing.add(None);
        assert!(
            quiescing.blocks_connection()
                && quiescing.take_quiesced(200).is_empty()
                && !quiescing.blocks_connection()
        );
    }
}
