//! A pool without a thread, for simulations: a caller turns its home.

use crate::committer::Committer;
use crate::layer::{Parts, ThinPort};
use crate::{Error, OnFull, PoolUse, Storage, Thin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

/// A pool whose home is turned by its caller.
#[derive(Debug)]
pub struct PoolByHand<S>(Committer<S>);

impl<S: Storage> PoolByHand<S> {
    /// Opens the pool on storage of `size` bytes, or makes one with this identifier on storage of zeros.
    ///
    /// # Errors
    /// Those of [`ThinPool::start`](crate::ThinPool::start).
    pub fn open(storage: S, size: u64, id: u64) -> Result<Self, Error> {
        Committer::open(storage, size, id).map(Self)
    }

    /// Opens a volume as a layer, which is polled and never wakes. A volume that does not exist is made.
    ///
    /// # Errors
    /// Those of [`ThinPool::open`](crate::ThinPool::open).
    pub fn open_volume(&mut self, name: &str, size: u64, on_full: OnFull) -> Result<Thin, Error> {
        let side = Arc::clone(self.0.home.side());
        let (port, connection) = side.connect().map_err(Error::Port)?;
        let number = port.number();
        let opened = self.0.open_volume(name, size, connection).inspect_err(|_| side.release(number))?;
        let parts = Parts::new(&self.0.layout(), opened.size, on_full);
        Ok(ThinPort::new(port, opened, parts).build_alone()?)
    }

    /// Orders a clone of a volume. The outcome arrives after later turns if the volume is in use.
    pub fn clone_volume(&mut self, name: &str, from: &str) -> Receiver<Result<(), Error>> {
        let (reply, answer) = channel();
        self.0.order_clone(name.to_owned(), from.to_owned(), Instant::now(), reply);
        answer
    }

    /// Deletes a volume.
    ///
    /// # Errors
    /// The volume is in use, or there is none.
    pub fn delete_volume(&mut self, name: &str) -> Result<(), Error> {
        self.0.delete_volume(name)
    }

    /// Handles the messages of all volumes. Returns the work done.
    pub fn turn(&mut self) -> usize {
        self.0.turn()
    }

    /// Returns the space of the pool, without the exclusive bytes of the volumes.
    #[must_use]
    pub fn usage(&self) -> PoolUse {
        self.0.usage()
    }
}
