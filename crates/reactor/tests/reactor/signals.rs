//! Signals through eventfds whose peer may be hostile.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;

use rustix::event::EventfdFlags;

use crate::probe::{ASLEEP, add, asleep, eventually, new_eventfd, reactor, with};

fn count(eventfd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::read(eventfd, &mut bytes).expect("it was signalled");
    u64::from_ne_bytes(bytes)
}

#[test]
fn a_signal_arrives_and_is_reported() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let eventfd = new_eventfd(EventfdFlags::NONBLOCK);
    let theirs = eventfd.try_clone().expect("a descriptor");
    with(&reactor, id, move |probe| {
        let slot = probe.io.register_file(theirs).expect("room");
        probe.io.signal(&slot, probe.id, 5);
        probe.holds.push(Box::new(slot));
    });
    eventually("the signal is reported", || memory.event(5).is_some());
    assert_eq!(memory.event(5), Some(8));
    assert_eq!(count(&eventfd), 1);
    reactor.stop();
}

/// Fills an eventfd, as a hostile client does.
fn full_blocking_eventfd() -> (OwnedFd, OwnedFd) {
    let eventfd = new_eventfd(EventfdFlags::empty());
    rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).expect("it was empty");
    let theirs = eventfd.try_clone().expect("a descriptor");
    (eventfd, theirs)
}

#[test]
fn a_full_blocking_eventfd_blocks_no_task_and_gets_its_signal_when_there_is_room() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let (eventfd, theirs) = full_blocking_eventfd();
    with(&reactor, id, move |probe| {
        let slot = probe.io.register_file(theirs).expect("room");
        for _ in 0..100 {
            probe.io.signal(&slot, probe.id, 5);
        }
        probe.holds.push(Box::new(slot));
    });
    // The loop continues, and so do other tasks' signals.
    let other = new_eventfd(EventfdFlags::NONBLOCK);
    let theirs = other.try_clone().expect("a descriptor");
    with(&reactor, id, move |probe| {
        let slot = probe.io.register_file(theirs).expect("room");
        probe.io.signal(&slot, probe.id, 6);
        probe.holds.push(Box::new(slot));
    });
    eventually("the other signal is out", || memory.event(6).is_some());
    assert_eq!(memory.event(5), None);
    assert_eq!(count(&eventfd), u64::MAX - 1);
    eventually("the merged signal is out", || memory.event(5).is_some());
    // A hundred signals became one write that waited and one for all others.
    assert_eq!(count(&eventfd), 2);
    reactor.stop();
}

#[test]
fn an_eventfd_that_stays_full_can_be_dropped_and_does_not_hold_up_the_end() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let (_eventfd, theirs) = full_blocking_eventfd();
    with(&reactor, id, move |probe| {
        let slot = probe.io.register_file(theirs).expect("room");
        probe.io.signal(&slot, probe.id, 5);
        probe.holds.push(Box::new(slot));
    });
    asleep(&reactor);
    with(&reactor, id, |probe| probe.holds.clear());
    asleep(&reactor);
    assert_eq!(memory.event(5), None);
    reactor.stop();
    assert_eq!(memory.dropped.load(SeqCst), 1);
}

#[test]
fn the_report_of_a_signal_does_not_wake_a_sleeping_task() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let (eventfd, theirs) = full_blocking_eventfd();
    with(&reactor, id, move |probe| {
        let slot = probe.io.register_file(theirs).expect("room");
        probe.io.signal(&slot, probe.id, 5);
        probe.holds.push(Box::new(slot));
    });
    asleep(&reactor);
    let (turns, disarms) = (memory.turns.load(SeqCst), memory.disarms.load(SeqCst));
    count(&eventfd);
    eventually("the signal is reported", || memory.event(5).is_some());
    asleep(&reactor);
    assert_eq!((memory.turns.load(SeqCst), memory.disarms.load(SeqCst)), (turns, disarms));
    reactor.stop();
}

#[test]
fn hundreds_of_full_eventfds_do_not_hold_up_one_that_blocks_when_it_could() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let (_full, theirs): (Vec<_>, Vec<_>) = (0..300).map(|_| full_blocking_eventfd()).unzip();
    with(&reactor, id, move |probe| {
        for (token, eventfd) in (0..).zip(theirs) {
            let slot = probe.io.register_file(eventfd).expect("room");
            probe.io.signal(&slot, probe.id, token);
            probe.holds.push(Box::new(slot));
        }
    });
    let honest = new_eventfd(EventfdFlags::empty());
    let theirs = honest.try_clone().expect("a descriptor");
    with(&reactor, id, move |probe| {
        let slot = probe.io.register_file(theirs).expect("room");
        probe.io.signal(&slot, probe.id, 1000);
        probe.holds.push(Box::new(slot));
    });
    eventually("the honest one is signalled", || memory.event(1000).is_some());
    assert_eq!(count(&honest), 1);
    assert!((0..300).all(|token| memory.event(token).is_none()));
    reactor.stop();
}

#[test]
fn each_write_to_a_watched_eventfd_is_an_event_until_its_slot_is_gone() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let eventfd = new_eventfd(EventfdFlags::empty());
    let ours = eventfd.try_clone().expect("a descriptor");
    with(&reactor, id, move |probe| {
        let slot = probe.io.register_file(ours).expect("room");
        probe.io.watch(&slot, probe.id, 7);
        probe.holds.push(Box::new(slot));
    });
    for times in 1..=3 {
        // The eventfd is never read, and each write is an event nevertheless.
        rustix::io::write(&eventfd, &1u64.to_ne_bytes()).expect("there is room");
        eventually("it is heard", || memory.count(7) == times);
    }
    with(&reactor, id, |probe| probe.holds.clear());
    eventually("the watch has ended", || with(&reactor, id, |probe| probe.io.in_flight(probe.id)) == 0);
    reactor.stop();
}
