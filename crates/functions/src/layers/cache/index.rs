//! Index of the pages of a cache, with S3-FIFO: a small queue for new pages, a main queue for pages that were read again,
//! and the names of pages that left the small queue. One scan passes through the small queue alone.

use std::collections::{HashMap, HashSet, VecDeque};

/// Highest count of reads of a page.
const READS_MAX: u8 = 3;

/// Part of the pages in the small queue.
const SMALL_PART: usize = 10;

/// Most pages that are looked at for one that goes.
const LOOKS_MAX: usize = 64;

/// Number of a page's place in memory.
pub(super) type Place = u32;

/// No place: the page was overwritten.
const NONE: Place = Place::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    page: u64,
    place: Place,
    reads: u8,
    /// Clearing at which the entry was filled; older ones are invalid.
    round: u64,
}

/// Pages of a cache.
#[derive(Debug)]
pub(super) struct Index {
    /// Entries by page. A page that was overwritten keeps its entry.
    by_page: HashMap<u64, u32>,
    entries: Vec<Entry>,
    free_entries: Vec<u32>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    left: VecDeque<u64>,
    has_left: HashSet<u64>,
    /// Places in memory that no page has.
    free: Vec<Place>,
    pages: usize,
    round: u64,
}

impl Index {
    /// Creates an index of this many pages, with further places for pages that are being moved.
    pub(super) fn new(pages: usize, moving: usize) -> Self {
        Self {
            by_page: HashMap::with_capacity(pages),
            entries: Vec::with_capacity(pages),
            free_entries: Vec::with_capacity(pages),
            small: VecDeque::with_capacity(pages),
            main: VecDeque::with_capacity(pages),
            left: VecDeque::with_capacity(pages + 1),
            has_left: HashSet::with_capacity(pages + 1),
            free: (0..(pages + moving) as Place).rev().collect(),
            pages,
            round: 0,
        }
    }

    /// Returns the number of the current round: it changes when all pages are dropped.
    pub(super) fn round(&self) -> u64 {
        self.round
    }

    /// Returns the place of a page, which is read.
    pub(super) fn read(&mut self, page: u64) -> Option<Place> {
        let entry = &mut self.entries[*self.by_page.get(&page)? as usize];
        if entry.place == NONE || entry.round != self.round {
            return None;
        }
        entry.reads = (entry.reads + 1).min(READS_MAX);
        Some(entry.place)
    }

    /// Returns whether a page is there.
    pub(super) fn has(&self, page: u64) -> bool {
        let entry = self.by_page.get(&page).map(|entry| &self.entries[*entry as usize]);
        entry.is_some_and(|entry| entry.place != NONE && entry.round == self.round)
    }

    /// Drops a page.
    pub(super) fn remove(&mut self, page: u64) {
        let Some(entry) = self.by_page.get(&page) else { return };
        let entry = &mut self.entries[*entry as usize];
        if entry.place != NONE {
            self.free.push(std::mem::replace(&mut entry.place, NONE));
        }
    }

    /// Drops all pages.
    pub(super) fn clear(&mut self) {
        self.round += 1;
    }

    /// Takes a place for a page that is about to be moved.
    pub(super) fn take(&mut self) -> Option<Place> {
        self.free.pop()
    }

    /// Gives back a place without a page.
    pub(super) fn give_back(&mut self, place: Place) {
        self.free.push(place);
    }

    /// Adds a page at its place.
    pub(super) fn insert(&mut self, page: u64, place: Place) {
        let round = self.round;
        if let Some(&number) = self.by_page.get(&page) {
            let entry = &mut self.entries[number as usize];
            if entry.place != NONE {
                self.free.push(entry.place);
            }
            (entry.place, entry.round) = (place, round);
            return;
        }
        if self.by_page.len() == self.pages {
            self.evict();
        }
        let entry = Entry { page, place, reads: 0, round };
        let number = match self.free_entries.pop() {
            Some(number) => {
                self.entries[number as usize] = entry;
                number
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.by_page.insert(page, number);
        match self.has_left.remove(&page) {
            true => self.main.push_back(number),
            false => self.small.push_back(number),
        }
    }

    fn evict(&mut self) {
        for look in 0.. {
            let is_last = look + 1 >= LOOKS_MAX;
            if self.small.len() * SMALL_PART > self.pages || self.main.is_empty() {
                let Some(number) = self.small.pop_front() else { return };
                let entry = &mut self.entries[number as usize];
                if entry.reads > 1 && !is_last {
                    entry.reads = 0;
                    self.main.push_back(number);
                    continue;
                }
                let page = entry.page;
                self.note_left(page);
                return self.drop_entry(number);
            }
            let Some(number) = self.main.pop_front() else { return };
            let entry = &mut self.entries[number as usize];
            if entry.reads == 0 || is_last {
                return self.drop_entry(number);
            }
            entry.reads -= 1;
            self.main.push_back(number);
        }
    }

    /// Notes that a page has left the small queue.
    fn note_left(&mut self, page: u64) {
        if self.has_left.insert(page) {
            self.left.push_back(page);
        }
        if self.left.len() > self.pages
            && let Some(oldest) = self.left.pop_front()
        {
            self.has_left.remove(&oldest);
        }
    }

    fn drop_entry(&mut self, number: u32) {
        let Entry { page, place, .. } = self.entries[number as usize];
        self.by_page.remove(&page);
        if place != NONE {
            self.free.push(place);
        }
        self.free_entries.push(number);
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.entries
            .iter()
            .enumerate()
            .filter(|(number, entry)| entry.place != NONE && !self.free_entries.contains(&(*number as u32)))
            .count()
    }
}
