//! Flushes: one fdatasync of a file at a time, for all who wait.

use sluice_command::Ticket;
use std::collections::BTreeSet;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long a target waits until it looks whether another one's fdatasync of the same file is over.
const LOOK_NS: u64 = 50_000;

/// How long at most: each time it waits twice as long as the time before.
const LOOK_MAX_NS: u64 = 5_000_000;

/// How long a target that has had one gives way to another that waits: longer than that one sleeps between two looks.
const WAY_NS: u64 = 2 * LOOK_MAX_NS;

/// What all targets on a file know of its fdatasyncs.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// One runs.
    runs: AtomicBool,
    /// Another target found that it runs, and waits.
    wanted: AtomicBool,
    /// The kernel has lost finished writes: no Flush succeeds any more.
    lost: AtomicBool,
    /// Doubts that were raised so far, and how many are open. These change while `open` is locked.
    raised: AtomicU64,
    count: AtomicUsize,
    /// Locked only when something has failed.
    open: Mutex<BTreeSet<Doubt>>,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, BTreeSet<Doubt>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_lost(&self) -> bool {
        self.lost.load(Acquire)
    }

    /// True if one is open that was raised before this one.
    fn is_in_doubt(&self, before: Doubt) -> bool {
        self.count.load(Acquire) > 0 && self.open().first().is_some_and(|first| *first < before)
    }
}

/// A write of which it is not known yet whether what failed was its flush, and with it others' data, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Doubt(u64);

/// Who waits for which fdatasync.
///
/// Two that ran at the same time could not be told apart: the kernel reports a lost write to one of them, and what a
/// device has lost to whoever asked it first. So there is one of a file, whichever of its targets began it; whoever
/// comes meanwhile shares the next; and after a failed one none succeeds: the kernel has forgotten which data was lost
/// and would say yes.
#[derive(Debug)]
pub(super) struct Syncs {
    /// The kernel has an fdatasync of this target.
    runs: bool,
    /// Those whom it is for. They may have ended meanwhile.
    running: Vec<Ticket>,
    waiting: Vec<Ticket>,
    /// Those whose fdatasync is over, and the first of the doubts that were raised after that.
    ended: Vec<Ticket>,
    ended_before: Doubt,
    /// Until when this target gives way to others.
    gives_way_ns: u64,
    /// Of the doubts, those that are this target's.
    doubts: Vec<Doubt>,
    /// How long it waits until it looks again.
    look_ns: u64,
    shared: Arc<Shared>,
}

