//! A function that moves between this process and one of its own, or goes, while its drive is at work.
//!
//! Whoever is on the layer's seat leaves as in a restart: it finishes what it has, gets nothing more, is told to
//! stop, and its own requests come back. What comes meanwhile waits, and begins with whoever is next.

use super::keeper::{Keeper, LEAVE_LIMIT, Launch};
use super::peer::Comer;
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
    pub fn move_here(&self, function: Box<dyn Function>) -> Result<(), String> {
        let mut keeper = self.keeper();
        if function.properties() != self.properties {
            return Err("it is not what the drive stands on".to_owned());
        }
        // What it needs first, so that nothing is left that could fail.
        let memory = arena().map_err(|error| format!("there is no memory for it: {error}"))?;
        self.vacate_seat(keeper.take())?;
        self.seat_here(function, memory);
        self.seat_next();
        self.seat.quiet();
        Ok(())
    }

    /// Moves the function into a process. May block until that is there.
    ///
    /// # Errors
    /// In words. It stays where it is then.
    pub fn move_there(&self, launch: Launch) -> Result<(), String> {
        let mut keeper = self.keeper();
        let next = self.keep(launch).map_err(|failure| failure.to_string())?;
        if let Err(words) = self.vacate_seat(keeper.take()) {
            drop(next);
            self.seat.turn_away();
            // The one that stays is there, whatever became of the other.
            self.seat.counts.up.store(true, Relaxed);
            return Err(words);
        }
        *keeper = Some(next);
        self.seat_next();
        Ok(())
    }

    /// Has the function leave, and nobody come, so that its layer can be taken out of its stack. A move brings it
    /// back.
    ///
    /// # Errors
    /// In words. It stays then.
    pub fn leave(&self) -> Result<(), String> {
        let mut keeper = self.keeper();
        let left = self.vacate_seat(keeper.take());
        self.seat.quiet();
        left
    }

    /// True if the next Flush of a host is to fail for a loss that a function was told of which is gone.
    pub fn owes_a_loss(&self) -> bool {
        self.seat.counts.owes.load(Relaxed)
    }

    /// True if a loss of acknowledged writes may not have been told to a host.
    pub fn is_in_doubt(&self) -> bool {
        self.seat.counts.doubtful.load(Relaxed)
    }

    /// Has commands pass the layer by for good: it has no function, and cannot be taken out of its stack yet.
    pub fn abandon(&self) {
        self.seat.abandon();
    }

    /// True if it keeps blocks in places that only it knows.
    pub fn has_its_own_map(&self) -> bool {
        self.properties.size > 0
    }

    /// The first, or whoever is next, is in this process.
    pub(super) fn arrive_here(&self, function: Box<dyn Function>) -> io::Result<()> {
        self.seat_here(function, arena()?);
        Ok(())
    }

    fn seat_here(&self, function: Box<dyn Function>, memory: SharedRegion) {
        self.seat.counts.up.store(true, Relaxed);
        self.seat.arrive(self.seat.number(), Comer::Here(function, memory));
    }

    /// Whoever has arrived takes the seat.
    fn seat_next(&self) {
        let before = self.seat.seated();
        self.seat.welcome();
        wait(EMPTY_LIMIT, || self.seat.seated() > before);
    }

    /// Starts a process, which waits for the seat to be empty.
    fn keep(&self, launch: Launch) -> Result<Keeper, Failure> {
        let (options, seat) = (self.options.clone(), std::sync::Arc::clone(&self.seat));
        Keeper::start(launch, options, seat, Some(self.properties)).map(|(keeper, _)| keeper)
    }

    /// Has whoever is there leave, and nobody take the seat. A process that does not come to an end is ended;
    /// what it had begins anew. For a function in this process nothing but waiting can be done.
    ///
    /// # Errors
    /// In words, and it stays.
    fn vacate_seat(&self, keeper: Option<Keeper>) -> Result<(), String> {
        self.seat.vacate();
        match keeper {
            Some(keeper) => {
                wait(LEAVE_LIMIT, || self.seat.has_none_at_work());
                drop(keeper);
            }
            None if !wait(LEAVE_LIMIT, || self.seat.is_vacant()) && self.seat.decide() => {
                self.seat.welcome();
                return Err(format!("it has commands that did not end within {LEAVE_LIMIT:?}"));
            }
            None => {}
        }
        // Whoever is next takes the seat in any case, as soon as it is empty.
        wait(EMPTY_LIMIT, || self.seat.is_vacant());
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
