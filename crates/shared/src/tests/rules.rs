//! Tests of single rules.

use super::{connect, home};
use crate::ring::ring;
use crate::{NEED_MAX, Port, PortNumber, Refused};
use std::thread;

/// Requests units, and turns both sides once.
fn request(port: &mut Port, home: &mut crate::Home<super::Ledger>, need: usize) -> bool {
    port.request(need);
    port.finish();
    home.turn();
    port.receive().refused
}

#[test]
fn units_within_the_credit_need_no_message() {
    let mut home = home(100);
    let mut port = connect(&mut home);
    home.turn();
    assert!(!request(&mut port, &mut home, 1));
    assert_eq!(port.credit(), 33);
    for _ in 0..25 {
        port.take().expect("credit");
        port.refill();
        port.finish();
    }
    assert!(!home.side().is_signalled());
    port.take().expect("credit");
    port.refill();
    port.finish();
    assert!(home.side().is_signalled(), "little credit is left");
    home.turn();
    port.receive();
    assert_eq!(port.credit(), 32);
}

#[test]
fn a_port_without_credit_requests_each_unit() {
    let mut home = home(100);
    let mut port = connect(&mut home).without_credit();
    home.turn();
    for used in 1..=5 {
        assert!(!request(&mut port, &mut home, 1));
        assert_eq!((port.credit(), home.object().free()), (1, 100 - used));
        let unit = port.take().expect("the unit that was requested");
        port.refill();
        port.finish();
        assert!(!home.side().is_signalled(), "no unit is requested in advance");
        if used == 5 {
            port.give_back(unit).expect("room");
            port.finish();
            home.turn();
            assert_eq!((port.credit(), home.object().free()), (0, 96), "no unit is kept");
        }
    }
}

#[test]
fn a_need_is_met_with_the_unused_credit_of_another_port() {
    let mut home = home(20);
    let (mut rich, mut poor) = (connect(&mut home), connect(&mut home));
    assert!(!request(&mut rich, &mut home, 1));
    assert_eq!((rich.credit(), home.object().free()), (20, 0));
    rich.take().expect("credit");

    poor.request(19);
    poor.finish();
    home.turn();
    assert!(poor.receive().messages == 0 && poor.is_requesting());
    rich.receive();
    rich.finish();
    home.turn();
    let received = poor.receive();
    assert_eq!((received.refused, poor.credit(), rich.credit()), (false, 19, 0));
}

#[test]
fn a_need_is_refused_when_no_port_has_unused_credit() {
    let mut home = home(4);
    let (mut full, mut poor) = (connect(&mut home), connect(&mut home));
    assert!(!request(&mut full, &mut home, 4));
    (0..4).for_each(|_| assert!(full.take().is_some()));
    poor.request(1);
    poor.finish();
    home.turn();
    assert!(poor.is_requesting(), "the other port is waited for");
    full.receive();
    full.finish();
    home.turn();
    assert!(poor.receive().refused);
    // The other port holds no credit now, and is not recalled again.
    assert!(request(&mut poor, &mut home, 1));
}

#[test]
fn a_refused_request_takes_nothing() {
    let mut home = home(4);
    let mut port = connect(&mut home);
    assert!(request(&mut port, &mut home, 5));
    assert_eq!((port.credit(), home.object().free()), (0, 4));
    assert!(!request(&mut port, &mut home, 4));
}

#[test]
fn a_port_keeps_credit_that_its_waiting_commands_need() {
    let mut home = home(8);
    let (mut first, mut second) = (connect(&mut home), connect(&mut home));
    assert!(!request(&mut first, &mut home, 4));
    first.give_back_credit();
    first.finish();
    home.turn();
    assert!(!request(&mut second, &mut home, 8));
    (0..4).for_each(|_| assert!(second.take().is_some()));
    first.request(1);
    first.finish();
    home.turn();
    // The second port requests more before it sees the recall.
    second.request(8);
    second.receive();
    second.finish();
    home.turn();
    assert!(first.receive().refused);
    assert_eq!(second.credit(), 4);
}

#[test]
fn all_units_of_a_dropped_port_come_back() {
    let mut home = home(200);
    let mut port = connect(&mut home);
    assert!(!request(&mut port, &mut home, NEED_MAX));
    let used: Vec<_> = (0..40).map(|_| port.take().expect("credit")).collect();
    port.give_back(used[0]).expect("room");
    // The answer to this request is never read.
    port.request(NEED_MAX);
    port.finish();
    home.turn();
    assert_eq!(home.side().ports(), 1);
    drop(port);
    home.turn();
    assert_eq!((home.object().free(), home.side().ports()), (200, 0));
}

