//! The home of a pool: free extents, maps of all volumes, and the log of their changes.

use crate::block::PAYLOAD;
use crate::book::{Book, Change, NAME_MAX, VolumeUse, is_size};
use crate::layout::{EXTENT, Layout};
use crate::map::Map;
use crate::pool::{Error, PoolUse};
use crate::storage::Storage;
use crate::store::{Store, StoreError};
use sluice_shared::{Connection, Home, Object, PortNumber, Unit, Units};
use std::collections::{BTreeMap, VecDeque};
use std::io;

/// Changes of one record, at most.
const RECORD_MAX: usize = PAYLOAD / 16;

/// Flag of a map's word: other volumes have the extent, too.
pub(crate) const SHARED: u32 = 1 << 31;

/// Extents of a pool with their owners.
#[derive(Debug)]
pub(crate) struct Extents {
    book: Book,
    units: Units,
    /// Volume of each port.
    users: BTreeMap<PortNumber, u32>,
    /// Changes that are not written yet, and the number of extents in them.
    notes: VecDeque<(PortNumber, Change)>,
    noted: u64,
    mappings_max: u64,
    /// A port has sent a note that contradicts the state.
    is_spoiled: bool,
}

impl Extents {
    fn new(book: Book, mappings_max: u64) -> Self {
        let (users, notes) = (BTreeMap::new(), VecDeque::new());
        let units = Units::default();
        let mut extents = Self { book, units, users, notes, noted: 0, mappings_max, is_spoiled: false };
        extents.adopt();
        extents
    }

    /// Adds the extents that the book has, and the units lack.
    fn adopt(&mut self) {
        let book = &self.book;
        self.units.grow(book.extents(), |extent| book.references(extent) > 0);
    }

    /// Returns the number of extents that volumes have taken, and that are no mappings yet.
    fn given(&self) -> u64 {
        self.units.held() + self.noted
    }

