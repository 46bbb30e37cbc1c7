//! Mail: none is lost, each wakes a sleeper, and a full mailbox returns an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use sluice_reactor::{Local, MailboxFull, ReactorConfig, ReactorGone, ReactorHandle};

use crate::probe::{ASLEEP, add, asleep, eventually, reactor, with};

#[test]
fn a_mail_wakes_a_sleeping_reactor() {
    let reactor = reactor();
    for n in 0..20 {
        asleep(&reactor);
        assert_eq!(reactor.call(move |_| n), Ok(n));
    }
    reactor.stop();
}

#[test]
fn ten_thousand_mails_at_random_distances_all_arrive() {
    let reactor = reactor();
    let arrived = Arc::new(AtomicU64::new(0));
    // A small linear congruential generator decides the length of a pause: often enough for the reactor to be
    // just falling asleep.
    let mut random = 12_345u64;
    for n in 1..=10_000u64 {
        let arrived_there = Arc::clone(&arrived);
        let count = move |_: &mut Local| {
            arrived_there.fetch_add(1, SeqCst);
        };
        reactor.mail(count).expect("there is room");
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        for _ in 0..(random >> 52) {
            std::hint::spin_loop();
        }
        if n % 16 == 0 {
            eventually("all mails so far have arrived", || {
                thread::yield_now();
                arrived.load(SeqCst) == n
            });
        }
    }
    assert_eq!(reactor.counters().mails, 10_000);
    reactor.stop();
}

#[test]
fn mails_of_many_threads_are_all_run() {
    let reactor = reactor();
    let senders: Vec<_> = (0..4u64)
        .map(|_| {
            let reactor = reactor.clone();
            thread::spawn(move || {
                (0..500u64).map(|n| reactor.call(move |_| n).expect("an answer")).sum::<u64>()
            })
        })
        .collect();
    for sender in senders {
        assert_eq!(sender.join().expect("a sum"), 499 * 500 / 2);
    }
    reactor.stop();
}

#[test]
fn a_full_mailbox_refuses_and_a_call_waits_for_room() {
    let config = ReactorConfig { max_mails: 4, ..ReactorConfig::default() };
    let reactor = ReactorHandle::start(config).expect("io_uring works here");
    let (gate, closed) = std::sync::mpsc::channel::<()>();
    let (entered, inside) = std::sync::mpsc::channel::<()>();
    let hold = move |_: &mut Local| {
        entered.send(()).expect("the test waits");
        closed.recv().expect("the test opens the gate");
    };
    reactor.mail(hold).expect("there is room");
    inside.recv().expect("the reactor is held");
    for _ in 0..4 {
        reactor.mail(|_| ()).expect("there is room");
    }
    assert_eq!(reactor.mail(|_| ()), Err(MailboxFull));
    let caller = thread::spawn({
        let reactor = reactor.clone();
        move || reactor.call(|_| 7)
    });
    gate.send(()).expect("the reactor waits");
    assert_eq!(caller.join().expect("an answer"), Ok(7));
    reactor.stop();
}

#[test]
fn a_stopped_reactor_returns_an_error() {
    let reactor = reactor();
    let other = reactor.clone();
    reactor.stop();
    assert_eq!(other.call(|_| ()), Err(ReactorGone::Ended));
    assert_eq!(other.mail(|_| ()), Err(MailboxFull));
}

#[test]
fn a_reactor_cannot_call_itself() {
    let reactor = reactor();
    let own = reactor.clone();
    assert_eq!(reactor.call(move |_| own.call(|_| ())), Ok(Err(ReactorGone::OwnThread)));
    reactor.stop();
}

#[test]
fn a_mail_to_a_task_wakes_it() {
    let reactor = reactor();
    let (id, memory) = add(&reactor, ASLEEP);
    asleep(&reactor);
    let turns = memory.turns.load(SeqCst);
    with(&reactor, id, |probe| probe.memory.work.store(3, SeqCst));
    eventually("the task did its work", || memory.work.load(SeqCst) == 0);
    assert!(memory.turns.load(SeqCst) > turns);
    assert!(memory.disarms.load(SeqCst) >= 1);
    reactor.stop();
}

#[test]
fn a_core_that_is_not_there_is_an_error_in_words() {
    let config = ReactorConfig { core: Some(1 << 20), ..ReactorConfig::default() };
    let error = ReactorHandle::start(config).expect_err("no machine has so many cores");
    assert!(error.to_string().contains("core 1048576"), "{error}");
}
