//! Changes that a controller may still carry out although their connection is lost.
//!
//! They are neither sent again nor ended before it is certain that the controller is done with them: otherwise an old write
//! could come after a newer one to the same blocks (Base 2.1, 9.6).

use super::in_flight::Remaining;
use crate::remote::NamespaceInfo;
use std::time::Duration;

/// How long a controller without a Keep Alive Timer may not notice the end of a connection.
const UNNOTICED: Duration = Duration::from_secs(60);

/// How long after the loss of a connection the controller may carry out commands of it. `has_ended` if the controller has
/// seen the end of the connection; otherwise its Keep Alive Timer ends it. Then it takes the Command Quiesce Time, for which
/// a controller without that field gets the time of one command. A controller that holds back later commands needs none.
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
    /// None if its command has ended, and only the next connection waits.
    remaining: Option<Remaining>,
    /// From then on the controller is done with it. None while its connection is not reset.
    until_ns: Option<u64>,
}

/// Such changes, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Quiescing {
    changes: Vec<PendingChange>,
    /// Of the connection that was lost last.
    until_ns: Option<u64>,
}

impl Quiescing {
    /// A connection is lost, and not reset yet.
    pub(super) fn lost(&mut self) {
        self.until_ns = None;
    }

    /// It is reset. Its controller is done with its commands at this time.
    pub(super) fn reset(&mut self, until_ns: u64) {
        self.until_ns = Some(until_ns);
        self.changes.iter_mut().for_each(|change| {
            change.until_ns.get_or_insert(until_ns);
        });
    }

    /// A change was under way on the connection that was lost last. Without a command, only the next connection waits for it.
    pub(super) fn add(&mut self, remaining: Option<Remaining>) {
        self.changes.push(PendingChange { remaining, until_ns: self.until_ns });
    }

    /// No other connection may be used.
    pub(super) fn blocks_connection(&self) -> bool {
        self.changes.iter().any(|change| change.remaining.is_none())
    }

    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// When the next of them is settled; none if none is known to be.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.changes.iter().filter_map(|change| change.until_ns).min()
    }

    /// Takes the commands out that can go on.
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
