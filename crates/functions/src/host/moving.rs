//! Moves of a function between this process and one of its own, and its removal, while its drive is at work.
//!
//! The running instance leaves as in a restart: it finishes its commands, gets no more, is sent STOP, and its
//! own requests come back. Commands that arrive meanwhile wait, and begin with the next instance.

use super::peer::Incoming;
use super::supervisor::{LEAVE_LIMIT, Launch, Supervisor};
use super::{ARENA_BYTES, UifControl};
use sluice_memory::SharedRegion;
use sluice_uif::{Failure, Function};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Time that an unload may take when only the layers below are waited for.
const EMPTY_LIMIT: Duration = Duration::from_secs(10);

/// Interval between two checks.
const LOOK: Duration = Duration::from_micros(200);

impl UifControl {
    /// Moves the function into this process.
    ///
    /// # Errors
    /// The reason why the function stays where it is.
    pub fn move_into_daemon(&self, function: Box<dyn Function>) -> Result<(), String> {
        let mut supervisor = self.supervisor();
        if function.properties() != self.properties {
            return Err("it is not what the drive stands on".to_owned());
        }
        // Allocated first, so that no later step can fail.
        let memory = arena().map_err(|error| format!("there is no memory for it: {error}"))?;
        self.unload_instance(supervisor.take())?;
        self.offer_local(function, memory);
        self.load_next();
        self.instance.free_disposed();
        Ok(())
    }

    /// Moves the function into a process. May block until the process is connected.
    ///
    /// # Errors
    /// The reason why the function stays where it is.
    pub fn move_to_process(&self, launch: Launch) -> Result<(), String> {
        let mut supervisor = self.supervisor();
        let next = self.keep(launch).map_err(|failure| failure.to_string())?;
        if let Err(words) = self.unload_instance(supervisor.take()) {
            drop(next);
            self.instance.withdraw();
            // The present instance stays up, whatever became of the other one.
            self.instance.counts.up.store(true, Relaxed);
            return Err(words);
        }
        *supervisor = Some(next);
        self.load_next();
        Ok(())
    }

    /// Unloads the function, so that its layer can be taken out of its stack. A move loads it again.
    ///
    /// # Errors
    /// The reason why the function stays.
    pub fn leave(&self) -> Result<(), String> {
        let mut supervisor = self.supervisor();
        let left = self.unload_instance(supervisor.take());
        self.instance.free_disposed();
        left
    }

    /// Returns whether the next Flush of a host is to fail for a loss that was reported to an earlier
    /// instance.
    pub fn owes_flush_error(&self) -> bool {
        self.instance.counts.owes.load(Relaxed)
    }

    /// Returns whether a loss of acknowledged writes may not have been reported to a host.
    pub fn has_unreported_loss(&self) -> bool {
        self.instance.counts.unreported_loss.load(Relaxed)
    }

    /// Has commands pass the layer for good: it has no function, and cannot be taken out of its stack yet.
    pub fn abandon(&self) {
        self.instance.abandon();
    }

    /// Returns whether the function keeps blocks at places that are in its own map only.
    pub fn has_its_own_map(&self) -> bool {
        self.properties.size > 0
    }

    /// Offers an instance in this process: the first, or the next.
    pub(super) fn load_local(&self, function: Box<dyn Function>) -> io::Result<()> {
        self.offer_local(function, arena()?);
        Ok(())
    }

    fn offer_local(&self, function: Box<dyn Function>, memory: SharedRegion) {
        self.instance.counts.up.store(true, Relaxed);
        self.instance.offer(self.instance.number(), Incoming::Local(function, memory));
    }

    /// Has the layer take the instance that was offered.
    fn load_next(&self) {
        let before = self.instance.connected_number();
        self.instance.load();
        wait(EMPTY_LIMIT, || self.instance.connected_number() > before);
    }

    /// Starts a process, which waits for the slot to be empty.
    fn keep(&self, launch: Launch) -> Result<Supervisor, Failure> {
        let (options, instance) = (self.options.clone(), std::sync::Arc::clone(&self.instance));
        Supervisor::start(launch, options, instance, Some(self.properties)).map(|(supervisor, _)| supervisor)
    }

    /// Unloads the running instance, and has the slot stay empty. A process that does not finish in time is
    /// killed, and its commands begin anew. A function in this process can only be waited for.
    ///
    /// # Errors
    /// The reason why the instance stays.
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
        // The layer takes the next instance in any case, as soon as the slot is empty.
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
