//! Sets in which one part or another fails, alone or together with others, at any step.

use super::parts::Partly;
use super::rig::{Rig, SIZE};
use super::{LIVES, live, start};
use crate::Members;
use sluice_sim::seeds;

/// Faults besides members that come and go.
#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    /// Power loss of one member.
    power: bool,
    /// Failed flush that loses the data it should make durable.
    flushes: bool,
    /// Write that times out on a member, and is done later.
    late: bool,
    /// Member that becomes another disk, or an older one, while the set is alive.
    swaps: bool,
    /// Members and a log that are other disks, or older ones, after a restart.
    replaced: bool,
    /// Power cut that tears a block.
    torn: bool,
    /// Orders for the copy and the comparison.
    jobs: bool,
}

impl Steps {
    const ALL: Self =
        Self { power: true, flushes: true, late: true, swaps: true, replaced: true, torn: true, jobs: true };
}

/// Run with these faults, and its counters.
struct Run {
    rig: Rig,
    steps: Steps,
    members: usize,
    /// Older contents of a member.
    older: Option<Vec<u8>>,
    orders: u64,
}

impl Run {
    fn new(seed: u64, steps: Steps) -> Self {
        let promotes = !seed.is_multiple_of(3);
        let members = if promotes { 2 + (seed % 2) as usize } else { 2 };
        let mut rig = Rig::new(seed, members, promotes);
        if steps.torn {
            rig.set_unit(128);
        }
        Self { rig, steps, members, older: None, orders: 0 }
    }

    fn member(&mut self) -> usize {
        self.rig.random.below(self.members as u64) as usize
    }

    /// Applies a random fault to one part.
    fn happens(&mut self) {
        let (member, steps) = (self.member(), self.steps);
        if steps.jobs && self.rig.random.one_in(3) {
            return self.rig.order_job();
        }
        match self.rig.random.below(8) {
            0 | 1 if steps.power => self.rig.lose_power_of(member),
            2 | 3 if steps.flushes => {
                let is_cached = self.rig.random.one_in(2);
                self.rig.fail_next_flush_of(member, is_cached);
            }
            4 if steps.late => {
                self.rig.parts.late = [None, Some(10), Some(100)][self.rig.random.below(3) as usize]
            }
            5 if steps.swaps && self.rig.random.one_in(4) => {
                let older = self.older.take();
                self.rig.swap(member, older.as_deref());
            }
            6 => self.rig.up[member] = !self.rig.up[member],
            7 => self.rig.log_up = !self.rig.log_up,
            _ => self.older = Some(self.rig.image(member)),
        }
    }

    fn life(&mut self) {
        for _ in 0..self.rig.random.between(1, 6) {
            self.happens();
            live(&mut self.rig);
            if self.rig.random.one_in(2) {
                self.rig.read_all();
            }
        }
        (self.rig.log_up, self.rig.parts.late) = (true, None);
    }

    /// Restarts the process, with or without a power cut, which may find other disks.
    fn restart(&mut self) {
        let cut = self.rig.random.one_in(2);
        let status = self.rig.mirror.status();
        let there = (0..self.members).filter(|member| !self.rig.parts.is_swapped(*member));
        let there = there.fold(Members::NONE, |all, member| all.with(Members::one(member)));
        let mut good = status.current.and(there);
        // In regions where the source may have lost data, the other members are not read.
        if good.contains(status.source) {
            good = Members::one(status.source);
        }
        // Without the last loss in the log, a member may be served that lacks only writes that were not acknowledged.
        let all = Members::first(self.members);
        let mut whole = if self.rig.mirror.is_noted() { status.current.and(there) } else { all };
        self.rig.restart(cut);
        if self.steps.replaced {
            for member in 0..self.members {
                if self.rig.random.one_in(6) {
                    let older = self.older.take();
                    self.rig.replace(member, older.as_deref());
                    good = good.without(Members::one(member));
                    whole = whole.without(Members::one(member));
                }
            }
            if self.rig.random.one_in(8) {
                self.rig.blank_log();
                // A blank log is taken without an order where all other members are new.
                whole = all;
            }
        }
        self.open(good, whole);
    }

    /// Opens the set, by an operator's order if it requests one: one of the `good` members is right. Without an
    /// order only a `whole` member is served: no other has everything by the log.
    fn open(&mut self, good: Members, whole: Members) {
        let rig = &mut self.rig;
        rig.up.fill(true);
        while rig.ready.is_none() {
            if !rig.turn() {
                rig.let_time_go_by();
            }
        }
        let primary = Members::one(0);
        let right = if rig.config.promotes { good.lowest() } else { good.and(primary).lowest() };
        if rig.mirror.asks() {
            self.orders += 1;
            rig.ready = None;
            rig.mirror.copy_from(right.unwrap_or(0)).expect("it asks for it");
            rig.history.is_ordered();
            rig.cut = true;
            start(rig);
        } else {
            start(rig);
            let source = rig.mirror.status().source;
            assert!(whole.contains(source), "member {source} is served, and only {whole:?} had everything");
        }
        if right.is_none() {
            // No disk is left that has everything, and the operator chooses to go on with an incomplete one.
            let source = rig.mirror.status().source;
            rig.believe(source);
        }
        rig.read_all();
    }
}