#[test]
fn a_port_that_closes_while_it_waits_gives_way() {
    let mut home = home(4);
    let (mut holder, mut leaver, mut waiter) = (connect(&mut home), connect(&mut home), connect(&mut home));
    assert!(!request(&mut holder, &mut home, 2));
    leaver.request(4);
    leaver.finish();
    home.turn();
    waiter.request(2);
    waiter.finish();
    home.turn();
    drop(leaver);
    home.turn();
    holder.receive();
    holder.finish();
    home.turn();
    assert!(!waiter.receive().refused);
    assert_eq!(waiter.credit(), 4);
}

#[test]
fn units_of_closed_ports_are_waited_for() {
    let mut home = home(4);
    let (empty, mut holder, mut waiter) = (connect(&mut home), connect(&mut home), connect(&mut home));
    assert!(!request(&mut holder, &mut home, 4));
    (0..4).for_each(|_| assert!(holder.take().is_some()));
    waiter.request(1);
    waiter.finish();
    home.turn();
    holder.receive();
    holder.finish();
    home.turn();
    assert!(waiter.receive().refused, "the holder has no credit, and uses all units");
    drop(empty);
    drop(holder);
    assert!(!request(&mut waiter, &mut home, 4));
    assert!(waiter.is_requesting(), "the second port is not reclaimed yet");
    home.turn();
    assert!(!waiter.receive().refused);
    assert_eq!(waiter.credit(), 4);
}

#[test]
fn an_object_in_use_is_not_removed() {
    let mut home = home(4);
    let port = connect(&mut home);
    assert!(matches!(home.side().remove(), Err(Refused::InUse(1))));
    drop(port);
    assert!(matches!(home.side().remove(), Err(Refused::InUse(1))), "it is not reclaimed yet");
    home.turn();
    home.side().remove().expect("it is not in use");
    assert!(matches!(home.side().connect(), Err(Refused::Gone)));
}

#[test]
fn a_port_may_send_and_close_before_it_is_attached() {
    let mut home = home(4);
    let (mut port, connection) = home.side().connect().expect("a port");
    port.request(1);
    port.finish();
    home.turn();
    home.attach(connection);
    home.turn();
    assert_eq!(port.receive().messages, 5);
    let (port, connection) = home.side().connect().expect("a port");
    drop(port);
    home.turn();
    home.attach(connection);
    home.turn();
    assert_eq!(home.side().ports(), 1);
}

#[test]
fn numbers_are_used_again() {
    let mut home = home(4);
    let first = connect(&mut home);
    let second = connect(&mut home);
    assert_eq!((first.number(), second.number()), (PortNumber(0), PortNumber(1)));
    drop(first);
    home.turn();
    assert_eq!(connect(&mut home).number(), PortNumber(0));
}

#[test]
fn a_full_ring_returns_the_unit() {
    let mut home = home(400);
    let mut port = connect(&mut home);
    let mut units = Vec::new();
    while units.len() < 320 {
        assert!(!request(&mut port, &mut home, NEED_MAX));
        units.extend(std::iter::from_fn(|| port.take()));
    }
    let left: Vec<_> = units.into_iter().filter_map(|unit| port.give_back(unit).err()).collect();
    assert!(!left.is_empty());
    port.finish();
    while home.turn() > 0 {}
    left.into_iter().for_each(|unit| port.give_back(unit).expect("room"));
    port.give_back_credit();
    port.finish();
    while home.turn() > 0 {}
    assert_eq!(home.object().free(), 400);
}

#[test]
fn a_side_that_sleeps_is_woken_once() {
    let mut home = home(4);
    let mut port = connect(&mut home);
    home.turn();
    assert!(!home.arm());
    port.request(1);
    port.finish();
    assert!(home.side().notifier.clear());
    assert!(home.arm(), "there is a message");
    home.turn();
    assert!(!port.was_notified(), "the port is awake");
    assert!(port.arm(), "there is an answer");
    port.receive();
    assert!(!port.arm());
}

#[test]
fn a_ring_passes_all_words_between_threads_in_order() {
    const COUNT: u64 = 20_000;
    let (mut sender, mut receiver) = ring(8);
    let sending = thread::spawn(move || {
        for number in 0..COUNT {
            while !sender.push([number, !number]) {
                sender.publish();
                thread::yield_now();
            }
            if number % 3 == 0 {
                sender.publish();
            }
        }
        sender.publish();
    });
    let mut next = 0;
    while next < COUNT {
        match receiver.pop() {
            Some(words) => {
                assert_eq!(words, [next, !next]);
                next += 1;
            }
            None => {
                receiver.free();
                thread::yield_now();
            }
        }
    }
    sending.join().expect("the sender ends");
}
