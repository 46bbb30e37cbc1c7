//! Counters of remote controllers, for the owner to read while their groups are remote.

use crate::state::health::{Busy, Counts};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Counters of one remote controller since it received the group. Only the remote controller writes them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Number of turns, odd during a turn. Commands whose completion the host sees may not be counted yet
    /// during a turn.
    turns: AtomicU64,
    /// Commands and bytes by operation.
    succeeded: [[AtomicU64; 2]; Counts::OPERATIONS],
    failed: AtomicU64,
    media_errors: AtomicU64,
    busy_minutes: AtomicU64,
    minute_ends_ns: AtomicU64,
    /// Entries of the remote error log.
    logged: AtomicU64,
    in_flight: AtomicU64,
}

/// Methods of the remote controller.
impl Tally {
    /// Marks the start of a turn.
    #[inline]
    pub(crate) fn open(&self) {
        self.turns.store(self.turns.load(Relaxed) | 1, Release);
    }

    /// Marks the end of a turn.
    #[inline]
    pub(crate) fn close(&self) {
        self.turns.store((self.turns.load(Relaxed) | 1) + 1, Release);
    }

    pub(crate) fn put(&self, counts: &Counts, busy: Busy, logged: u64, in_flight: u32) {
        for (words, moved) in self.succeeded.iter().zip(&counts.succeeded) {
            words[0].store(moved.commands, Relaxed);
            words[1].store(moved.bytes, Relaxed);
        }
        self.failed.store(counts.failed, Relaxed);
        self.media_errors.store(counts.media_errors, Relaxed);
        self.busy_minutes.store(busy.minutes, Relaxed);
        self.minute_ends_ns.store(busy.minute_ends_ns, Relaxed);
        self.logged.store(logged, Relaxed);
        self.in_flight.store(in_flight.into(), Relaxed);
    }
}

/// Methods of the owner.
impl Tally {
    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (words, moved) in self.succeeded.iter().zip(&mut counts.succeeded) {
            (moved.commands, moved.bytes) = (words[0].load(Relaxed), words[1].load(Relaxed));
        }
        (counts.failed, counts.media_errors) = (self.failed.load(Relaxed), self.media_errors.load(Relaxed));
        counts
    }

    fn busy(&self) -> Busy {
        Busy { minutes: self.busy_minutes.load(Relaxed), minute_ends_ns: self.minute_ends_ns.load(Relaxed) }
    }
}

/// Tallies of a drive's remote controllers.
#[derive(Debug, Default)]
pub(crate) struct Tallies(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    tally: Arc<Tally>,
    /// Turn whose end is awaited.
    awaited: Option<u64>,
}

impl Tallies {
    /// Adds a tally for a group that migrates.
    pub(crate) fn begin(&mut self) -> Arc<Tally> {
        let tally = Arc::new(Tally::default());
        self.0.push(Entry { tally: tally.clone(), awaited: None });
        tally
    }

    /// Removes the tally of a group that is back, and returns its counters for the owner to add.
    pub(crate) fn end(&mut self, tally: &Arc<Tally>) -> (Counts, Busy) {
        self.0.retain(|entry| !Arc::ptr_eq(&entry.tally, tally));
        (tally.counts(), tally.busy())
    }

    /// Adds the counters of all tallies.
    pub(crate) fn add_to(&self, counts: &mut Counts) {
        self.0.iter().for_each(|entry| counts.add(&entry.tally.counts()));
    }

    /// Returns the busy minutes. A minute in which several controllers were busy counts once.
    pub(crate) fn busy_minutes(&self, here: u64) -> u64 {
        self.0.iter().fold(here, |most, entry| most.max(entry.tally.busy().minutes))
    }

    /// Returns the entries of all remote error logs.
    pub(crate) fn logged(&self) -> u64 {
        self.0.iter().map(|entry| entry.tally.logged.load(Relaxed)).sum()
    }

    /// Returns the remote commands in flight.
    pub(crate) fn in_flight(&self) -> u32 {
        self.0.iter().map(|entry| entry.tally.in_flight.load(Relaxed) as u32).sum()
    }

    /// Returns whether all commands are counted whose completion a host has seen. If not, they soon will be:
    /// when the current turns of the remote controllers are over.
    pub(crate) fn are_complete(&mut self) -> bool {
        let mut complete = true;
        for Entry { tally, awaited } in &mut self.0 {
            let turn = tally.turns.load(Acquire);
            complete &= match *awaited {
                Some(awaited) => turn != awaited,
                None => {
                    *awaited = (turn & 1 == 1).then_some(turn);
                    awaited.is_none()
                }
            };
        }
        if complete {
            self.0.iter_mut().for_each(|entry| entry.awaited = None);
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_in_a_turn_is_complete_when_that_is_over() {
        let mut tallies = Tallies::default();
        let [idle, busy] = [tallies.begin(), tallies.begin()];
        assert!(tallies.are_complete());
        busy.open();
        assert!(!tallies.are_complete());
        idle.open();
        assert!(!tallies.are_complete(), "the turn of the one goes on");
        busy.close();
        busy.open();
        assert!(!tallies.are_complete(), "the other's has begun since that was looked at");
        idle.close();
        assert!(tallies.are_complete(), "a turn of each is over, whatever came after it");
        assert!(!tallies.are_complete(), "and that was for one who asked then");
        // However many turns there were before.
        for _ in 0..5 {
            busy.close();
            busy.open();
            assert!(tallies.are_complete());
            assert!(!tallies.are_complete());
        }
    }

    #[test]
    fn a_returned_group_is_counted_once() {
        let mut tallies = Tallies::default();
        let tally = tallies.begin();
        let mut counts = Counts::default();
        (counts.failed, counts.succeeded[1].bytes) = (3, 512);
        tally.put(&counts, Busy { minutes: 7, minute_ends_ns: 9 }, 3, 2);
        let mut sum = Counts::default();
        tallies.add_to(&mut sum);
        assert_eq!((sum.failed, sum.succeeded[1].bytes), (3, 512));
        assert_eq!([tallies.busy_minutes(5), tallies.busy_minutes(8)], [7, 8]);
        assert_eq!((tallies.logged(), tallies.in_flight()), (3, 2));
        let (counts, busy) = tallies.end(&tally);
        assert_eq!((counts.failed, busy.minutes, busy.minute_ends_ns), (3, 7, 9));
        assert_eq!((tallies.logged(), tallies.busy_minutes(0)), (0, 0));
    }
}
