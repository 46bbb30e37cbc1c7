//! Queue of jobs that is fair among addresses. They take turns, so that no address waits for the mass of jobs
//! of another.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Weak;

/// Jobs that wait.
const JOBS_MAX: usize = 1024;

/// Jobs of one address: a host may authenticate all of its queues at once.
const OF_ONE_ADDRESS_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// Jobs by address, the oldest first. No queue is empty.
    queues: BTreeMap<IpAddr, VecDeque<Entry<T>>>,
    /// Number of jobs that wait.
    count: usize,
    /// Address that had the last turn.
    last: Option<IpAddr>,
}

#[derive(Debug)]
struct Entry<T> {
    /// Liveness token of the connection; the job is dropped once it is dead.
    liveness: Weak<()>,
    job: T,
}

impl<T> Entry<T> {
    fn is_dead(&self) -> bool {
        self.liveness.strong_count() == 0
    }
}

impl<T> FairQueue<T> {
    pub(super) fn new() -> Self {
        Self { queues: BTreeMap::new(), count: 0, last: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn count_of(&self, origin: IpAddr) -> usize {
        self.queues.get(&origin).map_or(0, VecDeque::len)
    }

    /// Adds a job. Returns a job that has no place: this one, or the last of the address with the most.
    pub(super) fn put(&mut self, origin: IpAddr, liveness: Weak<()>, job: T) -> Option<T> {
        if self.count == JOBS_MAX || self.count_of(origin) == OF_ONE_ADDRESS_MAX {
            self.remove_dead();
        }
        if self.count_of(origin) == OF_ONE_ADDRESS_MAX {
            return Some(job);
        }
        let mut left_out = None;
        if self.count == JOBS_MAX {
            let most = self.queues.iter().max_by_key(|(_, queue)| queue.len()).map(|(origin, _)| *origin)?;
            if self.count_of(origin) >= self.count_of(most) {
                return Some(job);
            }
            left_out = self.take(most, VecDeque::pop_back);
        }
        self.queues.entry(origin).or_default().push_back(Entry { liveness, job });
        self.count += 1;
        left_out.map(|entry| entry.job)
    }

    /// Returns the next job, by turns of the addresses.
    pub(super) fn next(&mut self) -> Option<T> {
        loop {
            let behind = (self.last.map_or(Unbounded, Excluded), Unbounded);
            let next = self.queues.range(behind).next().or_else(|| self.queues.iter().next());
            let origin = *next?.0;
            while let Some(entry) = self.take(origin, VecDeque::pop_front) {
                if !entry.is_dead() {
                    self.last = Some(origin);
                    return Some(entry.job);
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
    fn remove_dead(&mut self) {
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

    fn drain(fair_queue: &mut FairQueue<(u8, usize)>) -> Vec<(u8, usize)> {
        std::iter::from_fn(|| fair_queue.next()).collect()
    }

    #[test]
    fn addresses_take_turns() {
        let (mut fair_queue, liveness) = (FairQueue::new(), Arc::new(()));
        for (of, count) in [(2, 4), (1, 2), (3, 1)] {
            for number in 0..count {
                assert_eq!(fair_queue.put(address(of), Arc::downgrade(&liveness), (of, number)), None);
            }
        }
        assert_eq!(drain(&mut fair_queue), [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (2, 2), (2, 3)]);
        assert!(fair_queue.is_empty());
    }

    #[test]
    fn what_nobody_waits_for_is_not_looked_at() {
        let (mut fair_queue, liveness, mut gone) = (FairQueue::new(), Arc::new(()), Arc::new(()));
        for number in 0..OF_ONE_ADDRESS_MAX {
            assert_eq!(fair_queue.put(address(1), Arc::downgrade(&gone), (1, number)), None);
        }
        assert_eq!(fair_queue.put(address(1), Arc::downgrade(&liveness), (1, 999)), Some((1, 999)));
        gone = Arc::new(());
        // Places of dead connections are free again.
        assert_eq!(fair_queue.put(address(1), Arc::downgrade(&gone), (1, 1000)), None);
        assert_eq!(fair_queue.put(address(1), Arc::downgrade(&liveness), (1, 1001)), None);
        assert_eq!(fair_queue.put(address(2), Arc::downgrade(&gone), (2, 1002)), None);
        drop(gone);
        assert_eq!(drain(&mut fair_queue), [(1, 1001)]);
        assert!(fair_queue.is_empty());
    }

    #[test]
    fn nobody_fills_it_alone() {
        let (mut fair_queue, liveness) = (FairQueue::new(), Arc::new(()));
        let liveness = || Arc::downgrade(&liveness);
        for number in 0..JOBS_MAX {
            let of = 1 + (number / OF_ONE_ADDRESS_MAX) as u8;
            assert_eq!(fair_queue.put(address(of), liveness(), (of, number)), None);
        }
        // The queue is full. Addresses with the most jobs give way, but not to one another.
        assert_eq!(fair_queue.put(address(1), liveness(), (1, 5000)), Some((1, 5000)));
        assert_eq!(fair_queue.put(address(9), liveness(), (9, 5001)), Some((4, JOBS_MAX - 1)));
        assert_eq!(fair_queue.put(address(4), liveness(), (4, 5002)), Some((3, 3 * OF_ONE_ADDRESS_MAX - 1)));
        assert!(drain(&mut fair_queue)[..5].contains(&(9, 5001)));
    }
}
