//! The home of a pool: free extents, maps of all volumes, and the log of their changes.

use crate::block::PAYLOAD;
use crate::book::{Book, Change, NAME_MAX, VolumeUse, is_size};
use crate::clones::PendingClone;
use crate::counting::Counting;
use crate::extents::{Extents, Note};
use crate::layout::{EXTENT, Layout};
use crate::map::{Map, SHARED};
use crate::pool::{Error, PoolUse};
use crate::storage::Storage;
use crate::store::{Store, StoreError};
use sluice_shared::{Connection, Home, PortNumber};
use std::collections::VecDeque;
use std::io;

/// Changes of one record, at most.
const RECORD_MAX: usize = PAYLOAD / 16;

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
    pub(crate) store: Store<S>,
    /// Reason for which nothing is written any more.
    pub(crate) failure: Option<String>,
    /// Clones of volumes in use, which wait for a barrier.
    pub(crate) clones: Vec<PendingClone>,
    /// Counts of exclusive extents in progress.
    pub(crate) counts: VecDeque<Counting>,
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
        Ok(Self { home, store, failure: None, clones: Vec::new(), counts: VecDeque::new() })
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
        if !self.clones.is_empty() {
            return Err(Error::AtWork);
        }
        self.failure.clone().map_or(Ok(()), |words| Err(Error::Failed(words)))
    }

    fn commit(&mut self) -> usize {
        let mut count = 0;
        if self.home.object().is_spoiled && self.failure.is_none() {
            self.fail("a volume has sent a change that contradicts its state".to_owned());
        }
        while let Some((port, note)) = self.home.object().notes.front().cloned() {
            if self.failure.is_some() {
                return count + self.refuse_notes();
            }
            count += match note {
                Note::Change(_) => self.commit_changes(),
                Note::Barrier => {
                    // The clones may take turns, which begin with the first note.
                    let acknowledged = self.acknowledge(port);
                    self.make_clones(port);
                    acknowledged
                }
                Note::Done => self.acknowledge(port),
            };
        }
        count
    }

    /// Writes the first changes. Returns how many.
    fn commit_changes(&mut self) -> usize {
        let is_change = |(port, note): &(PortNumber, Note)| match note {
            Note::Change(change) => Some((*port, change.clone())),
            _ => None,
        };
        let (ports, changes): (Vec<PortNumber>, Vec<Change>) =
            self.home.object().notes.iter().map_while(is_change).take(RECORD_MAX).unzip();
        match self.store.commit(&self.home.object().book, &changes) {
            Ok(written) => {
                for (port, change) in ports.iter().zip(&changes).take(written) {
                    self.apply(change);
                    self.acknowledge(*port);
                }
                written
            }
            Err(error) => {
                self.fail(of_store(error).to_string());
                0
            }
        }
    }

    /// Acknowledges the first note, which is the port's. Returns the number of notes.
    fn acknowledge(&mut self, port: PortNumber) -> usize {
        self.home.object_mut().notes.pop_front();
        self.home.acknowledge(port, 1);
        1
    }

    fn refuse_notes(&mut self) -> usize {
        let notes = std::mem::take(&mut self.home.object_mut().notes);
        notes.iter().for_each(|(port, _)| self.home.fail_notes(*port));
        notes.len()
    }

    pub(crate) fn fail(&mut self, words: String) {
        tracing::error!("the metadata of a pool is not written any more: {words}");
        self.failure = Some(words);
        let ports: Vec<PortNumber> = self.home.object().users.keys().copied().collect();
        ports.into_iter().for_each(|port| self.home.fail_notes(port));
        self.fail_clones();
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

    pub(crate) fn write(&mut self, change: Change) -> Result<(), Error> {
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

    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.home.object().book.find(name).map(|(number, _)| number)
    }

    /// Returns the port that uses a volume.
    pub(crate) fn user(&self, number: u32) -> Option<PortNumber> {
        self.home.object().users.iter().find(|(_, of)| **of == number).map(|(port, _)| *port)
    }

    /// Returns the number of a volume that no namespace uses. A user that has gone is waited for: its units are reclaimed
    /// in steps, each of which ends.
    pub(crate) fn closed(&mut self, name: &str) -> Result<u32, Error> {
        let number = self.find(name).ok_or_else(|| Error::NoVolume(name.to_owned()))?;
        self.turn();
        while self.user(number).is_some_and(|port| self.home.is_closing(port)) {
            self.turn();
        }
        if self.user(number).is_some() { Err(Error::InUse(name.to_owned())) } else { Ok(number) }
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

    pub(crate) fn new_number(&self, name: &str, size: u64) -> Result<u32, Error> {
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

    /// Returns the space of the pool and of its volumes, without their exclusive extents.
    pub(crate) fn usage(&self) -> PoolUse {
        self.usage_with(|_| None)
    }

    /// Returns the space of the pool and of its volumes. `exclusive` returns the bytes that a volume has alone.
    pub(crate) fn usage_with(&self, exclusive: impl Fn(u32) -> Option<u64>) -> PoolUse {
        let extents = self.home.object();
        let volume = |(number, volume): (u32, &crate::book::Volume)| VolumeUse {
            name: volume.name.clone(),
            size: volume.size,
            allocated: volume.mapped * EXTENT,
            exclusive: exclusive(number),
            is_open: self.user(number).is_some(),
        };
        PoolUse {
            size: u64::from(extents.book.extents()) * EXTENT,
            free: extents.units.free() as u64 * EXTENT,
            credit: extents.given() * EXTENT,
            bad: extents.bad * EXTENT,
            users: extents.users.len(),
            volumes: extents.book.volumes().map(volume).collect(),
            failure: self.failure.clone(),
        }
    }

    #[cfg(test)]
    pub(crate) fn book(&self) -> &crate::book::Book {
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
