//! A function that moves between this process and one of its own, or goes, while its drive is at work.
//!
//! Whoever is on the layer's seat leaves as in a restart: it finishes what it has, gets nothing more, is told to
//! stop, and its own requests come back. What comes meanwhile waits, and begins with whoever is next.

use super::peer::Incoming;
use super::supervisor::{LEAVE_LIMIT, Launch, Supervisor};
use super::{ARENA_BYTES, UifControl};
use sluice_memory::SharedRegion;
use sluice_uif::{Failure, Function};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long a seat may take to be empty when nothing but the layers below is waited for.
const EMPTY_LIMIT: Duration = Duration::from_secs(10);

/// Between two looks.
const LOOK: Duration = Duration::from_micros(200);

impl UifControl {
    /// Moves the function into this process.
    ///
    /// # Errors
    /// In words. It stays where it is then.
    pub fn move_into_daemon(&self, function: Box<dyn Function>) -> Result<(), String> {
        let mut supervisor = self.supervisor();
        if function.properties() != self.properties {
            return Err("it is not what the drive stands on".to_owned());
        }
        // What it needs first, so that nothing is left that could fail.
        let memory = arena().map_err(|error| format!("there is no memory for it: {error}"))?;
        self.unload_instance(supervisor.take())?;
        self.offer_local(function, memory);
        self.load_next();
        self.instance.free_disposed();
        Ok(())
    }

    /// Moves the function into a process. May block until that is there.
    ///
    /// # Errors
    /// In words. It stays where it is then.
    pub fn move_to_process(&self, launch: Launch) -> Result<(), String> {
        let mut supervisor = self.supervisor();
        let next = self.keep(launch).map_err(|failure| failure.to_string())?;
        if let Err(words) = self.unload_instance(supervisor.take()) {
            drop(next);
            self.instance.withdraw();
            // The one that stays is there, whatever became of the other.
            self.instance.counts.up.store(true, Relaxed);
            return Err(words);
        }
        *supervisor = Some(next);
        self.load_next();
        Ok(())
    }

    /// Has the function leave, and nobody come, so that its layer can be taken out of its stack. A move brings it
    /// back.
    ///
    /// # Errors
    /// In words. It stays then.
    pub fn leave(&self) -> Result<(), String> {
        let mut supervisor = self.supervisor();
        let left = self.unload_instance(supervisor.take());
        self.instance.free_disposed();
        left
    }

    /// True if the next Flush of a host is to fail for a loss that a function was told of which is gone.
    pub fn owes_flush_error(&self) -> bool {
        self.instance.counts.owes.load(Relaxed)
    }

    /// True if a loss of acknowledged writes may not have been told to a host.
    pub fn has_unreported_loss(&self) -> bool {
        self.instance.counts.unreported_loss.load(Relaxed)
    }

    /// Has commands pass the layer by for good: it has no function, and cannot be taken out of its stack yet.
    pub fn abandon(&self) {
        self.instance.abandon();
    }

    /// True if it keeps blocks in places that only it knows.
    pub fn has_its_own_map(&self) -> bool {
        self.properties.size > 0
    }

    /// The first, or whoever is next, is in this process.
    pub(super) fn load_local(&self, function: Box<dyn Function>) -> io::Result<()> {
        self.offer_local(function, arena()?);
        Ok(())
    }

    fn offer_local(&self, function: Box<dyn Function>, memory: SharedRegion) {
        self.instance.counts.up.store(true, Relaxed);
        self.instance.offer(self.instance.number(), Incoming::Local(function, memory));
    }

    /// Whoever has arrived takes the seat.
    fn load_next(&self) {
        let before = self.instance.connected_number();
        self.instance.load();
        wait(EMPTY_LIMIT, || self.instance.connected_number() > before);
    }

    /// Starts a process, which waits for the seat to be empty.
    fn keep(&self, launch: Launch) -> Result<Supervisor, Failure> {
        let (options, instance) = (self.options.clone(), std::sync::Arc::clone(&self.instance));
        Supervisor::start(launch, options, instance, Some(self.properties)).map(|(supervisor, _)| supervisor)
    }

    /// Has whoever is there leave, and nobody take the seat. A process that does not come to an end is ended;
    /// what it had begins anew. For a function in this process nothing but waiting can be done.
    ///
    /// # Errors
    /// In words, and it stays.
    fn unload_instance(&self, supervisor: Option<Supervisor>) -> Result<(), String> {
        self.instance.unload();
        match supervisor {
            Some(supervisor) => {
                wait(LEAVE_LIMIT, || self.instance.is_quiesced());
                drop(supervisor);
            }
            None if !wait(LEAVE_LIMIT, || self.instance.is_empty()) && self.instance.decide() => {
                self.instance.load();
                return Err(format!("it has commands that did not end within {LEAVE_LIMIT:?}"));
            }
            None => {}
        }
        // Whoever is next takes the seat in any case, as soon as it is empty.
        wait(EMPTY_LIMIT, || self.instance.is_empty());
        Ok(())
    }
}

fn arena() -> io::Result<SharedRegion> {
    SharedRegion::new("sluice-function", ARENA_BYTES)
}

fn wait(limit: Duration, is_over: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !is_over() {
        if began.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}