    /// Returns the change of a note, if the port may make it.
    fn change(&mut self, port: PortNumber, word: u64) -> Option<Change> {
        let (logical, physical) = (word as u32, ((word >> 32) as u32).checked_sub(1));
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
        match self.change(port, word) {
            Some(change) => self.notes.push_back((port, change)),
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

/// A volume that was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) number: u32,
    pub(crate) size: u64,
    /// Extent of the pool plus one, with [`SHARED`], for each extent of the volume.
    pub(crate) map: Map,
}

/// The home of a pool, with its metadata. Used by one thread, which may block.
#[derive(Debug)]
pub(crate) struct Committer<S> {
    pub(crate) home: Home<Extents>,
    store: Store<S>,
    /// Reason for which nothing is written any more.
    failure: Option<String>,
}

impl<S: Storage> Committer<S> {
    /// Opens the pool on a device of `size` bytes, or makes one on a device of zeros.
    pub(crate) fn open(storage: S, size: u64, id: u64) -> Result<Self, Error> {
        Self::of(Store::open(storage, size, id).map_err(of_store)?)
    }

    /// Opens a pool that is at rest in another process. Nothing is written before the first change.
    pub(crate) fn open_lent(storage: S, size: u64) -> Result<Self, Error> {
        Self::of(Store::open_lent(storage, size).map_err(of_store)?)
    }

    fn of((store, book): (Store<S>, Book)) -> Result<Self, Error> {
        let home = Home::new(Extents::new(book, store.layout().mappings_max))?;
        Ok(Self { home, store, failure: None })
    }

    pub(crate) fn layout(&self) -> Layout {
        *self.store.layout()
    }

    /// Handles the messages of all ports, and makes their notes durable. Returns the work done.
    pub(crate) fn turn(&mut self) -> usize {
        let work = self.home.turn();
        work + self.commit()
    }

    /// Makes all notes durable that have arrived. Nothing more is written until a volume or an order changes something.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        while self.turn() > 0 {}
        self.failure.clone().map_or(Ok(()), |words| Err(Error::Failed(words)))
    }

    fn commit(&mut self) -> usize {
        let mut count = 0;
        if self.home.object().is_spoiled && self.failure.is_none() {
            self.fail("a volume has sent a change that contradicts its state".to_owned());
        }
        while !self.home.object().notes.is_empty() {
            if self.failure.is_some() {
                return count + self.refuse_notes();
            }
            let first: Vec<_> = self.home.object().notes.iter().take(RECORD_MAX).cloned().collect();
            let changes: Vec<Change> = first.iter().map(|(_, change)| change.clone()).collect();
            match self.store.commit(&self.home.object().book, &changes) {
                Ok(written) => {
                    for (port, change) in &first[..written] {
                        self.apply(change);
                        self.home.object_mut().notes.pop_front();
                        self.home.acknowledge(*port, 1);
                    }
                    count += written;
                }
                Err(error) => self.fail(of_store(error).to_string()),
            }
        }
        count
    }

    fn refuse_notes(&mut self) -> usize {
        let notes = std::mem::take(&mut self.home.object_mut().notes);
        notes.iter().for_each(|(port, _)| self.home.fail_notes(*port));
        notes.len()
    }

    fn fail(&mut self, words: String) {
        tracing::error!("the metadata of a pool is not written any more: {words}");
        self.failure = Some(words);
        let ports: Vec<PortNumber> = self.home.object().users.keys().copied().collect();
        ports.into_iter().for_each(|port| self.home.fail_notes(port));
    }

    /// Applies a change that is durable.
    fn apply(&mut self, change: &Change) {
        let extents = self.home.object_mut();
        let mut freed = Vec::new();
        let applied = extents.book.apply(change, |extent| freed.push(extent));
        if let Change::Map { physical: Some(_), .. } = change {
            extents.noted -= 1;
        }
        freed.into_iter().for_each(|extent| extents.units.release(extent));
        if let Err(why) = applied {
            self.fail(why);
        }
    }

    /// Writes and applies one change of the control side, after the notes that were sent before.
    fn order(&mut self, change: Change) -> Result<(), Error> {
        self.turn();
        self.write(change)
    }

    fn write(&mut self, change: Change) -> Result<(), Error> {
        if let Some(words) = &self.failure {
            return Err(Error::Failed(words.clone()));
        }
        if let Err(error) = self.store.commit(&self.home.object().book, std::slice::from_ref(&change)) {
            let error = of_store(error);
            self.fail(error.to_string());
            return Err(error);
        }
        self.apply(&change);
        Ok(())
    }

    fn find(&self, name: &str) -> Option<u32> {
        self.home.object().book.find(name).map(|(number, _)| number)
    }

    fn is_open(&self, number: u32) -> bool {
        self.home.object().users.values().any(|of| *of == number)
    }

    /// Returns the number of a volume that no namespace uses.
    fn closed(&self, name: &str) -> Result<u32, Error> {
        let number = self.find(name).ok_or_else(|| Error::NoVolume(name.to_owned()))?;
        if self.is_open(number) { Err(Error::InUse(name.to_owned())) } else { Ok(number) }
    }

    /// Opens a volume for a port. A volume that does not exist is made, with this size; one that is smaller grows.
    pub(crate) fn open_volume(
        &mut self,
        name: &str,
        size: u64,
        connection: Connection,
    ) -> Result<Opened, Error> {
        let number = match self.find(name) {
            Some(_) => self.closed(name)?,
            None => {
                let number = self.new_number(name, size)?;
                self.order(Change::Create { volume: number, name: name.to_owned(), size })?;
                number
            }
        };
        if self.home.object().book.volume(number).is_some_and(|volume| volume.size < size) {
            self.resize_volume(name, size)?;
        }
        let extents = self.home.object_mut();
        let volume = extents.book.volume(number).ok_or_else(|| Error::NoVolume(name.to_owned()))?;
        let (size, mut map) = (volume.size, volume.map.clone());
        for (logical, word) in volume.map.iter() {
            if extents.book.references(word - 1) > 1 {
                map.set(logical, word | SHARED);
            }
        }
        extents.users.insert(connection.number(), number);
        self.home.attach(connection);
        Ok(Opened { number, size, map })
    }

    fn new_number(&self, name: &str, size: u64) -> Result<u32, Error> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Error::Impossible(format!("the name of a volume has 1 to {NAME_MAX} bytes")));
        }
        if !is_size(size) {
            return Err(Error::Impossible(
                "the size of a volume is a multiple of 64 KiB, and 64 TiB at most".to_owned(),
            ));
        }
        self.home
            .object()
            .book
            .next_number()
            .ok_or_else(|| Error::Impossible(format!("a pool has {} volumes at most", crate::VOLUMES_MAX)))
    }

    /// Makes a volume with the content of another one, which no namespace uses at this moment.
    pub(crate) fn clone_volume(&mut self, name: &str, from: &str) -> Result<(), Error> {
        // No extent is given away between the check of the room and the change.
        self.turn();
        let source = self.closed(from)?;
        if self.find(name).is_some() {
            return Err(Error::Impossible(format!("there is a volume `{name}` already")));
        }
        let book = &self.home.object().book;
        let (size, mapped) = book.volume(source).map_or((0, 0), |volume| (volume.size, volume.mapped));
        if book.mappings() + self.home.object().given() + mapped > self.home.object().mappings_max {
            return Err(Error::Impossible(
                "the metadata of the pool has no room for so many shared extents".to_owned(),
            ));
        }
        let volume = self.new_number(name, size)?;
        self.write(Change::Clone { volume, name: name.to_owned(), from: source })
    }

    /// Deletes a volume that no namespace uses.
    pub(crate) fn delete_volume(&mut self, name: &str) -> Result<(), Error> {
        let volume = self.closed(name)?;
        self.order(Change::Delete { volume })
    }

    /// Makes a volume larger, in use or not.
    pub(crate) fn resize_volume(&mut self, name: &str, size: u64) -> Result<(), Error> {
        let number = self.find(name).ok_or_else(|| Error::NoVolume(name.to_owned()))?;
        let present = self.home.object().book.volume(number).map_or(0, |volume| volume.size);
        if size < present || !is_size(size) {
            return Err(Error::Impossible(format!(
                "volume `{name}` of {present} bytes only grows, to a multiple of 64 KiB, and 64 TiB at most"
            )));
        }
        self.order(Change::Resize { volume: number, size })
    }

    /// Takes the further extents of a device that has become larger.
    pub(crate) fn grow(&mut self, size: u64) -> Result<(), Error> {
        let count = self.store.layout().extents(size).map_err(Error::Impossible)?;
        let extents = self.home.object_mut();
        extents.book.grow(count);
        extents.adopt();
        Ok(())
    }

    /// Returns the space of the pool and of its volumes. `counts` if the exclusive extents are counted, which takes a
    /// look at all mappings.
    pub(crate) fn usage(&self, counts: bool) -> PoolUse {
        let extents = self.home.object();
        let volume = |(number, volume): (u32, &crate::book::Volume)| VolumeUse {
            name: volume.name.clone(),
            size: volume.size,
            allocated: volume.mapped * EXTENT,
            exclusive: counts.then(|| extents.book.exclusive(volume)),
            is_open: self.is_open(number),
        };
        PoolUse {
            size: u64::from(extents.book.extents()) * EXTENT,
            free: extents.units.free() as u64 * EXTENT,
            credit: extents.given() * EXTENT,
            users: extents.users.len(),
            volumes: extents.book.volumes().map(volume).collect(),
            failure: self.failure.clone(),
        }
    }

    #[cfg(test)]
    pub(crate) fn book(&self) -> &Book {
        &self.home.object().book
    }
}

pub(crate) fn of_store(error: StoreError) -> Error {
    match error {
        StoreError::Io(error) => Error::Io(error),
        StoreError::Refused(words) => Error::Refused(words),
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