/// Counters of all runs of a test.
#[derive(Debug, Default)]
struct Happened {
    runs: u64,
    power_losses: u64,
    lost_flushes: u64,
    timeouts: u64,
    swaps: u64,
    orders: u64,
    cancelled: u64,
}

impl Happened {
    /// Panics if a fault happened too rarely for the test to show anything. With fewer seeds than usual,
    /// there is no limit.
    fn at_least(&self, usual: u64, happened: u64, least: u64) {
        assert!(self.runs < usual || happened > least, "{self:?}");
    }
}

fn run(steps: Steps, failed_once: &[u64], count: u64) -> Happened {
    let mut happened = Happened::default();
    for seed in seeds(failed_once, count) {
        let mut run = Run::new(seed, steps);
        start(&mut run.rig);
        for _ in 0..LIVES {
            run.life();
            run.restart();
            if run.rig.random.one_in(3) {
                run.rig.come_to_rest();
            }
        }
        run.rig.come_to_rest();
        run.rig.restart(true);
        start(&mut run.rig);
        run.rig.read_all();
        run.rig.come_to_rest();
        let parts = &run.rig.parts;
        happened.runs += 1;
        happened.power_losses += parts.power_losses;
        happened.lost_flushes += parts.lost_flushes;
        happened.timeouts += parts.timeouts;
        happened.swaps += parts.swaps;
        happened.orders += run.orders;
        happened.cancelled += run.rig.cancelled;
    }
    happened
}

#[test]
fn a_member_that_loses_power_alone_loses_no_write_of_the_set() {
    let happened = run(Steps { power: true, ..Steps::default() }, &[1078], 40);
    happened.at_least(40, happened.power_losses, 400);
}

#[test]
fn a_flush_that_fails_and_loses_writes_is_told_and_copies_are_equal() {
    let happened = run(Steps { flushes: true, ..Steps::default() }, &[1423], 40);
    happened.at_least(40, happened.lost_flushes, 100);
}

#[test]
fn a_write_that_times_out_and_is_done_later_spoils_no_copy() {
    let happened = run(Steps { late: true, ..Steps::default() }, &[], 40);
    happened.at_least(40, happened.timeouts, 400);
}

#[test]
fn a_member_that_becomes_another_disk_is_believed_neither_now_nor_later() {
    let happened = run(Steps { swaps: true, ..Steps::default() }, &[], 40);
    happened.at_least(40, happened.swaps, 40);
}

#[test]
fn disks_that_are_others_after_a_restart_are_not_believed() {
    let happened = run(Steps { replaced: true, ..Steps::default() }, &[493], 40);
    happened.at_least(40, happened.orders, 40);
}

#[test]
fn a_block_that_a_power_cut_tears_is_torn_nowhere_if_it_was_flushed() {
    run(Steps { torn: true, ..Steps::default() }, &[], 40);
}

#[test]
fn a_copy_that_is_paused_cancelled_and_resumed_leaves_equal_members() {
    let happened = run(Steps { jobs: true, ..Steps::default() }, &[], 40);
    happened.at_least(40, happened.cancelled, 40);
}

#[test]
fn whatever_happens_to_one_part_after_the_other() {
    run(Steps::ALL, &[1253, 1430, 2825, 7129, 10055, 61519], 60);
}

/// Fails each write to the log in turn, with no effect, a partial one, or the whole one. The next process
/// finds that log, with or without a power cut.
#[test]
fn an_error_at_every_write_of_the_log() {
    for seed in seeds(&[], 3) {
        let begun = |fault: Option<(u64, Partly)>| {
            let mut rig = Rig::new(seed, 2 + (seed % 2) as usize, !seed.is_multiple_of(3));
            start(&mut rig);
            rig.come_to_rest();
            let now = rig.parts.log_writes;
            rig.parts.log_fault = fault.map(|(at, partly)| (now + at, partly));
            (0..150).for_each(|turn| {
                if turn % 40 == 20 {
                    let member = rig.up.len() - 1;
                    rig.up[member] = !rig.up[member];
                }
                rig.write();
                (0..3).for_each(|_| {
                    if !rig.turn() {
                        rig.let_time_go_by();
                    }
                });
            });
            (rig.parts.log_writes - now, rig)
        };
        let (writes, _) = begun(None);
        assert!(writes > 10, "{writes}");
        for at in 1..=writes {
            for (partly, cut) in [Partly::Nothing, Partly::Some, Partly::All]
                .into_iter()
                .flat_map(|partly| [(partly, false), (partly, true)])
            {
                let (_, mut rig) = begun(Some((at, partly)));
                rig.log_up = true;
                rig.restart(cut);
                start(&mut rig);
                rig.read_all();
                rig.come_to_rest();
            }
        }
    }
}

/// Checks that the model notices a read from another disk.
#[test]
fn the_model_notices_another_disk() {
    let mut rig = Rig::new(1, 2, true);
    start(&mut rig);
    rig.come_to_rest();
    let content = rig.image(0);
    rig.swap(0, None);
    assert!(rig.image(0) != content && content.len() == SIZE as usize);
}
