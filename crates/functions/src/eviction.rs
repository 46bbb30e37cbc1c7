//! Choice of the entry that leaves a cache, by S3-FIFO ("FIFO queues are all you need for cache eviction", SOSP 2023).
//!
//! A small queue has new entries, and a main queue has entries that were used again. The names of entries that left the
//! small queue are kept: an entry that comes back is put into the main queue. One scan passes through the small queue alone.

use std::collections::{HashSet, VecDeque};

/// Highest count of uses of an entry.
const USES_MAX: u8 = 3;

/// Part of the entries in the small queue.
const SMALL_PART: usize = 10;

/// Most entries that are looked at for one that leaves.
const LOOKS_MAX: usize = 64;

/// Counts a use of an entry.
#[inline]
pub(crate) fn count_use(uses: &mut u8) {
    *uses = (*uses + 1).min(USES_MAX);
}

/// Entry at the head of a queue.
#[derive(Debug)]
pub(crate) enum Head<'e> {
    /// Nothing: the entry was removed.
    Empty,
    /// Entry that cannot leave now.
    Held,
    /// Entry that may leave, with its name.
    Named { name: u64, uses: &'e mut u8 },
}

/// Entries by their numbers.
pub(crate) trait Entries {
    /// Returns the entry with this number.
    fn head(&mut self, number: u32) -> Head<'_>;
}

/// Queues of the entries' numbers.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    entries_max: usize,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    left: VecDeque<u64>,
    has_left: HashSet<u64>,
}

impl Queues {
    /// Creates queues with room for so many entries.
    pub(crate) fn new(entries_max: usize) -> Self {
        Self {
            entries_max,
            small: VecDeque::with_capacity(entries_max),
            main: VecDeque::with_capacity(entries_max),
            left: VecDeque::with_capacity(entries_max + 1),
            has_left: HashSet::with_capacity(entries_max + 1),
        }
    }

    /// Adds an entry.
    pub(crate) fn add(&mut self, name: u64, number: u32) {
        match self.has_left.remove(&name) {
            true => self.main.push_back(number),
            false => self.small.push_back(number),
        }
    }

    /// Adds an entry that was used in an earlier run.
    pub(crate) fn add_used(&mut self, number: u32) {
        self.main.push_back(number);
    }

    /// Takes the entry that leaves. Returns none if there is no entry, or after `LOOKS_MAX` entries that stay. With `forces`,
    /// the last of these leaves, however often it was used.
    pub(crate) fn take(&mut self, entries: &mut impl Entries, forces: bool) -> Option<u32> {
        for look in 1..=LOOKS_MAX {
            let is_small = self.small.len() * SMALL_PART > self.entries_max || self.main.is_empty();
            let number = if is_small { self.small.pop_front() } else { self.main.pop_front() }?;
            let stays = |uses: u8| uses > u8::from(is_small) && !(forces && look == LOOKS_MAX);
            match entries.head(number) {
                Head::Empty => return Some(number),
                Head::Held => {}
                Head::Named { uses, .. } if stays(*uses) => *uses = if is_small { 0 } else { *uses - 1 },
                Head::Named { name, .. } => {
                    if is_small {
                        self.note_left(name);
                    }
                    return Some(number);
                }
            }
            self.main.push_back(number);
        }
        None
    }

    /// Notes that an entry has left the small queue.
    fn note_left(&mut self, name: u64) {
        if self.has_left.insert(name) {
            self.left.push_back(name);
        }
        if self.left.len() > self.entries_max
            && let Some(oldest) = self.left.pop_front()
        {
            self.has_left.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries with their uses; none for one that is held, and [`EMPTY`] for one that was removed.
    impl Entries for Vec<Option<u8>> {
        fn head(&mut self, number: u32) -> Head<'_> {
            match &mut self[number as usize] {
                Some(EMPTY) => Head::Empty,
                Some(uses) => Head::Named { name: number.into(), uses },
                None => Head::Held,
            }
        }
    }

    const EMPTY: u8 = u8::MAX;

    #[test]
    fn an_entry_leaves_unless_it_is_held_or_used() {
        let mut entries = vec![Some(1), Some(2), None, Some(0), Some(EMPTY)];
        let mut queues = Queues::new(5);
        (0..5).for_each(|number| queues.add(number.into(), number));
        assert_eq!(queues.take(&mut entries, false), Some(0), "one use is the one that brought it");
        // The second and third go to the main queue, the second without uses.
        assert_eq!(queues.take(&mut entries, false), Some(3));
        assert_eq!(queues.take(&mut entries, false), Some(4), "it was removed");
        assert_eq!(entries[1], Some(0));
        assert_eq!(queues.take(&mut entries, false), Some(1));
        assert_eq!(queues.take(&mut entries, false), None, "the rest is held");
    }

    #[test]
    fn an_entry_that_comes_back_is_in_the_main_queue() {
        let mut entries = vec![Some(0); 21];
        let mut queues = Queues::new(20);
        (0..20).for_each(|number| queues.add(number.into(), number));
        assert_eq!(queues.take(&mut entries, false), Some(0));
        queues.add(0, 0);
        queues.add(20, 20);
        // The small queue leaves down to a tenth of all entries.
        let left: Vec<_> = std::iter::from_fn(|| queues.take(&mut entries, false)).collect();
        let last = left.iter().position(|number| *number == 0).expect("it left, too");
        assert_eq!((left.len(), last), (21, 18));
    }

    #[test]
    fn a_main_queue_of_used_entries_is_passed_round_and_the_last_look_forces() {
        let mut entries = vec![Some(0); 100];
        let mut queues = Queues::new(100);
        for number in 0..100 {
            (0..5).for_each(|_| count_use(entries[number as usize].as_mut().expect("it is there")));
            queues.add_used(number);
        }
        assert_eq!(entries[0], Some(USES_MAX));
        assert_eq!(queues.take(&mut entries, false), None);
        assert_eq!(entries[LOOKS_MAX - 1..=LOOKS_MAX], [Some(USES_MAX - 1), Some(USES_MAX)]);
        let mut queues = Queues::new(100);
        (0..100).for_each(|number| queues.add_used(number));
        assert_eq!(queues.take(&mut entries, true), Some(LOOKS_MAX as u32 - 1));
    }

    #[test]
    fn names_of_as_many_entries_as_fit_are_kept() {
        let mut entries = vec![Some(0); 4];
        let mut queues = Queues::new(2);
        for number in 0..3 {
            queues.add(number.into(), number);
            assert_eq!(queues.take(&mut entries, false), Some(number));
        }
        assert_eq!((queues.left.len(), queues.has_left.len()), (2, 2));
        // The first name is the one that is no longer kept.
        [0, 1].into_iter().for_each(|number| queues.add(number.into(), number));
        assert_eq!((queues.small.len(), queues.main.len()), (1, 1));
    }
}
