//! Queue of connections that wait until earlier ones have ended.
//!
//! A waiting host has given a name, but has not authenticated. So places are shared by address: an address
//! that fills the queue, under any number of names, keeps no other address out.

use crate::accept::AcceptedConnect;
use crate::origin::origin;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Connections that may wait.
const WAITING_MAX: usize = 16;

/// Connections under the name of one host, which leaves places for others.
const OF_ONE_HOST_MAX: usize = 4;

/// Time that a connection waits, in nanoseconds. A host may reconnect before the end of its last connection
/// is detected.
const WAIT_NS: u64 = 2_000_000_000;

/// Connection that waits.
pub(super) trait PendingConnection {
    /// Returns the NQN that the host gave.
    fn host(&self) -> &str;

    fn origin(&self) -> IpAddr;
}

impl PendingConnection for AcceptedConnect {
    fn host(&self) -> &str {
        &self.host.nqn
    }

    fn origin(&self) -> IpAddr {
        origin(self.peer)
    }
}

#[derive(Debug)]
pub(super) struct PendingQueue<V> {
    /// Connections, the oldest first, each with the time when it stops waiting.
    waiting: VecDeque<(V, u64)>,
}

impl<V: PendingConnection> PendingQueue<V> {
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::with_capacity(WAITING_MAX) }
    }

    /// Returns the number of waiting connections.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a connection. Returns one that has no place: this one, or an earlier one that it displaces.
    pub(super) fn put(&mut self, connection: V, now_ns: u64) -> Option<V> {
        let is_of_host = |index: &usize| self.waiting[*index].0.host() == connection.host();
        let of_host: Vec<usize> = (0..self.len()).filter(is_of_host).collect();
        let group = match () {
            () if of_host.len() == OF_ONE_HOST_MAX => of_host,
            () if self.len() == WAITING_MAX => (0..self.len()).collect(),
            () => Vec::new(),
        };
        let mut gone = None;
        if !group.is_empty() {
            let Some(index) = self.displaced(&group, connection.origin()) else { return Some(connection) };
            gone = self.waiting.remove(index);
        }
        self.put_back(connection, now_ns.saturating_add(WAIT_NS));
        gone.map(|(connection, _)| connection)
    }

    /// Returns the oldest connection of the address with the most in `group`, unless the newcomer's address
    /// has as many.
    fn displaced(&self, group: &[usize], newcomer: IpAddr) -> Option<usize> {
        let origin = |index: usize| self.waiting[index].0.origin();
        let count = |of: IpAddr| group.iter().filter(|index| origin(**index) == of).count();
        // `max_by_key` returns the last of several with the same count.
        let first = *group.iter().rev().max_by_key(|index| count(origin(**index)))?;
        (count(origin(first)) > count(newcomer)).then_some(first)
    }

    /// Removes the connection that has waited the longest. Returns it with the time when it stops waiting.
    pub(super) fn pop(&mut self) -> Option<(V, u64)> {
        self.waiting.pop_front()
    }

    /// Puts a connection back until `until_ns`.
    pub(super) fn put_back(&mut self, connection: V, until_ns: u64) {
        self.waiting.push_back((connection, until_ns));
    }

    /// Returns when the first connection stops waiting.
    pub(super) fn until_ns(&self) -> Option<u64> {
        self.waiting.iter().map(|(_, until_ns)| *until_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, address and number of a connection.
    type Somebody = (&'static str, u8, usize);

    impl PendingConnection for Somebody {
        fn host(&self) -> &str {
            self.0
        }

        fn origin(&self) -> IpAddr {
            [10, 0, 0, self.1].into()
        }
    }

    const NAMES: [&str; 5] = ["nqn.a", "nqn.b", "nqn.c", "nqn.d", "nqn.e"];

    #[test]
    fn another_address_under_the_same_name_finds_room() {
        let mut pending = PendingQueue::new();
        for number in 0..OF_ONE_HOST_MAX {
            assert_eq!(pending.put(("nqn.a", 1, number), 0), None);
        }
        assert_eq!(pending.put(("nqn.a", 1, 10), 0), Some(("nqn.a", 1, 10)));
        assert_eq!(pending.put(("nqn.a", 2, 11), 0), Some(("nqn.a", 1, 0)));
        assert_eq!(pending.put(("nqn.b", 1, 12), 0), None, "the name of another");
        assert_eq!(pending.put(("nqn.a", 2, 13), 0), Some(("nqn.a", 1, 1)));
        // Two and two: neither address has more than the other.
        assert_eq!(pending.put(("nqn.a", 2, 14), 0), Some(("nqn.a", 2, 14)));
        assert_eq!(pending.put(("nqn.a", 3, 15), 0), Some(("nqn.a", 1, 2)));
    }

    #[test]
    fn an_address_that_crowds_it_keeps_nobody_out() {
        let mut pending = PendingQueue::new();
        for number in 0..WAITING_MAX {
            let of = if number == 0 { 2 } else { 1 };
            assert_eq!(pending.put((NAMES[number / OF_ONE_HOST_MAX], of, number), 0), None);
        }
        assert_eq!(pending.put(("nqn.e", 1, 20), 0), Some(("nqn.e", 1, 20)));
        assert_eq!(pending.put(("nqn.e", 3, 21), 0), Some(("nqn.a", 1, 1)));
        assert_eq!(pending.put(("nqn.e", 2, 22), 0), Some(("nqn.a", 1, 2)));
        assert_eq!(pending.len(), WAITING_MAX);
        assert_eq!(pending.pop(), Some((("nqn.a", 2, 0), WAIT_NS)), "the oldest is first");
    }

    #[test]
    fn each_connection_waits_two_seconds() {
        let mut pending = PendingQueue::new();
        assert_eq!((pending.is_empty(), pending.len(), pending.until_ns()), (true, 0, None));
        pending.put(("nqn.a", 1, 0), 500);
        pending.put(("nqn.b", 1, 1), 100);
        assert_eq!((pending.len(), pending.is_empty()), (2, false));
        assert_eq!(pending.until_ns(), Some(2_000_000_100));
        // Another attempt does not extend the time.
        let (first, until_ns) = pending.pop().expect("two wait");
        assert_eq!((first.2, until_ns), (0, 2_000_000_500));
        pending.put_back(first, until_ns);
        assert_eq!(pending.pop(), Some((("nqn.b", 1, 1), 2_000_000_100)));
        assert_eq!(pending.pop(), Some((("nqn.a", 1, 0), 2_000_000_500)));
        pending.put(("nqn.a", 1, 2), u64::MAX);
        assert_eq!(pending.until_ns(), Some(u64::MAX));
    }
}
