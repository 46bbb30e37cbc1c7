//! Receives and sends, with and without speculative tries.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use sluice_memory::SharedRegion;
use sluice_reactor::{FileSlot, IdlePolicy, ReactorConfig, ReactorHandle, TaskId};

use crate::probe::{ASLEEP, Memory, Probe, add, asleep, eventually, pair, reactor, with};

/// Starts a reactor that never sleeps.
fn polling() -> ReactorHandle {
    let idle = IdlePolicy { always_poll: true, ..IdlePolicy::default() };
    ReactorHandle::start(ReactorConfig { idle, ..ReactorConfig::default() }).expect("io_uring works here")
}

/// Adds a task with a socket and memory for it; returns its events and the other end, too.
fn connected(reactor: &ReactorHandle) -> (TaskId, Arc<Memory>, OwnedFd) {
    let ((id, events), (ours, theirs)) = (add(reactor, ASLEEP), pair());
    with(reactor, id, move |probe| {
        let socket = probe.io.register_file(theirs).expect("a slot");
        probe.holds.push(Box::new(socket));
        probe.holds.push(Box::new(SharedRegion::new("test", 4096).expect("memory")));
    });
    (id, events, ours)
}

fn socket(probe: &Probe) -> &FileSlot {
    probe.holds[0].downcast_ref().expect("a socket")
}

fn memory(probe: &Probe) -> &SharedRegion {
    probe.holds[1].downcast_ref().expect("memory")
}

/// Receives a byte that is likely to arrive soon.
fn expect_byte(probe: &mut Probe, token: u64) {
    let segments = [memory(probe).segment(0, 1)];
    probe.io.receive(socket(probe), &segments, true, probe.id, token);
}

fn vain_receives(reactor: &ReactorHandle) -> u64 {
    reactor.counters().vain_receives
}

#[test]
fn a_socket_sends_and_receives_and_waits_for_neither() {
    for soon in [false, true] {
        let reactor = reactor();
        let (id, events, ours) = connected(&reactor);
        with(&reactor, id, move |probe| {
            let region = memory(probe);
            region.write(0, b"to the peer");
            // There is no data yet.
            let room = [region.segment(1000, 4), region.segment(2000, 100)];
            probe.io.receive(socket(probe), &room, soon, probe.id, 1);
            let data = [region.segment(0, 3), region.segment(3, 8)];
            probe.io.send(socket(probe), &data, probe.id, 2);
        });
        let mut sent = [0; 11];
        rustix::io::read(&ours, &mut sent).expect("bytes");
        assert_eq!(&sent, b"to the peer");
        asleep(&reactor);
        rustix::io::write(&ours, b"from the peer").expect("bytes go out");
        eventually("they are received", || events.count(1) == 1);
        assert_eq!((events.event(1), events.event(2)), (Some(13), Some(11)));
        with(&reactor, id, move |probe| {
            let mut received = [0; 13];
            let region = memory(probe);
            region.read(1000, &mut received[..4]);
            region.read(2000, &mut received[4..]);
            assert_eq!(&received, b"from the peer");
            // A task that is removed does not wait for data that never arrives.
            probe.io.receive(socket(probe), &[region.segment(0, 1)], soon, probe.id, 3);
        });
        reactor.stop();
        assert_eq!(events.dropped.load(SeqCst), 1);
    }
}

#[test]
fn what_is_there_is_received_at_once_and_in_order() {
    let reactor = polling();
    let (id, events, ours) = connected(&reactor);
    for (token, byte) in (0..1000u64).map(|token| (token, token as u8)) {
        rustix::io::write(&ours, &[byte]).expect("room");
        with(&reactor, id, move |probe| expect_byte(probe, token));
        eventually("it is received", || events.event(token) == Some(1));
        let received = with(&reactor, id, |probe| {
            let mut received = [0];
            memory(probe).read(0, &mut received);
            received[0]
        });
        assert_eq!(received, byte);
    }
    assert_eq!(vain_receives(&reactor), 0, "nothing was asked for before it was there");
    // The end of the stream.
    with(&reactor, id, |probe| expect_byte(probe, 5000));
    drop(ours);
    eventually("it ends", || events.event(5000) == Some(0));
    reactor.stop();
}

#[test]
fn what_does_not_come_is_waited_for_by_the_kernel_and_tried_less_often() {
    let reactor = polling();
    let (id, events, ours) = connected(&reactor);
    let mut tried = Vec::new();
    for token in 0..100 {
        let (vain, turns) = (vain_receives(&reactor), reactor.counters().turns);
        with(&reactor, id, move |probe| expect_byte(probe, token));
        // Many more turns than a receive is tried in.
        eventually("turns pass", || reactor.counters().turns > turns + 2000);
        tried.push(vain_receives(&reactor) - vain);
        rustix::io::write(&ours, b"x").expect("room");
        eventually("the kernel brings it", || events.event(token) == Some(1));
    }
    assert!(tried.iter().all(|&tries| tries <= 256), "{tried:?}");
    let first_ten = tried[..10].iter().filter(|&&tries| tries > 0).count();
    let rest = tried[10..].iter().filter(|&&tries| tries > 0).count();
    assert!((1..=4).contains(&first_ten) && (1..=4).contains(&rest), "{tried:?}");
    reactor.stop();
}

#[test]
fn a_receive_that_is_tried_can_be_cancelled_and_its_socket_dropped() {
    let reactor = polling();
    for _ in 0..50 {
        let (id, events, ours) = connected(&reactor);
        with(&reactor, id, |probe| {
            expect_byte(probe, 1);
            probe.io.cancel(probe.id, 1);
        });
        eventually("it is cancelled", || events.event(1) == Some(-libc::ECANCELED));
        with(&reactor, id, |probe| {
            expect_byte(probe, 2);
            probe.holds.remove(0);
        });
        rustix::io::write(&ours, b"x").expect("a socket that somebody has");
        eventually("it is received", || events.event(2) == Some(1));
        assert_eq!(with(&reactor, id, |probe| probe.io.in_flight(probe.id)), 0);
    }
    reactor.stop();
}

/// Checks that each of many sockets has its byte: more than are tried at a time.
#[test]
fn many_sockets_are_served() {
    let reactor = polling();
    let all: Vec<_> = (0..40).map(|_| connected(&reactor)).collect();
    for token in 0..20 {
        for (id, ..) in &all {
            with(&reactor, *id, move |probe| expect_byte(probe, token));
        }
        for (_, events, ours) in all.iter().rev() {
            rustix::io::write(ours, b"x").expect("room");
            eventually("it is received", || events.event(token) == Some(1));
        }
    }
    reactor.stop();
}

#[test]
fn what_is_cancelled_of_another_task_is_no_reason_to_try_less_often() {
    let reactor = polling();
    let ((other, ..), (id, events, ours)) = (connected(&reactor), connected(&reactor));
    rustix::io::write(&ours, b"x").expect("room");
    with(&reactor, id, move |probe| {
        expect_byte(probe, 1);
        probe.io.cancel(other, 1);
    });
    eventually("it is received", || events.event(1) == Some(1));
    assert_eq!(vain_receives(&reactor), 0);
    with(&reactor, id, |probe| expect_byte(probe, 2));
    eventually("the next is tried", || vain_receives(&reactor) > 0);
    reactor.stop();
}
