//! Sleeping: an idle reactor does nothing, an idle task costs its neighbours nothing.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use rustix::event::EventfdFlags;
use sluice_reactor::{Arm, IdlePolicy, Io, PollFlags, ReactorConfig, ReactorHandle, Task, TaskId, now_ns};

use crate::probe::{ASLEEP, add, asleep, eventually, new_eventfd, reactor, with};

const TIMED: Arm = Arm::Timed { until: None };

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
    assert_eq!((reactor.counters().task_sleeps, reactor.counters().sleeps), (0, 0));
    // Otherwise the task would not find out when it has work to do.
    eventually("the task is asked to arm now and then", || memory.arms.load(SeqCst) > 2);
    eventually("it is disarmed at once", || memory.disarms.load(SeqCst) > 1);
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

/// Checks a task that never does the work that it is woken for.
#[test]
fn a_time_that_passed_costs_no_processor() {
    for sleep in [Arm::Asleep { until: Some(1) }, Arm::Timed { until: Some(1) }] {
        let reactor = reactor();
        let (id, _) = add(&reactor, sleep);
        eventually("it has to wait", || reactor.counters().overdue > 3);
        let counters = reactor.counters();
        assert!(counters.sleeps > 0, "{counters:?}");
        with(&reactor, id, |probe| probe.sleep = ASLEEP);
        asleep(&reactor);
        reactor.stop();
    }
}

#[test]
fn a_task_that_is_looked_at_on_a_timer_is_woken_at_its_time_too() {
    let reactor = reactor();
    let until_ns = now_ns() + 50_000_000;
    let (id, memory) = add(&reactor, Arm::Timed { until: Some(until_ns) });
    eventually("the task was woken", || memory.disarms.load(SeqCst) >= 1);
    assert!(now_ns() >= until_ns);
    with(&reactor, id, |probe| probe.sleep = ASLEEP);
    asleep(&reactor);
    reactor.stop();
}

#[test]
fn a_hundred_tasks_that_nothing_can_wake_share_their_wake_ups() {
    let reactor = reactor();
    let memories: Vec<_> = (0..100).map(|_| add(&reactor, TIMED).1).collect();
    // Long enough for all to have reached the longest interval.
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
    let (_, memory) = add(&reactor, TIMED);
    eventually("the task is looked at on a timer", || reactor.counters().task_sleeps > 0);
    memory.work.store(1, SeqCst);
    eventually("the work was found", || memory.work.load(SeqCst) == 0);
    eventually("the task was disarmed", || memory.disarms.load(SeqCst) == 1);
    reactor.stop();
}

/// Polls an eventfd for as long as it sleeps.
struct Sleeper {
    id: TaskId,
    io: Io,
    eventfd: OwnedFd,
    wakes: Arc<AtomicU64>,
    ends: Arc<AtomicU64>,
}

impl Task for Sleeper {
    fn turn(&mut self, _now_ns: u64) -> usize {
        0
    }

    fn event(&mut self, _token: u64, _result: i32, more: bool, _now_ns: u64) {
        if !more {
            self.ends.fetch_add(1, SeqCst);
        }
    }

    fn arm(&mut self, _now_ns: u64) -> Arm {
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        self.io.poll(self.eventfd.as_fd(), PollFlags::IN, self.id, 1);
        ASLEEP
    }

    fn disarm(&mut self) {
        self.wakes.fetch_add(1, SeqCst);
        self.io.cancel(self.id, 1);
    }
}

#[test]
fn the_end_of_a_cancelled_poll_wakes_no_task() {
    let idle = IdlePolicy { spin: Duration::ZERO, ..IdlePolicy::default() };
    let reactor = ReactorHandle::start(ReactorConfig { idle, ..ReactorConfig::default() }).expect("io_uring");
    let eventfd = new_eventfd(EventfdFlags::NONBLOCK);
    let [wakes, ends] = [0; 2].map(|_| Arc::new(AtomicU64::new(0)));
    let ours = (eventfd.try_clone().expect("a descriptor"), Arc::clone(&wakes), Arc::clone(&ends));
    let make = move |id, io| -> Box<dyn Task> {
        let (eventfd, wakes, ends) = ours;
        Box::new(Sleeper { id, io, eventfd, wakes, ends })
    };
    reactor.call(move |local| local.add(make)).expect("an answer");
    for rung in 1..=3 {
        asleep(&reactor);
        rustix::io::write(&eventfd, &1_u64.to_ne_bytes()).expect("rung");
        eventually("the task is woken", || wakes.load(SeqCst) >= rung);
        eventually("it hears of the end of its poll", || ends.load(SeqCst) >= rung);
    }
    asleep(&reactor);
    assert_eq!((wakes.load(SeqCst), ends.load(SeqCst)), (3, 3));
    reactor.stop();
}
