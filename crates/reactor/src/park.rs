//! The race between going to sleep and being given work, as a small protocol.
//!
//! It is Dekker's: each side writes its own word, passes a full barrier, and only then reads the other's.
//! At least one of the two therefore sees the other's write, so either the sleeper finds the work or its
//! bringer finds the sleeper. Shadow doorbells do the same with a guest (`sluice_memory::doorbell`). The
//! functions are generic over the word, so that the same lines run here and in the model checker
//! (`tests/park_model.rs`).

use sluice_memory::doorbell::SharedWord;
use std::sync::atomic::{AtomicU32, Ordering};

/// A word that several may change at once.
pub trait ContestedWord: SharedWord {
    /// Writes `to` if `from` is there, as one step; whether it was.
    fn replace(&self, from: u32, to: u32) -> bool;
}

impl ContestedWord for AtomicU32 {
    fn replace(&self, from: u32, to: u32) -> bool {
        self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// The word with which a sleeping thread asks to be woken by those who bring it work.
#[derive(Debug, Default)]
pub struct Bed<W = AtomicU32>(W);

impl<W: ContestedWord> Bed<W> {
    /// A bed nobody lies in; `word` must be 0.
    pub fn new(word: W) -> Self {
        Self(word)
    }

    /// Sleeper: says that it is about to sleep. It must then look for work once more, and may only
    /// sleep if it finds none.
    pub fn lie_down(&self) {
        self.0.write(ASLEEP);
        W::full_barrier();
    }

    /// Sleeper: awake again, for whatever reason.
    pub fn get_up(&self) {
        self.0.write(AWAKE);
    }

    /// Bringer, *after* the work is where the sleeper looks: whether it must wake the sleeper. Of
    /// several bringers one is told to.
    pub fn must_wake(&self) -> bool {
        W::full_barrier();
        self.0.read() == ASLEEP && self.0.replace(ASLEEP, AWAKE)
    }
}
