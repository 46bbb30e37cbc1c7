//! Tasks that are removed while operations of theirs are in flight.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;

use rustix::event::EventfdFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use sluice_memory::SharedRegion;
use sluice_reactor::PollFlags;

use crate::probe::{ASLEEP, Probe, add, asleep, eventually, new_eventfd, reactor, with};

#[test]
fn an_idle_task_comes_back_whole() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let removed = reactor.call(move |local| {
        let task = local.remove(id).expect("nothing is in flight");
        let any: Box<dyn std::any::Any> = task;
        (any.downcast::<Probe>().is_ok(), local.task::<Probe>(id).is_none(), local.remove(id).is_none())
    });
    assert_eq!(removed, Ok((true, true, true)));
    let turns = memory.turns.load(SeqCst);
    asleep(&reactor);
    assert_eq!((memory.turns.load(SeqCst), memory.dropped.load(SeqCst)), (turns, 1));
    reactor.stop();
}

#[test]
fn a_removed_task_is_freed_when_its_polls_have_ended() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let eventfd = new_eventfd(EventfdFlags::NONBLOCK);
    with(&reactor, id, move |probe| {
        probe.io.poll(eventfd.as_fd(), PollFlags::IN, probe.id, 1);
        probe.holds.push(Box::new(eventfd));
    });
    let came_back = reactor.call(move |local| local.remove(id).is_some());
    assert_eq!(came_back, Ok(false));
    eventually("the task is freed", || memory.dropped.load(SeqCst) == 1);
    assert_eq!(memory.event(1), None);
    assert_eq!(reactor.counters().stray_events, 1);
    reactor.stop();
}

#[test]
fn memory_that_the_kernel_may_write_to_outlives_its_removed_task() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    with(&reactor, id, move |probe| {
        let slot = probe.io.register_file(reader).expect("room");
        let region = SharedRegion::new("data", 4096).expect("memory");
        probe.io.read(&slot, &[region.segment(0, 4096)], 0, probe.id, 1);
        probe.holds.push(Box::new((slot, region)));
    });
    assert_eq!(reactor.call(move |local| local.remove(id).is_some()), Ok(false));
    asleep(&reactor);
    assert_eq!(memory.dropped.load(SeqCst), 0);
    // The task's number is not reused meanwhile.
    let (other, _) = add(&reactor, ASLEEP);
    assert_ne!(other, id);
    rustix::io::write(&writer, b"late").expect("the read waits");
    eventually("the task is freed", || memory.dropped.load(SeqCst) == 1);
    reactor.stop();
}

#[test]
fn a_reactor_that_stops_waits_for_what_is_in_flight() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let eventfd = new_eventfd(EventfdFlags::NONBLOCK);
    with(&reactor, id, move |probe| probe.io.poll(eventfd.as_fd(), PollFlags::IN, probe.id, 1));
    reactor.stop();
    assert_eq!(memory.dropped.load(SeqCst), 1);
}

/// Checks a task whose last operation is a signal to an eventfd that it has dropped, which causes no event.
#[test]
fn a_removed_task_is_freed_when_a_signal_to_an_eventfd_that_it_dropped_has_ended() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    let eventfd = new_eventfd(EventfdFlags::empty());
    rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).expect("it was empty");
    let theirs = eventfd.try_clone().expect("a descriptor");
    let came_back = reactor.call(move |local| {
        let probe = local.task_mut::<Probe>(id).expect("it is there");
        let slot = probe.io.register_file(theirs).expect("room");
        probe.io.signal(&slot, id, 1);
        drop(slot);
        local.remove(id).is_some()
    });
    assert_eq!(came_back, Ok(false));
    eventually("the task is freed", || memory.dropped.load(SeqCst) == 1);
    assert_eq!(memory.event(1), None);
    reactor.stop();
}
