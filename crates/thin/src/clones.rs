//! Clones of volumes, in use or not.

use crate::book::Change;
use crate::committer::{Committer, of_store};
use crate::pool::{Error, Reply};
use crate::storage::Storage;
use sluice_shared::PortNumber;
use std::time::{Duration, Instant};

/// Time for the commands of a volume to end before a clone of it is given up.
const LIMIT: Duration = Duration::from_secs(10);

/// A clone of a volume in use.
#[derive(Debug)]
pub(crate) struct PendingClone {
    name: String,
    from: String,
    port: PortNumber,
    until: Instant,
    reply: Reply<()>,
}

impl<S: Storage> Committer<S> {
    /// Makes a volume with the content of another one, and replies. If a namespace uses the other one, the reply comes
    /// when none of its commands changes it for a moment.
    pub(crate) fn order_clone(&mut self, name: String, from: String, now: Instant, reply: Reply<()>) {
        let outcome = match self.clone_volume(&name, &from) {
            Err(Error::InUse(_)) => {
                let port = self.find(&from).and_then(|number| self.user(number));
                let Some(port) = port.filter(|_| self.failure.is_none()) else {
                    return drop(reply.send(Err(self.failed().unwrap_or(Error::NoVolume(from)))));
                };
                if !self.clones.iter().any(|clone| clone.port == port) {
                    self.home.call(port, true);
                }
                return self.clones.push(PendingClone { name, from, port, until: now + LIMIT, reply });
            }
            outcome => outcome,
        };
        drop(reply.send(outcome));
    }

    /// Makes a volume with the content of another one, which no namespace uses.
    ///
    /// # Errors
    /// The other volume is in use, or the pool has no room for the new one.
    pub(crate) fn clone_volume(&mut self, name: &str, from: &str) -> Result<(), Error> {
        let source = self.closed(from)?;
        self.clone_now(name, source)
    }

    /// Makes the clones that wait for a barrier of this port, which it has now.
    pub(crate) fn make_clones(&mut self, port: PortNumber) {
        let ready: Vec<PendingClone> = self.clones.extract_if(.., |clone| clone.port == port).collect();
        if ready.is_empty() {
            return;
        }
        for clone in ready {
            let source = self.find(&clone.from).ok_or_else(|| Error::NoVolume(clone.from.clone()));
            let made = source.and_then(|source| match self.user(source) {
                Some(user) if user == port => self.clone_now(&clone.name, source),
                // The user of the volume has gone meanwhile, and the port is another volume's.
                _ => self.clone_volume(&clone.name, &clone.from),
            });
            drop(clone.reply.send(made));
        }
        self.home.call(port, false);
    }

    /// Gives up clones of volumes that are busy for too long, and makes those of volumes without a user. Returns the number of
    /// both.
    pub(crate) fn look_at_clones(&mut self, now: Instant) -> usize {
        let users = &self.home.object().users;
        let is_over = |clone: &PendingClone| clone.until <= now || !users.contains_key(&clone.port);
        let over: Vec<PendingClone> = self.clones.extract_if(.., |clone| is_over(clone)).collect();
        let count = over.len();
        for clone in over {
            let is_called = self.clones.iter().any(|other| other.port == clone.port);
            if !is_called && self.user_has(clone.port) {
                self.home.call(clone.port, false);
            }
            let outcome = match clone.until <= now {
                true => Err(Error::Busy(clone.from)),
                false => self.clone_volume(&clone.name, &clone.from),
            };
            drop(clone.reply.send(outcome));
        }
        count
    }

    fn user_has(&self, port: PortNumber) -> bool {
        self.home.object().users.contains_key(&port)
    }

    /// Returns the time until which a clone waits.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.clones.iter().map(|clone| clone.until).min()
    }

    /// Refuses all clones: nothing is written any more.
    pub(crate) fn fail_clones(&mut self) {
        for clone in std::mem::take(&mut self.clones) {
            drop(clone.reply.send(Err(self.failed().unwrap_or(Error::Gone))));
        }
    }

    fn failed(&self) -> Option<Error> {
        self.failure.clone().map(Error::Failed)
    }

    /// Makes a clone of a volume that does not change at this moment.
    fn clone_now(&mut self, name: &str, source: u32) -> Result<(), Error> {
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
        // The clone is durable with all data that it shares.
        if let Err(error) = self.store.flush() {
            // The device reports a loss once: it may be one of other volumes.
            let error = of_store(error);
            self.fail(error.to_string());
            return Err(error);
        }
        self.write(Change::Clone { volume, name: name.to_owned(), from: source })
    }
}
