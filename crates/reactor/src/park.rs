//! Protocol for the race between going to sleep and receiving work.
//!
//! The protocol is Dekker's: each side writes its own word, passes a full barrier, and only then reads the
//! other's. At least one of the two therefore sees the other's write, so either the sleeper finds the work or
//! the waker finds the sleeper. Shadow doorbells use the same protocol with a guest
//! (`sluice_memory::doorbell`). The functions are generic over the word, so that the same lines run here and
//! in the model checker (`tests/park_model.rs`).

use sluice_memory::doorbell::SharedWord;
use std::sync::atomic::{AtomicU32, Ordering};

/// A word that several threads may change at once.
pub trait ContestedWord: SharedWord {
    /// Replaces `from` by `to` atomically; returns whether `from` was there.
    fn replace(&self, from: u32, to: u32) -> bool;
}

impl ContestedWord for AtomicU32 {
    fn replace(&self, from: u32, to: u32) -> bool {
        self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// The word by which a sleeping thread requests a wake-up from threads that bring it work.
#[derive(Debug, Default)]
pub struct ParkFlag<W = AtomicU32>(W);

impl<W: ContestedWord> ParkFlag<W> {
    /// Creates the flag of a thread that is awake; `word` must be 0.
    pub fn new(word: W) -> Self {
        Self(word)
    }

    /// Announces sleep; called by the sleeper. The sleeper must then look for work once more, and may only
    /// sleep if it finds none.
    pub fn announce_sleep(&self) {
        self.0.write(ASLEEP);
        W::full_barrier();
    }

    /// Withdraws the announcement; called by the sleeper when it is awake again, for any reason.
    pub fn withdraw(&self) {
        self.0.write(AWAKE);
    }

    /// Returns whether the caller must wake the sleeper. Called by a waker, *after* the work is where the
    /// sleeper looks. Of several wakers one receives true.
    pub fn must_wake(&self) -> bool {
        W::full_barrier();
        self.0.read() == ASLEEP && self.0.replace(ASLEEP, AWAKE)
    }
}
