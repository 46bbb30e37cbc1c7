//! Connections that share a thread and a limit, grouped by address. No address takes the place or the time of
//! another.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};

/// Limited set of connections, the oldest first.
#[derive(Debug)]
pub(super) struct ConnectionSet<T> {
    members: Vec<(IpAddr, T)>,
    /// Limits: of all members, and of the members of one address.
    most: usize,
    of_one: usize,
    /// Address that had the last turn.
    last: Option<IpAddr>,
}

impl<T> ConnectionSet<T> {
    pub(super) fn new(most: usize, of_one: usize) -> Self {
        Self { members: Vec::new(), most, of_one, last: None }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.members.iter().map(|(_, member)| member)
    }

    fn count_of(&self, origin: IpAddr) -> usize {
        self.members.iter().filter(|(of, _)| *of == origin).count()
    }

    /// Adds a member. If its address has reached its limit, the oldest member of that address is dropped.
    ///
    /// If the set is full, the oldest member of the address with the most members is dropped.
    pub(super) fn add(&mut self, origin: IpAddr, member: T) {
        let from = if self.count_of(origin) >= self.of_one {
            Some(origin)
        } else if self.members.len() >= self.most {
            self.members.iter().map(|(of, _)| *of).max_by_key(|of| self.count_of(*of))
        } else {
            None
        };
        if let Some(oldest) = self.members.iter().position(|(of, _)| Some(*of) == from) {
            self.members.remove(oldest);
        }
        self.members.push((origin, member));
    }

    /// Runs `turn` for the members that `is_wanted` selects, until `is_over` returns true.
    ///
    /// Addresses take turns, beginning after the address that had the last turn; each turn takes the oldest
    /// member. A member that `turn` returns stays in the set, as does a member without a turn.
    pub(super) fn take_turns(
        &mut self,
        is_wanted: impl Fn(usize, &T) -> bool,
        mut turn: impl FnMut(IpAddr, T) -> Option<T>,
        mut is_over: impl FnMut() -> bool,
    ) {
        let mut queues: BTreeMap<IpAddr, VecDeque<usize>> = BTreeMap::new();
        for (index, (origin, member)) in self.members.iter().enumerate() {
            if is_wanted(index, member) {
                queues.entry(*origin).or_default().push_back(index);
            }
        }
        if queues.is_empty() {
            return;
        }
        let mut members: Vec<_> = std::mem::take(&mut self.members).into_iter().map(Some).collect();
        while let Some(origin) = next(&queues, self.last) {
            self.last = Some(origin);
            let Some(queue) = queues.get_mut(&origin) else { break };
            if let Some(index) = queue.pop_front()
                && let Some((origin, member)) = members[index].take()
            {
                members[index] = turn(origin, member).map(|member| (origin, member));
            }
            if queue.is_empty() {
                queues.remove(&origin);
            }
            if is_over() {
                break;
            }
        }
        self.members.extend(members.into_iter().flatten());
    }

    pub(super) fn retain(&mut self, mut stays: impl FnMut(&T) -> bool) {
        self.members.retain(|(_, member)| stays(member));
    }
}

/// Returns the address after the last one, cyclically.
fn next<T>(queues: &BTreeMap<IpAddr, T>, last: Option<IpAddr>) -> Option<IpAddr> {
    let behind = (last.map_or(Unbounded, Excluded), Unbounded);
    queues.range(behind).next().or_else(|| queues.iter().next()).map(|(origin, _)| *origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    fn set(most: usize, of_one: usize, members: &[(u8, u32)]) -> ConnectionSet<u32> {
        let mut set = ConnectionSet::new(most, of_one);
        members.iter().for_each(|(of, member)| set.add(address(*of), *member));
        set
    }

    #[test]
    fn an_address_that_floods_puts_out_its_own() {
        let mut set = set(6, 4, &[(1, 0), (2, 1)]);
        (10..1000).for_each(|member| set.add(address(9), member));
        assert_eq!(set.iter().copied().collect::<Vec<_>>(), [0, 1, 996, 997, 998, 999]);
        // The set is full: the address with the most members gives way to others.
        set.add(address(3), 2);
        set.add(address(4), 3);
        assert_eq!(set.iter().copied().collect::<Vec<_>>(), [0, 1, 998, 999, 2, 3]);
    }

    #[test]
    fn addresses_have_turns_whoever_is_first_and_has_the_most() {
        let mut set = set(16, 16, &[(2, 0), (2, 1), (2, 2), (1, 3), (3, 4), (3, 5), (2, 6)]);
        let mut order = Vec::new();
        // The first member has no turn, and one stays.
        set.take_turns(
            |index, _| index != 0,
            |of, member| {
                assert_eq!(of, address([2, 2, 2, 1, 3, 3, 2][member as usize]));
                order.push(member);
                (member == 4).then_some(member)
            },
            || false,
        );
        assert_eq!(order, [3, 1, 4, 2, 5, 6]);
        assert_eq!(set.iter().copied().collect::<Vec<_>>(), [0, 4]);
    }

    /// Checks that members without a turn are the first in the next call.
    #[test]
    fn a_turn_that_is_cut_short_goes_on_with_the_others() {
        let mut set = set(16, 16, &[(1, 0), (1, 1), (2, 2), (3, 3)]);
        let mut order = Vec::new();
        for _ in 0..4 {
            set.take_turns(
                |_, _| true,
                |_, member| {
                    order.push(member);
                    Some(member)
                },
                || true,
            );
        }
        assert_eq!(order, [0, 2, 3, 0]);
        assert_eq!(set.len(), 4);
        set.retain(|member| *member < 2);
        assert_eq!(set.len(), 2);
    }
}
