//! Connections that share a thread and a limit, by where they come from: no address takes the place or the time of
//! another.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};

/// So many at a time, the oldest first.
#[derive(Debug)]
pub(super) struct Crowd<T> {
    members: Vec<(IpAddr, T)>,
    /// Places, and those that one address may have of them.
    most: usize,
    of_one: usize,
    /// Whose turn was the last.
    last: Option<IpAddr>,
}

impl<T> Crowd<T> {
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

    /// Adds one, for which the oldest of its address goes if that has all it may have. If all places are taken the oldest
    /// goes of the address that has the most.
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

    /// Gives those that are wanted a turn, until one of them says that it was the last: one after the other of each
    /// address, and the addresses in turns, beginning behind that which had the last turn. A member that is returned
    /// stays; so do all that have no turn.
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

/// The address behind the last one.
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

    fn crowd(most: usize, of_one: usize, members: &[(u8, u32)]) -> Crowd<u32> {
        let mut crowd = Crowd::new(most, of_one);
        members.iter().for_each(|(of, member)| crowd.add(address(*of), *member));
        crowd
    }

    #[test]
    fn an_address_that_floods_puts_out_its_own() {
        let mut crowd = crowd(6, 4, &[(1, 0), (2, 1)]);
        (10..1000).for_each(|member| crowd.add(address(9), member));
        assert_eq!(crowd.iter().copied().collect::<Vec<_>>(), [0, 1, 996, 997, 998, 999]);
        // All places are taken: the address with the most gives way to others.
        crowd.add(address(3), 2);
        crowd.add(address(4), 3);
        assert_eq!(crowd.iter().copied().collect::<Vec<_>>(), [0, 1, 998, 999, 2, 3]);
    }

    #[test]
    fn addresses_have_turns_whoever_is_first_and_has_the_most() {
        let mut crowd = crowd(16, 16, &[(2, 0), (2, 1), (2, 2), (1, 3), (3, 4), (3, 5), (2, 6)]);
        let mut order = Vec::new();
        // The first of all has no turn, and one stays.
        crowd.take_turns(
            |index, _| index != 0,
            |of, member| {
                assert_eq!(of, address([2, 2, 2, 1, 3, 3, 2][member as usize]));
                order.push(member);
                (member == 4).then_some(member)
            },
            || false,
        );
        assert_eq!(order, [3, 1, 4, 2, 5, 6]);
        assert_eq!(crowd.iter().copied().collect::<Vec<_>>(), [0, 4]);
    }

    /// Those that had no turn are the first of the next.
    #[test]
    fn a_turn_that_is_cut_short_goes_on_with_the_others() {
        let mut crowd = crowd(16, 16, &[(1, 0), (1, 1), (2, 2), (3, 3)]);
        let mut order = Vec::new();
        for _ in 0..4 {
            crowd.take_turns(
                |_, _| true,
                |_, member| {
                    order.push(member);
                    Some(member)
                },
                || true,
            );
        }
        assert_eq!(order, [0, 2, 3, 0]);
        assert_eq!(crowd.len(), 4);
        crowd.retain(|member| *member < 2);
        assert_eq!(crowd.len(), 2);
    }
}
