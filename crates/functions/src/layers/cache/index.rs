//! Index of the pages of a cache.

use crate::eviction::{Entries, Head, Queues, count_use};
use std::collections::HashMap;

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

impl Entries for Vec<Entry> {
    fn head(&mut self, number: u32) -> Head<'_> {
        let Entry { page, reads, .. } = &mut self[number as usize];
        Head::Named { name: *page, uses: reads }
    }
}

/// Pages of a cache.
#[derive(Debug)]
pub(super) struct Index {
    /// Entries by page. A page that was overwritten keeps its entry.
    by_page: HashMap<u64, u32>,
    entries: Vec<Entry>,
    free_entries: Vec<u32>,
    queues: Queues,
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
            queues: Queues::new(pages),
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
        count_use(&mut entry.reads);
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
        self.queues.add(page, number);
    }

    fn evict(&mut self) {
        let Some(number) = self.queues.take(&mut self.entries, true) else { return };
        self.drop_entry(number);
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
