//! Pages on their way: commands that fill the cache, and changes of the layer below.

use super::index::Place;
use std::collections::HashMap;

/// Pages of a command that fills the cache: 64 KiB, and one more if it does not begin with a page.
pub(super) const PAGES_MAX: usize = 17;

/// Commands that fill the cache at a time; others bypass.
pub(super) const FLIGHTS_MAX: usize = 256;

/// Command that fills the cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flight {
    pub(super) first: u64,
    pub(super) count: usize,
    pub(super) places: [Place; PAGES_MAX],
    /// Round of the index when the command began.
    pub(super) round: u64,
}

/// A page with commands under way.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    reads: u32,
    writes: u32,
    /// The order of the commands on the device is not known, so none of them fills the cache.
    spoiled: bool,
}

#[derive(Debug)]
pub(super) struct Flights {
    flights: Vec<Flight>,
    free: Vec<u32>,
    busy: HashMap<u64, Busy>,
}

impl Flights {
    pub(super) fn new() -> Self {
        Self {
            flights: vec![Flight::default(); FLIGHTS_MAX],
            free: (0..FLIGHTS_MAX as u32).rev().collect(),
            busy: HashMap::with_capacity(FLIGHTS_MAX * PAGES_MAX),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Adds a command that fills the cache; none if there are too many.
    pub(super) fn add(&mut self, flight: Flight) -> Option<u32> {
        let number = self.free.pop()?;
        self.flights[number as usize] = flight;
        Some(number)
    }

    /// Takes a command out.
    pub(super) fn take(&mut self, number: u32) -> Flight {
        self.free.push(number);
        self.flights[number as usize]
    }

    /// Notes that a page is read below.
    pub(super) fn begin_read(&mut self, page: u64) {
        let busy = self.busy.entry(page).or_default();
        busy.reads += 1;
        busy.spoiled |= busy.writes > 0;
    }

    /// Notes that a page is written below. `fills` if the cache gets its contents, too.
    pub(super) fn begin_write(&mut self, page: u64, fills: bool) {
        let busy = self.busy.entry(page).or_default();
        busy.spoiled |= busy.writes > 0 || busy.reads > 0 || !fills;
        busy.writes += 1;
    }

    /// Ends a read or a write of a page; returns whether its data may be in the cache.
    pub(super) fn end(&mut self, page: u64, is_write: bool) -> bool {
        let Some(busy) = self.busy.get_mut(&page) else { return false };
        let count = if is_write { &mut busy.writes } else { &mut busy.reads };
        *count = count.saturating_sub(1);
        let fills = !busy.spoiled;
        if busy.reads == 0 && busy.writes == 0 {
            self.busy.remove(&page);
        }
        fills
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.busy.is_empty() && self.free.len() == FLIGHTS_MAX
    }
}
