//! Device addresses: each queue pair has a window of its own.
//!
//! Whatever a command of queue pair *n* names lies in window *n*: the queues themselves, their lists and
//! buffers in the front part, the host's memory behind. So what a command can reach can be read off its
//! addresses, and no mistake in one target's book-keeping is an address of another's.

use std::ops::Range;

/// Bytes of a window as a power of two: a terabyte.
const SHIFT: u32 = 40;

/// Where memory of hosts begins in a window; before it are our own queues, lists and buffers.
const LENT_FROM: u64 = 1 << 36;

/// Bytes between two loans, so that a device that runs over the end of one is found out.
const GAP: u64 = 1 << 12;

/// The window of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window(u16);

impl Window {
    /// Of the queue pair with this identifier, which is not zero: the first window is the admin queue's.
    pub(super) fn of_queue(id: u16) -> Self {
        Self(id)
    }

    pub(super) fn range(self) -> Range<u64> {
        let first = u64::from(self.0) << SHIFT;
        first..first + (1 << SHIFT)
    }

    /// Where our own memory goes.
    pub(super) fn own(self) -> u64 {
        self.range().start
    }

    /// Room for `bytes` of a host's memory beside what is `taken` already; none if there is no such hole.
    pub(super) fn place(self, bytes: u64, taken: impl Iterator<Item = Range<u64>> + Clone) -> Option<u64> {
        let first = self.range().start + LENT_FROM;
        let behind = taken.clone().map(|range| range.end + GAP);
        let mut candidates: Vec<u64> = std::iter::once(first).chain(behind).collect();
        candidates.sort_unstable();
        candidates.into_iter().filter(|&start| start >= first).find(|&start| {
            let Some(end) = start.checked_add(bytes) else { return false };
            let free = |range: &Range<u64>| range.end + GAP <= start || end + GAP <= range.start;
            end <= self.range().end && taken.clone().all(|range| free(&range))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Loans come and go; no two ever meet, and none leaves its window.
        #[test]
        fn loans_keep_apart(steps in prop::collection::vec((1u64..1 << 38, any::<bool>()), 1..60), queue in 1u16..128) {
            let window = Window::of_queue(queue);
            let mut taken: Vec<Range<u64>> = Vec::new();
            for (bytes, leaves) in steps {
                let bytes = bytes.next_multiple_of(4096);
                if leaves && !taken.is_empty() {
                    taken.swap_remove((bytes % taken.len() as u64) as usize);
                }
                if let Some(start) = window.place(bytes, taken.iter().cloned()) {
                    let new = start..start + bytes;
                    prop_assert!(window.range().start + LENT_FROM <= new.start && new.end <= window.range().end);
                    prop_assert!(taken.iter().all(|held| held.end < new.start || new.end < held.start));
                    taken.push(new);
                }
            }
        }
    }

    /// Whatever is said to be taken, our own part is nobody's.
    #[test]
    fn nothing_is_lent_in_our_own_part() {
        let window = Window::of_queue(1);
        let odd = window.own()..window.own();
        let place = window.place(4096, std::iter::once(odd)).expect("there is room");
        assert_eq!(place, window.range().start + LENT_FROM);
    }

    #[test]
    fn windows_of_two_queues_do_not_meet() {
        let [a, b] = [1, 2].map(|id| Window::of_queue(id).range());
        assert!(a.start > 0 && a.end <= b.start);
        let whole = (1 << SHIFT) - LENT_FROM;
        assert!(Window::of_queue(1).place(whole, std::iter::empty()).is_some());
        assert_eq!(Window::of_queue(1).place(whole + 1, std::iter::empty()), None);
    }
}
