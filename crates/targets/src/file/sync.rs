//! Flushes: one fdatasync of a file at a time, for all commands that wait.

use super::shared_sync::{Doubt, LOOK_MAX_NS, LOOK_NS, Run, Shared, WAY_NS};
use sluice_command::Ticket;
use sluice_reactor::Results;
use std::sync::Arc;

/// The commands that wait for each fdatasync.
///
/// Results of two fdatasyncs at the same time would be ambiguous. The kernel reports a lost write to one of
/// them, and a device reports its lost data to the first request. So one fdatasync of a file runs at a time,
/// whichever of its targets began it, and commands that arrive meanwhile share the next. After a failed one
/// none succeeds: the kernel has forgotten which data was lost, and would report success.
#[derive(Debug)]
pub(super) struct Syncs {
    /// Whether the kernel has an fdatasync of this target.
    runs: bool,
    /// Commands that the running fdatasync is for. They may have ended meanwhile.
    running: Vec<Ticket>,
    waiting: Vec<Ticket>,
    /// Commands whose fdatasync has ended; `ended_before`: the first doubt that was raised after that.
    ended: Vec<Ticket>,
    ended_before: Doubt,
    /// Time until which this target gives way to others.
    gives_way_ns: u64,
    /// Open doubts of this target.
    doubts: Vec<Doubt>,
    /// Delay before the next check.
    look_ns: u64,
    run: Arc<Run>,
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
            run: Arc::new(Run::new(Arc::clone(&shared))),
            shared,
        }
    }

    /// Returns the receiver of the results of all fdatasyncs of this target.
    pub(super) fn results(&self) -> Arc<dyn Results> {
        Arc::clone(&self.run) as Arc<dyn Results>
    }

    /// Adds a command to the next fdatasync.
    pub(super) fn join(&mut self, ticket: Ticket) {
        self.waiting.push(ticket);
    }

    /// Returns whether commands wait, while no fdatasync of this target runs.
    pub(super) fn is_due(&self) -> bool {
        let somebody_waits = !self.waiting.is_empty() || !self.ended.is_empty();
        somebody_waits && !self.runs
    }

    /// Returns whether no command waits, and the kernel has no fdatasync of this target.
    pub(super) fn is_idle(&self) -> bool {
        !self.runs && !self.is_due() && self.doubts.is_empty()
    }

    /// Removes a command that has ended early.
    pub(super) fn leave(&mut self, ticket: Ticket) {
        for of in [&mut self.running, &mut self.waiting, &mut self.ended] {
            of.retain(|it| *it != ticket);
        }
    }

    /// Begins an fdatasync for all waiting commands; returns whether to start it. It does not begin while one
    /// runs, while the last result is in doubt, or in another target's turn. After data was lost none begins:
    /// `answered` receives the waiting commands, which fail.
    pub(super) fn begin(&mut self, now_ns: u64, answered: &mut Vec<Ticket>) -> bool {
        if !self.is_due() || !self.ended.is_empty() {
            return false;
        }
        if now_ns < self.gives_way_ns && self.shared.is_wanted() {
            return false;
        }
        if !self.shared.take_turn() {
            return false;
        }
        if self.shared.has_lost() {
            self.shared.end_turn();
            answered.append(&mut self.waiting);
            return false;
        }
        std::mem::swap(&mut self.running, &mut self.waiting);
        self.look_ns = LOOK_NS;
        self.runs = true;
        self.run.begin();
        true
    }

    /// Begins the running fdatasync once more, after the kernel did nothing.
    pub(super) fn repeat(&mut self) {
        self.run.begin();
    }

    /// Returns the time of the next check, after an fdatasync could not begin.
    pub(super) fn look_again_ns(&mut self, now_ns: u64) -> u64 {
        let at_ns = now_ns.saturating_add(self.look_ns);
        self.look_ns = (2 * self.look_ns).min(LOOK_MAX_NS);
        at_ns
    }

    /// Ends the running fdatasync. `answered` receives its commands, and the result is returned, as by
    /// `conclude`.
    pub(super) fn done(&mut self, succeeded: bool, now_ns: u64, answered: &mut Vec<Ticket>) -> bool {
        if !succeeded {
            self.shared.lose();
        }
        self.runs = false;
        self.ended.append(&mut self.running);
        // Later doubts belong to writes that are answered later, and are not waited for: there may always be
        // one.
        self.ended_before = self.shared.next_doubt();
        self.gives_way_ns = now_ns.saturating_add(WAY_NS);
        self.shared.end_turn();
        self.conclude(answered)
    }

    /// Moves the commands whose fdatasync has ended to `answered`, once no doubt from before its end is open,
    /// or data was lost. Returns whether their data is on stable storage.
    pub(super) fn conclude(&mut self, answered: &mut Vec<Ticket>) -> bool {
        let in_doubt = !self.ended.is_empty() && self.shared.is_in_doubt(self.ended_before);
        // A doubt is settled after its result was stored.
        let durable = !self.shared.has_lost();
        if !(durable && in_doubt) {
            answered.append(&mut self.ended);
        }
        durable
    }

    /// Raises a doubt: a write failed, or its flush did. No fdatasync that has not ended succeeds before the
    /// doubt is settled.
    pub(super) fn doubt(&mut self) -> Doubt {
        let doubt = self.shared.raise();
        self.doubts.push(doubt);
        doubt
    }

    /// Settles a doubt. If the flush failed, finished writes are lost.
    pub(super) fn settle(&mut self, doubt: Doubt, was_flush: bool) {
        if was_flush {
            self.shared.lose();
        }
        self.doubts.retain(|it| *it != doubt);
        self.shared.settle(doubt);
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        // The results of open doubts will never arrive, so they count as failures.
        for doubt in std::mem::take(&mut self.doubts) {
            self.settle(doubt, true);
        }
        if self.runs {
            self.run.abandon();
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

    /// Begins an fdatasync. Returns whether it begins, and the commands that fail.
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

    /// Checks that a command that ends early takes no other with it, wherever both are.
    #[test]
    fn one_that_leaves_leaves_alone() {
        let [mut one, mut other] = two();
        (1..=3).for_each(|number| one.join(Ticket(number)));
        one.leave(Ticket(2));
        assert!(begin(&mut one).0);
        one.leave(Ticket(1));
        one.join(Ticket(4));
        assert_eq!(done(&mut one, true), [Ticket(3)]);
        assert!(begin(&mut one).0);
        one.join(Ticket(5));
        one.leave(Ticket(4));
        let doubt = other.doubt();
        assert_eq!(done(&mut one, true), []);
        other.settle(doubt, false);
        assert!(begin(&mut one).0);
        one.leave(Ticket(5));
        assert!(!one.is_idle(), "the kernel has its fdatasync");
        assert_eq!(done(&mut one, true), []);
        assert!(one.is_idle());
    }

    #[test]
    fn a_target_with_a_doubt_is_not_idle_and_each_doubt_is_its_own() {
        let [mut one, mut other] = two();
        assert!(one.is_idle() && !one.is_due());
        let [first, second] = [(); 2].map(|()| one.doubt());
        one.settle(first, false);
        assert!(!one.is_idle() && other.is_idle());
        one.settle(second, false);
        assert!(one.is_idle() && !one.shared.has_lost());
        one.join(Ticket(1));
        assert!(!one.is_idle() && one.is_due());
        one.leave(Ticket(1));
        // A target without open doubts loses nothing when it goes.
        let mut third = Syncs::new(Arc::clone(&one.shared));
        let doubt = third.doubt();
        third.settle(doubt, false);
        drop(third);
        assert!(!one.shared.has_lost());
        // The other doubt is open when the target goes.
        let first = one.doubt();
        one.doubt();
        one.settle(first, false);
        drop(one);
        other.join(Ticket(1));
        assert_eq!(begin(&mut other), (false, vec![Ticket(1)]));
        assert!(other.shared.has_lost());
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
        // A dropped doubt is never settled.
        let [mut one, mut other] = two();
        other.doubt();
        drop(other);
        one.join(Ticket(1));
        assert_eq!(begin(&mut one), (false, vec![Ticket(1)]));
    }

    /// Checks writers that fail again and again, so that there is always a doubt.
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
        // A later doubt that is settled first does not settle the earlier ones.
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
        // The target that waited may be gone.
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

    /// Checks commands that end early while the kernel has their fdatasync: the next one waits for its result
    /// all the same.
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

    /// Checks a target that goes while the kernel has its fdatasync, which ends later.
    #[test]
    fn the_result_of_one_counts_after_its_target_has_gone() {
        for succeeds in [true, false] {
            let [mut one, mut other] = two();
            one.join(Ticket(1));
            begin(&mut one);
            let results = one.results();
            drop(one);
            other.join(Ticket(2));
            assert_eq!(begin(&mut other), (false, vec![]), "it runs");
            results.ended(if succeeds { 0 } else { -5 });
            let lost = if succeeds { vec![] } else { vec![Ticket(2)] };
            assert_eq!(begin(&mut other), (succeeds, lost));
        }
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
