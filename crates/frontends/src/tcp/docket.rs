//! What waits to be looked at: one after the other of each address, and the addresses in turns, so that nobody
//! waits for what another sends in masses.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Weak;

/// Cases that wait.
const CASES_MAX: usize = 1024;

/// Of one address: a host may prove all of its queues at once.
const OF_ONE_ADDRESS_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Docket<T> {
    /// By address, the oldest first. None is empty.
    queues: BTreeMap<IpAddr, VecDeque<Entry<T>>>,
    /// How many wait.
    count: usize,
    /// Whose turn it was.
    last: Option<IpAddr>,
}

#[derive(Debug)]
struct Entry<T> {
    /// Nobody wants to know any more when this is gone.
    life: Weak<()>,
    case: T,
}

impl<T> Entry<T> {
    fn is_dead(&self) -> bool {
        self.life.strong_count() == 0
    }
}

impl<T> Docket<T> {
    pub(super) fn new() -> Self {
        Self { queues: BTreeMap::new(), count: 0, last: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn count_of(&self, origin: IpAddr) -> usize {
        self.queues.get(&origin).map_or(0, VecDeque::len)
    }

    /// Adds a case. Returns the one that there is no room for: this, or the last of the address with the most.
    pub(super) fn put(&mut self, origin: IpAddr, life: Weak<()>, case: T) -> Option<T> {
        if self.count == CASES_MAX || self.count_of(origin) == OF_ONE_ADDRESS_MAX {
            self.forget_the_dead();
        }
        if self.count_of(origin) == OF_ONE_ADDRESS_MAX {
            return Some(case);
        }
        let mut left_out = None;
        if self.count == CASES_MAX {
            let most = self.queues.iter().max_by_key(|(_, queue)| queue.len()).map(|(origin, _)| *origin)?;
            if self.count_of(origin) >= self.count_of(most) {
                return Some(case);
            }
            left_out = self.take(most, VecDeque::pop_back);
        }
        self.queues.entry(origin).or_default().push_back(Entry { life, case });
        self.count += 1;
        left_out.map(|entry| entry.case)
    }

    /// The case whose turn it is.
    pub(super) fn next(&mut self) -> Option<T> {
        loop {
            let behind = (self.last.map_or(Unbounded, Excluded), Unbounded);
            let next = self.queues.range(behind).next().or_else(|| self.queues.iter().next());
            let origin = *next?.0;
            while let Some(entry) = self.take(origin, VecDeque::pop_front) {
                if !entry.is_dead() {
                    self.last = Some(origin);
                    return Some(entry.case);
                }
            }
        }
    }

    fn take(
        &mut self,
        origin: IpAddr,
        pop: impl Fn(&mut VecDeque<Entry<T>>) -> Option<Entry<T>>,
    ) -> Option<Entry<T>> {
        let queue = self.queues.get_mut(&origin)?;
        let entry = pop(queue);
        self.count -= usize::from(entry.is_some());
        if queue.is_empty() {
            self.queues.remove(&origin);
        }
        entry
    }

    #[cold]
    fn forget_the_dead(&mut self) {
        self.queues.values_mut().for_each(|queue| queue.retain(|entry| !entry.is_dead()));
        self.queues.retain(|_, queue| !queue.is_empty());
        self.count = self.queues.values().map(VecDeque::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn address(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    fn drain(docket: &mut Docket<(u8, usize)>) -> Vec<(u8, usize)> {
        std::iter::from_fn(|| docket.next()).collect()
    }

    #[test]
    fn addresses_take_turns() {
        let (mut docket, life) = (Docket::new(), Arc::new(()));
        for (of, count) in [(2, 4), (1, 2), (3, 1)] {
            for number in 0..count {
                assert_eq!(docket.put(address(of), Arc::downgrade(&life), (of, number)), None);
            }
        }
        assert_eq!(drain(&mut docket), [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (2, 2), (2, 3)]);
        assert!(docket.is_empty());
    }

    #[test]
    fn what_nobody_waits_for_is_not_looked_at() {
        let (mut docket, life, mut gone) = (Docket::new(), Arc::new(()), Arc::new(()));
        for number in 0..OF_ONE_ADDRESS_MAX {
            assert_eq!(docket.put(address(1), Arc::downgrade(&gone), (1, number)), None);
        }
        assert_eq!(docket.put(address(1), Arc::downgrade(&life), (1, 999)), Some((1, 999)));
        gone = Arc::new(());
        // There is room again for who is still there.
        assert_eq!(docket.put(address(1), Arc::downgrade(&gone), (1, 1000)), None);
        assert_eq!(docket.put(address(1), Arc::downgrade(&life), (1, 1001)), None);
        assert_eq!(docket.put(address(2), Arc::downgrade(&gone), (2, 1002)), None);
        drop(gone);
        assert_eq!(drain(&mut docket), [(1, 1001)]);
        assert!(docket.is_empty());
    }

    #[test]
    fn nobody_fills_it_alone() {
        let (mut docket, life) = (Docket::new(), Arc::new(()));
        let life = || Arc::downgrade(&life);
        for number in 0..CASES_MAX {
            let of = 1 + (number / OF_ONE_ADDRESS_MAX) as u8;
            assert_eq!(docket.put(address(of), life(), (of, number)), None);
        }
        // It is full; those with the most give way, and not for one another.
        assert_eq!(docket.put(address(1), life(), (1, 5000)), Some((1, 5000)));
        assert_eq!(docket.put(address(9), life(), (9, 5001)), Some((4, CASES_MAX - 1)));
        assert_eq!(docket.put(address(4), life(), (4, 5002)), Some((3, 3 * OF_ONE_ADDRESS_MAX - 1)));
        assert!(drain(&mut docket)[..5].contains(&(9, 5001)));
    }
}
