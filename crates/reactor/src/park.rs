//! The race between going to sleep and being given work, as two small protocols.
//!
//! Both are Dekker's: each side writes its own word, passes a full barrier, and only then reads the
//! other's. At least one of the two therefore sees the other's write, so either the sleeper finds the
//! work or the other side finds the sleeper. The functions are generic over the word, so that the same
//! lines run on process memory, on a page shared with a guest, and in the model checker
//! (`tests/park_model.rs`).

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A 32-bit word that two parties share.
pub trait SharedWord {
    /// Reads; what the other side wrote before this value is seen.
    fn read(&self) -> u32;
    /// Writes; what this side wrote before is seen by who reads the value.
    fn write(&self, value: u32);
    /// Writes `to` if `from` is there, as one step; whether it was.
    fn replace(&self, from: u32, to: u32) -> bool;
    /// A full barrier between everything before and everything after.
    fn full_barrier();
}

impl SharedWord for AtomicU32 {
    fn read(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    fn write(&self, value: u32) {
        self.store(value, Ordering::Release);
    }

    fn replace(&self, from: u32, to: u32) -> bool {
        self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn full_barrier() {
        fence(Ordering::SeqCst);
    }
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// The word with which a sleeping thread asks to be woken by those who bring it work.
#[derive(Debug, Default)]
pub struct Bed<W = AtomicU32>(W);

impl<W: SharedWord> Bed<W> {
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

/// Device side of a shadow doorbell (NVMe Base 2.1, Doorbell Buffer Config command): asks the host to
/// ring when it moves the tail past `last_seen`, then looks at the shadow once more.
///
/// Returns the new tail if it has moved meanwhile: then the queue must be looked at instead of slept
/// on. A tail is whatever the host wrote; check it.
pub fn arm_event_index<W: SharedWord>(event_index: &W, shadow_tail: &W, last_seen: u32) -> Option<u32> {
    event_index.write(last_seen);
    W::full_barrier();
    let tail = shadow_tail.read();
    (tail != last_seen).then_some(tail)
}

/// Host side of a shadow doorbell, as Linux does it: publishes `tail`, then says whether the real
/// doorbell must be rung too.
pub fn publish_tail<W: SharedWord>(shadow_tail: &W, event_index: &W, tail: u16) -> bool {
    let old = shadow_tail.read() as u16;
    shadow_tail.write(u32::from(tail));
    W::full_barrier();
    passes(event_index.read() as u16, tail, old)
}

/// Whether a move of the tail from `old` to `new` passes the event index, in 16-bit wrapping terms.
#[must_use]
pub fn passes(event_index: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event_index).wrapping_sub(1) < new.wrapping_sub(old)
}
