//! Measurements of a reactor's own turns, and memory that the kernel populates for it.

use std::thread;
use std::time::Duration;

use sluice_memory::Arena;
use sluice_reactor::{Local, ReactorConfig, ReactorHandle, now_ns};

use crate::probe::{ASLEEP, add, eventually, reactor, with};

#[test]
fn a_turn_that_waits_is_counted_and_recorded() {
    let config = ReactorConfig { watch: true, ..ReactorConfig::default() };
    let reactor = ReactorHandle::start(config).expect("io_uring works here");
    reactor.call(|_| thread::sleep(Duration::from_millis(2))).expect("an answer");
    eventually("the end of that turn", || reactor.counters().watched.waits > 0);
    let watched = reactor.counters().watched;
    assert!(watched.away_ns >= 1_000_000 && watched.waited_ns >= 1_000_000, "{watched:?}");
    let absences = reactor.call(Local::take_absences).expect("an answer");
    assert!(absences.iter().any(|(from, to)| to - from >= 2_000_000), "{absences:?}");
    assert!(absences.iter().all(|(from, to)| from < to));
    reactor.stop();
}

#[test]
fn a_turn_that_works_is_recorded_with_its_time() {
    const WORK_NS: u64 = 2_000_000;
    let config = ReactorConfig { watch: true, ..ReactorConfig::default() };
    let reactor = ReactorHandle::start(config).expect("io_uring works here");
    let began_ns = now_ns();
    let work = |_: &mut Local| {
        let until_ns = now_ns() + WORK_NS;
        while now_ns() < until_ns {}
    };
    reactor.call(work).expect("an answer");
    // Other threads may have had the processor meanwhile, so that another turn took longer.
    let that = || reactor.counters().watched.longest.into_iter().find(|turn| turn.mails_ns >= WORK_NS);
    eventually("the end of that turn", || that().is_some());
    let turn = that().expect("it is there");
    assert!(turn.mails_ns <= turn.took_ns && turn.began_ns + turn.took_ns > began_ns, "{turn:?}");
    assert!(turn.began_ns + turn.took_ns <= now_ns(), "{turn:?}");
    let longest = reactor.counters().watched.longest;
    assert!(longest.is_sorted_by(|a, b| a.own_ns >= b.own_ns), "{longest:?}");
    assert!(longest.iter().all(|turn| turn.own_ns <= turn.took_ns), "{longest:?}");
    reactor.stop();
}

#[test]
fn nothing_is_watched_by_default() {
    let reactor = reactor();
    reactor.call(|_| thread::sleep(Duration::from_millis(2))).expect("an answer");
    assert_eq!(reactor.counters().watched, Default::default());
    assert_eq!(reactor.call(Local::take_absences), Ok(Vec::new()));
    reactor.stop();
}

#[test]
fn memory_is_taken_from_the_machine_and_keeps_its_contents() {
    let reactor = reactor();
    let (task, memory) = add(&reactor, ASLEEP);
    let arena = Arena::new(2 * Arena::HUGE_PAGE).expect("memory");
    arena.write(7, b"kept").expect("inside");
    let arena = with(&reactor, task, move |probe| {
        let (address, length) = arena.address_of(0, 2 * Arena::HUGE_PAGE);
        probe.io.populate(address, length, probe.id, 1);
        arena
    });
    eventually("the pages", || memory.event(1) == Some(0));
    let mut bytes = [0; 4];
    arena.read(7, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"kept");
    // Memory that is unmapped, or never existed: an error, and nothing else.
    with(&reactor, task, |probe| probe.io.populate(std::ptr::null(), 4096, probe.id, 2));
    eventually("an answer", || memory.event(2).is_some_and(|result| result < 0));
    reactor.stop();
}
