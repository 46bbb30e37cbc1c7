//! Layout of the device addresses (IOVAs): each queue pair has a window of its own.
//!
//! All addresses in a command of queue pair *n* lie in window *n*. The queues, their lists and buffers are in
//! the front part, the host's memory behind. So addresses show what a command can reach, and a mistake in one
//! target's book-keeping never hits another target's addresses.

use std::ops::Range;

/// Bytes of a window as a power of two, if there are enough addresses: a terabyte.
const SHIFT: u32 = 40;

/// Number of such windows beside that of the admin queue: as many as 47 bits of address have.
const WINDOWS: u32 = 126;

/// Number of windows if there are fewer addresses; the first is that of the admin queue.
const FEW: u32 = 8;

/// Bytes between two mappings. An access of the device behind the end of a mapping fails.
const GAP: u64 = 1 << 12;

/// Division of a device's addresses into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IovaLayout {
    shift: u32,
    windows: u32,
}

impl IovaLayout {
    /// Divides all addresses up to `last`.
    pub(super) fn of(last: u64) -> Self {
        match last >> SHIFT >= u64::from(WINDOWS) {
            true => Self { shift: SHIFT, windows: WINDOWS },
            false => {
                Self { shift: (last.saturating_add(1) / u64::from(FEW)).max(1).ilog2(), windows: FEW - 1 }
            }
        }
    }

    /// Returns the number of queue pairs that have a window.
    pub(super) fn windows(self) -> u32 {
        self.windows
    }

    /// Returns the window of the queue pair with this identifier, which is not zero.
    pub(super) fn window(self, id: u16) -> Window {
        Window { id, shift: self.shift }
    }
}

/// The window of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    id: u16,
    shift: u32,
}

impl Window {
    pub(super) fn range(self) -> Range<u64> {
        let first = u64::from(self.id) << self.shift;
        first..first + (1 << self.shift)
    }

    /// Returns the first address of the target's own memory.
    pub(super) fn own(self) -> u64 {
        self.range().start
    }

    /// Returns the first address of host memory. The target's own queues, lists and buffers are before it.
    fn mapped_from(self) -> u64 {
        self.own() + (1 << self.shift) / 16
    }

    /// Returns an address for `bytes` of a host's memory beside the `taken` ranges; none if no gap is large
    /// enough.
    pub(super) fn place(self, bytes: u64, taken: impl Iterator<Item = Range<u64>> + Clone) -> Option<u64> {
        let first = self.mapped_from();
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
        /// Maps and unmaps memory: no two mappings meet, and none leaves its window.
        #[test]
        fn loans_keep_apart(
            steps in prop::collection::vec((1u64..1 << 38, any::<bool>()), 1..60),
            queue in 1u16..128,
            bits in 36u32..64,
        ) {
            let window = IovaLayout::of((1 << bits) - 1).window(queue);
            let mut taken: Vec<Range<u64>> = Vec::new();
            for (bytes, leaves) in steps {
                let bytes = bytes.next_multiple_of(4096);
                if leaves && !taken.is_empty() {
                    taken.swap_remove((bytes % taken.len() as u64) as usize);
                }
                if let Some(start) = window.place(bytes, taken.iter().cloned()) {
                    let new = start..start + bytes;
                    prop_assert!(window.mapped_from() <= new.start && new.end <= window.range().end);
                    prop_assert!(taken.iter().all(|held| held.end < new.start || new.end < held.start));
                    taken.push(new);
                }
            }
        }
    }

    /// Checks that no host memory is placed in the target's own part, even if that part is listed as taken.
    #[test]
    fn nothing_is_lent_in_our_own_part() {
        let window = IovaLayout::of(u64::MAX).window(1);
        let odd = window.own()..window.own();
        let place = window.place(4096, std::iter::once(odd)).expect("there is room");
        assert_eq!(place, (1 << SHIFT) + (1 << 36));
    }

    #[test]
    fn windows_of_two_queues_do_not_meet() {
        for last in [u64::MAX, (1 << 47) - 1, (1 << 39) - 1, 3 << 38, 1 << 36] {
            let iova_layout = IovaLayout::of(last);
            let [a, b] = [1, 2].map(|id| iova_layout.window(id).range());
            assert!(a.start > 0 && a.end <= b.start);
            let end = iova_layout.window(iova_layout.windows() as u16).range().end;
            assert!(end - 1 <= last, "{end:#x} of {last:#x}");
        }
        assert_eq!(IovaLayout::of((1 << 47) - 1).windows(), 126);
        assert_eq!(IovaLayout::of((1 << 39) - 1), IovaLayout { shift: 36, windows: 7 });
        let window = IovaLayout::of(u64::MAX).window(1);
        let whole = (1 << SHIFT) - (1 << 36);
        assert!(window.place(whole, std::iter::empty()).is_some());
        assert_eq!(window.place(whole + 1, std::iter::empty()), None);
    }
}
