//! Changes that a controller may still carry out although their connection is lost.
//!
//! They are neither sent again nor ended before it is certain that the controller is done with them: otherwise an old write
//! could come after a newer one to the same blocks (Base 2.1, 9.6).

use super::flight::Rest;
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
struct Late {
    /// None if its command has ended, and only the next connection waits.
    rest: Option<Rest>,
    /// From then on the controller is done with it. None while its connection is not reset.
    until_ns: Option<u64>,
}

/// Such changes, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    late: Vec<Late>,
    /// Of the connection that was lost last.
    until_ns: Option<u64>,
}

impl Unsettled {
    /// A connection is lost, and not reset yet.
    pub(super) fn lost(&mut self) {
        self.until_ns = None;
    }

    /// It is reset. Its controller is done with its commands at this time.
    pub(super) fn reset(&mut self, until_ns: u64) {
        self.until_ns = Some(until_ns);
        self.late.iter_mut().for_each(|late| {
            late.until_ns.get_or_insert(until_ns);
        });
    }

    /// A change was under way on the connection that was lost last. Without a command, only the next connection waits for it.
    pub(super) fn add(&mut self, rest: Option<Rest>) {
        self.late.push(Late { rest, until_ns: self.until_ns });
    }

    /// No other connection may be used.
    pub(super) fn closes(&self) -> bool {
        self.late.iter().any(|late| late.rest.is_none())
    }

    pub(super) fn len(&self) -> usize {
        self.late.len()
    }

    /// When the next of them is settled; none if none is known to be.
    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.late.iter().filter_map(|late| late.until_ns).min()
    }

    /// Takes the commands out that can go on.
    pub(super) fn take_settled(&mut self, now_ns: u64) -> Vec<Rest> {
        let is_settled = |late: &mut Late| late.until_ns.is_some_and(|until_ns| until_ns <= now_ns);
        self.late.extract_if(.., is_settled).filter_map(|late| late.rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_command::Ticket;

    fn rest(ticket: u32) -> Rest {
        Rest { ticket: Ticket(ticket), done: 0, since_ns: None }
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
        let mut unsettled = Unsettled::default();
        unsettled.lost();
        unsettled.add(Some(rest(1)));
        assert_eq!((unsettled.deadline_ns(), unsettled.take_settled(u64::MAX)), (None, vec![]));
        unsettled.reset(100);
        // The kernel was done with this one later.
        unsettled.add(Some(rest(2)));
        unsettled.lost();
        unsettled.add(Some(rest(3)));
        assert_eq!(unsettled.deadline_ns(), Some(100));
        assert_eq!(unsettled.take_settled(99), []);
        assert_eq!(unsettled.take_settled(100), [rest(1), rest(2)]);
        unsettled.reset(200);
        assert_eq!(unsettled.take_settled(300), [rest(3)]);
        assert!(!unsettled.closes() && unsettled.len() == 0);
        unsettled.add(None);
        assert!(unsettled.closes() && unsettled.take_settled(200).is_empty() && !unsettled.closes());
    }
}