impl Syncs {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            runs: false,
            running: Vec::new(),
            waiting: Vec::new(),
            ended: Vec::new(),
            ended_before: Doubt(0),
            gives_way_ns: 0,
            doubts: Vec::new(),
            look_ns: LOOK_NS,
            shared,
        }
    }

    /// The next one is for this ticket too.
    pub(super) fn join(&mut self, ticket: Ticket) {
        self.waiting.push(ticket);
    }

    /// Somebody waits, while none of this target's runs.
    pub(super) fn is_due(&self) -> bool {
        let somebody_waits = !self.waiting.is_empty() || !self.ended.is_empty();
        somebody_waits && !self.runs
    }

    /// A command has ended early: none is for it any more.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        for of in [&mut self.running, &mut self.waiting, &mut self.ended] {
            of.retain(|it| *it != ticket);
        }
    }

    /// Begins one for all who wait; true if it is to be started. Not if one runs, if what the last came to is in doubt,
    /// if it is another target's turn, or if data was lost; `answered` gets those that must not hope any more.
    pub(super) fn begin(&mut self, now_ns: u64, answered: &mut Vec<Ticket>) -> bool {
        if !self.is_due() || !self.ended.is_empty() {
            return false;
        }
        if now_ns < self.gives_way_ns && self.shared.wanted.load(Acquire) {
            return false;
        }
        // Whoever ran one has said what it came to before it was over.
        if self.shared.runs.swap(true, Acquire) {
            self.shared.wanted.store(true, Release);
            return false;
        }
        self.shared.wanted.store(false, Release);
        if self.shared.lost.load(Acquire) {
            self.shared.runs.store(false, Release);
            answered.append(&mut self.waiting);
            return false;
        }
        std::mem::swap(&mut self.running, &mut self.waiting);
        self.look_ns = LOOK_NS;
        self.runs = true;
        true
    }

    /// When to look again after one could not begin.
    pub(super) fn look_again_ns(&mut self, now_ns: u64) -> u64 {
        let at_ns = now_ns.saturating_add(self.look_ns);
        self.look_ns = (2 * self.look_ns).min(LOOK_MAX_NS);
        at_ns
    }

    /// The running one is over. Of those it was for, `answered` gets those as `conclude` says.
    pub(super) fn done(&mut self, succeeded: bool, now_ns: u64, answered: &mut Vec<Ticket>) -> bool {
        if !succeeded {
            self.lose();
        }
        self.runs = false;
        self.ended.append(&mut self.running);
        // Others that come meanwhile are of writes that are answered later: there may always be one.
        self.ended_before = Doubt(self.shared.raised.load(Acquire));
        self.gives_way_ns = now_ns.saturating_add(WAY_NS);
        self.shared.runs.store(false, Release);
        self.conclude(answered)
    }

    /// `answered` gets those whose fdatasync is over, if no doubt is left that was raised before it was; whether their
    /// data is on stable storage.
    pub(super) fn conclude(&mut self, answered: &mut Vec<Ticket>) -> bool {
        let in_doubt = !self.ended.is_empty() && self.shared.is_in_doubt(self.ended_before);
        // Whoever settles a doubt has said before what it came to.
        let durable = !self.shared.lost.load(Acquire);
        if !(durable && in_doubt) {
            answered.append(&mut self.ended);
        }
        durable
    }

    /// A write failed, or its flush did: none that has not ended by now succeeds before it is known which.
    pub(super) fn doubt(&mut self) -> Doubt {
        let mut open = self.shared.open();
        let number = self.shared.raised.load(Relaxed);
        let doubt = Doubt(number);
        open.insert(doubt);
        self.shared.count.store(open.len(), Release);
        // Whoever sees this one sees that it is open.
        self.shared.raised.store(number + 1, Release);
        self.doubts.push(doubt);
        doubt
    }

    /// It is known of one of them: if it was the flush, finished writes are lost.
    pub(super) fn settle(&mut self, doubt: Doubt, was_flush: bool) {
        if was_flush {
            self.lose();
        }
        self.doubts.retain(|it| *it != doubt);
        let mut open = self.shared.open();
        open.remove(&doubt);
        self.shared.count.store(open.len(), Release);
    }

    fn lose(&self) {
        self.shared.lost.store(true, Release);
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        // What they came to nobody will hear.
        for doubt in std::mem::take(&mut self.doubts) {
            self.settle(doubt, true);
        }
        if self.runs {
            self.done(false, 0, &mut Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> [Syncs; 2] {
        let shared = Arc::new(Shared::default());
        [Syncs::new(Arc::clone(&shared)), Syncs::new(shared)]
    }

    /// Begins one; whose it is, and who must not hope any more.
    fn begin(syncs: &mut Syncs) -> (bool, Vec<Ticket>) {
        let mut answered = Vec::new();
        (syncs.begin(0, &mut answered), answered)
    }

    fn done(syncs: &mut Syncs, succeeded: bool) -> Vec<Ticket> {
        let mut answered = Vec::new();
        assert_eq!(syncs.done(succeeded, 0, &mut answered), succeeded);
        answered
    }

    #[test]
    fn those_who_come_while_one_runs_share_the_next() {
        let [mut syncs, _] = two();
        syncs.join(Ticket(1));
        assert_eq!(begin(&mut syncs), (true, vec![]));
        syncs.join(Ticket(2));
        assert_eq!(begin(&mut syncs), (false, vec![]));
        syncs.join(Ticket(3));
        assert_eq!(done(&mut syncs, true), [Ticket(1)]);
        assert_eq!(begin(&mut syncs), (true, vec![]));
        assert_eq!(done(&mut syncs, true), [Ticket(2), Ticket(3)]);
        assert!(!syncs.is_due() && begin(&mut syncs) == (false, vec![]));
    }

    #[test]
    fn after_a_failed_one_nobody_hopes() {
        let [mut syncs, _] = two();
        syncs.join(Ticket(1));
        begin(&mut syncs);
        syncs.join(Ticket(2));
        assert_eq!(done(&mut syncs, false), [Ticket(1)]);
        assert_eq!(begin(&mut syncs), (false, vec![Ticket(2)]));
        syncs.join(Ticket(3));
        assert_eq!(begin(&mut syncs), (false, vec![Ticket(3)]));
    }

    fn conclude(syncs: &mut Syncs) -> (bool, Vec<Ticket>) {
        let mut answered = Vec::new();
        (syncs.conclude(&mut answered), answered)
    }

    #[test]
    fn while_a_write_is_in_doubt_none_succeeds() {
        for was_flush in [false, true] {
            let [mut one, mut other] = two();
            one.join(Ticket(1));
            begin(&mut one);
            let doubt = other.doubt();
            assert_eq!(done(&mut one, true), [], "it may have come too late");
            assert_eq!(begin(&mut one), (false, vec![]));
            assert!(one.is_due() && conclude(&mut one) == (true, vec![]));
            other.settle(doubt, was_flush);
            assert_eq!(conclude(&mut one), (!was_flush, vec![Ticket(1)]));
            assert!(!one.is_due());
        }
        // Nobody will ever know.
        let [mut one, mut other] = two();
        other.doubt();
        drop(other);
        one.join(Ticket(1));
        assert_eq!(begin(&mut one), (false, vec![Ticket(1)]));
    }

    /// Writers that fail again and again: there is always one that is in doubt.
    #[test]
    fn doubts_that_come_later_are_not_waited_for() {
        let [mut one, mut other] = two();
        let mut doubt = other.doubt();
        for _ in 0..3 {
            one.join(Ticket(1));
            assert!(begin(&mut one).0, "whatever it comes to");
            let next = other.doubt();
            other.settle(doubt, false);
            assert_eq!(done(&mut one, true), []);
            doubt = other.doubt();
            one.join(Ticket(2));
            assert_eq!(begin(&mut one), (false, vec![]));
            other.settle(next, false);
            assert_eq!(conclude(&mut one), (true, vec![Ticket(1)]));
            assert!(begin(&mut one).0);
            other.settle(doubt, false);
            assert_eq!(done(&mut one, true), [Ticket(2)]);
            doubt = other.doubt();
        }
        // One that came later and is settled first says nothing of those before.
        one.join(Ticket(1));
        begin(&mut one);
        assert_eq!(done(&mut one, true), []);
        let later = other.doubt();
        other.settle(later, false);
        assert_eq!(conclude(&mut one), (true, vec![]));
        other.settle(doubt, true);
        assert_eq!(conclude(&mut one), (false, vec![Ticket(1)]));
    }

    #[test]
    fn targets_on_one_file_take_turns_and_hear_of_each_others_losses() {
        let [mut one, mut other] = two();
        one.join(Ticket(1));
        other.join(Ticket(1));
        assert!(begin(&mut one).0);
        assert_eq!(begin(&mut other), (false, vec![]));
        assert!(other.is_due(), "it waits");
        done(&mut one, true);
        assert!(begin(&mut other).0);
        done(&mut other, false);
        one.join(Ticket(2));
        assert_eq!(begin(&mut one), (false, vec![Ticket(2)]));
    }

    #[test]
    fn one_that_has_had_its_turn_gives_way_for_a_while() {
        let [mut one, mut other] = two();
        let turn = |one: &mut Syncs| {
            one.join(Ticket(1));
            assert!(begin(one).0, "nobody else wants one");
        };
        turn(&mut one);
        done(&mut one, true);
        turn(&mut one);
        other.join(Ticket(1));
        assert!(!begin(&mut other).0);
        done(&mut one, true);
        one.join(Ticket(2));
        assert!(!begin(&mut one).0, "it is the other's turn");
        assert!(begin(&mut other).0);
        assert!(!begin(&mut one).0);
        done(&mut other, true);
        other.join(Ticket(2));
        assert!(!begin(&mut other).0, "it waits in its turn");
        // Who wanted it may be gone.
        assert!(other.begin(WAY_NS, &mut Vec::new()));
    }

    #[test]
    fn one_that_hangs_is_looked_at_ever_less_often() {
        let [mut one, mut other] = two();
        one.join(Ticket(1));
        begin(&mut one);
        other.join(Ticket(1));
        let mut looks = |until_ns| {
            let (mut now_ns, mut count) = (0, 0);
            while now_ns < until_ns {
                assert!(!other.begin(now_ns, &mut Vec::new()));
                now_ns = other.look_again_ns(now_ns);
                count += 1;
            }
            count
        };
        assert_eq!(looks(LOOK_NS), 1);
        assert!(looks(1_000_000_000) <= 210);
        done(&mut one, true);
        assert!(other.begin(0, &mut Vec::new()));
        assert_eq!(other.look_again_ns(0), LOOK_NS, "the next one may be short");
    }

    /// Their commands end early while the kernel is at it: the next one waits for its answer all the same.
    #[test]
    fn one_goes_on_without_those_it_is_for_and_is_heard_of_all_the_same() {
        for succeeds in [true, false] {
            let [mut one, _] = two();
            (1..=2).for_each(|number| one.join(Ticket(number)));
            assert!(begin(&mut one).0);
            (1..=2).for_each(|number| one.leave(Ticket(number)));
            one.join(Ticket(3));
            assert_eq!(begin(&mut one), (false, vec![]), "two could not be told apart");
            assert_eq!(done(&mut one, succeeds), []);
            let lost = if succeeds { vec![] } else { vec![Ticket(3)] };
            assert_eq!(begin(&mut one), (succeeds, lost));
        }
        let [mut one, mut other] = two();
        one.join(Ticket(1));
        assert!(begin(&mut one).0);
        one.leave(Ticket(1));
        drop(one);
        other.join(Ticket(2));
        assert_eq!(begin(&mut other), (false, vec![Ticket(2)]));
    }

    #[test]
    fn one_that_nobody_will_hear_of_is_taken_for_failed() {
        let [mut one, mut other] = two();
        one.join(Ticket(1));
        begin(&mut one);
        drop(one);
        other.join(Ticket(2));
        assert_eq!(begin(&mut other), (false, vec![Ticket(2)]));
    }
}
