//! Sleeping: an idle reactor does nothing, an idle task costs its neighbours nothing.

use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use sluice_reactor::{Arm, IdlePolicy, ReactorConfig, ReactorHandle, now_ns};

use crate::probe::{ASLEEP, add, asleep, eventually, reactor, with};

#[test]
fn an_idle_reactor_makes_no_turns() {
    let reactor = reactor();
    for _ in 0..10 {
        add(&reactor, ASLEEP);
    }
    asleep(&reactor);
    let before = reactor.counters();
    thread::sleep(Duration::from_millis(100));
    let after = reactor.counters();
    assert_eq!(before, after);
    reactor.stop();
}

#[test]
fn a_reactor_that_always_polls_never_sleeps() {
    let idle = IdlePolicy { always_poll: true, ..IdlePolicy::default() };
    let config = ReactorConfig { idle, ..ReactorConfig::default() };
    let reactor = ReactorHandle::start(config).expect("io_uring works here");
    let (_, memory) = add(&reactor, ASLEEP);
    eventually("many turns", || memory.turns.load(SeqCst) > 10_000);
    assert_eq!(memory.arms.load(SeqCst), 0);
    assert_eq!(reactor.counters().sleeps, 0);
    reactor.stop();
}

#[test]
fn a_busy_task_keeps_its_idle_neighbours_asleep() {
    let reactor = reactor();
    let (_, idle) = add(&reactor, ASLEEP);
    let (_, busy) = add(&reactor, Arm::Busy);
    eventually("the idle task sleeps", || idle.arms.load(SeqCst) > 0);
    let (idle_turns, busy_turns) = (idle.turns.load(SeqCst), busy.turns.load(SeqCst));
    eventually("the busy task is polled", || busy.turns.load(SeqCst) > busy_turns + 10_000);
    assert_eq!(idle.turns.load(SeqCst), idle_turns);
    reactor.stop();
}

#[test]
fn a_task_that_finds_work_when_it_arms_goes_on() {
    let reactor = reactor();
    let (_, memory) = add(&reactor, Arm::Busy);
    eventually("several attempts to sleep", || memory.arms.load(SeqCst) > 3);
    let counters = reactor.counters();
    assert_eq!(counters.task_sleeps, 0);
    assert_eq!(memory.disarms.load(SeqCst), 0);
    reactor.stop();
}

#[test]
fn a_deadline_wakes_its_task_and_not_before() {
    let reactor = reactor();
    let until_ns = now_ns() + 50_000_000;
    let (id, memory) = add(&reactor, Arm::Asleep { until: Some(until_ns) });
    eventually("the task was woken", || memory.disarms.load(SeqCst) >= 1);
    assert!(now_ns() >= until_ns);
    with(&reactor, id, |probe| probe.sleep = ASLEEP);
    asleep(&reactor);
    reactor.stop();
}

#[test]
fn a_hundred_tasks_that_nothing_can_wake_share_their_wake_ups() {
    let reactor = reactor();
    let memories: Vec<_> = (0..100).map(|_| add(&reactor, Arm::Timed).1).collect();
    // Long enough for all to have come to the longest interval.
    eventually("each was looked at thirty times", || {
        memories.iter().all(|memory| memory.turns.load(SeqCst) > 30)
    });
    let (before, looks_before) = (reactor.counters(), looks(&memories));
    eventually("a thousand more looks", || looks(&memories) > looks_before + 2_000);
    let wake_ups = reactor.counters().sleeps - before.sleeps;
    assert!(wake_ups <= 40, "2,000 looks at 100 tasks took {wake_ups} wake-ups");
    reactor.stop();
}

fn looks(memories: &[std::sync::Arc<crate::probe::Memory>]) -> u64 {
    memories.iter().map(|memory| memory.turns.load(SeqCst)).sum()
}

#[test]
fn a_look_that_finds_work_brings_a_task_back() {
    let reactor = reactor();
    let (_, memory) = add(&reactor, Arm::Timed);
    eventually("the task is looked at on a timer", || reactor.counters().task_sleeps > 0);
    memory.work.store(1, SeqCst);
    eventually("the work was found", || memory.work.load(SeqCst) == 0);
    eventually("the task was disarmed", || memory.disarms.load(SeqCst) == 1);
    reactor.stop();
}
