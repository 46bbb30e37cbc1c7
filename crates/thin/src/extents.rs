//! Extents of a pool with their owners, as an object under the ports of its volumes.

use crate::book::{Book, Change};
use crate::layout::EXTENT;
use crate::note::Word;
use sluice_shared::{Object, PortNumber, Unit, Units};
use std::collections::{BTreeMap, VecDeque};

/// Note of a port that is not acknowledged yet.
#[derive(Clone, Debug)]
pub(crate) enum Note {
    Change(Change),
    /// The volume of the port does not change until the acknowledgement.
    Barrier,
    /// Nothing is left to do.
    Done,
}

/// Extents of a pool with their owners.
#[derive(Debug)]
pub(crate) struct Extents {
    pub(crate) book: Book,
    pub(crate) units: Units,
    /// Volume of each port.
    pub(crate) users: BTreeMap<PortNumber, u32>,
    /// Notes that are not acknowledged yet, and the number of extents in them.
    pub(crate) notes: VecDeque<(PortNumber, Note)>,
    pub(crate) noted: u64,
    /// Extents that the device does not write.
    pub(crate) bad: u64,
    pub(crate) mappings_max: u64,
    /// A port has sent a note that contradicts the state.
    pub(crate) is_spoiled: bool,
}

impl Extents {
    pub(crate) fn new(book: Book, mappings_max: u64) -> Self {
        let (users, notes) = (BTreeMap::new(), VecDeque::new());
        let units = Units::default();
        let mut extents =
            Self { book, units, users, notes, noted: 0, bad: 0, mappings_max, is_spoiled: false };
        extents.adopt();
        extents
    }

    /// Adds the extents that the book has, and the units lack.
    pub(crate) fn adopt(&mut self) {
        let book = &self.book;
        self.units.grow(book.extents(), |extent| book.references(extent) > 0);
    }

    /// Returns the number of extents that volumes have taken, and that are no mappings yet.
    pub(crate) fn given(&self) -> u64 {
        self.units.held() + self.noted
    }

    /// Returns the note of a word, if the port may send it.
    fn read(&mut self, port: PortNumber, word: u64) -> Option<Note> {
        match Word::decode(word) {
            Word::Map(logical, physical) => self.change(port, logical, physical).map(Note::Change),
            Word::Barrier => Some(Note::Barrier),
            Word::Bad(extent) => {
                let is_held = self.units.use_up(port, extent);
                self.bad += u64::from(is_held);
                is_held.then_some(Note::Done)
            }
            Word::Suspect(extent) => self.units.give_back_last(port, extent).then_some(Note::Done),
        }
    }

    fn change(&mut self, port: PortNumber, logical: u32, physical: Option<u32>) -> Option<Change> {
        let volume = *self.users.get(&port)?;
        let size = self.book.volume(volume)?.size;
        if let Some(extent) = physical {
            if !self.units.use_up(port, extent) {
                return None;
            }
            self.noted += 1;
        }
        (u64::from(logical) < size / EXTENT).then_some(Change::Map { volume, logical, physical })
    }
}

impl Object for Extents {
    fn take(&mut self, port: PortNumber) -> Option<Unit> {
        if self.book.mappings() + self.given() >= self.mappings_max {
            return None;
        }
        self.units.take(port).map(Unit::from)
    }

    fn give_back(&mut self, port: PortNumber, unit: Unit) {
        self.units.give_back(port, unit);
    }

    fn note(&mut self, port: PortNumber, word: u64) {
        match self.read(port, word) {
            Some(note) => self.notes.push_back((port, note)),
            None => self.is_spoiled = true,
        }
    }

    fn reclaim(&mut self, port: PortNumber, limit: usize) -> bool {
        // Notes of the port are written before its number and its volume have another user.
        let is_over = self.units.reclaim(port, limit) && self.notes.iter().all(|(of, _)| *of != port);
        if is_over {
            self.users.remove(&port);
        }
        is_over
    }
}
