//! Orders of operators.

use super::super::control::{Order, OrderState};
use super::*;
use sluice_uif::abi::{CONTROL_BYTES, Reply, Submission, disposition, flag, kind};
use sluice_uif::{Answer, Call, Control, Io};
use std::thread::JoinHandle;

const SECOND_NS: u64 = 1_000_000_000;

/// Sends an order on another thread, and waits until the layer has it.
fn told(rig: &Rig, text: &'static str, quiet: bool) -> JoinHandle<Result<String, String>> {
    let control = UifControl::new(&rig.instance, None, Options::default(), Properties::NONE);
    let querier = std::thread::spawn(move || control.query(text, quiet, Duration::from_secs(20)));
    while !rig.instance.has_orders() {
        std::thread::yield_now();
    }
    querier
}

fn connected(version: u32) -> (Rig, Other) {
    let mut rig = Rig::new(prepared_external(&Xor, OnDeath::Park));
    let (link, mut other) = link_to(Box::new(Xor), version, 128, 256 << 10);
    rig.instance.offer(1, link);
    rig.notify();
    other.serve(u16::MAX);
    rig.turn(0);
    (rig, other)
}

fn order(other: &mut Other) -> (Submission, String) {
    assert_eq!(other.requests.waiting(), Ok(1));
    let entry: Submission = other.requests.take();
    assert_eq!(entry.kind, kind::CONTROL);
    let text = other.arena.bytes(entry.data_offset as usize, entry.data_length as usize).expect("its buffer");
    (entry, String::from_utf8_lossy(text).into_owned())
}

fn answer(other: &mut Other, rig: &mut Rig, entry: &Submission, text: &str, status: Status) {
    let buffer = other.arena.bytes(entry.data_offset as usize, CONTROL_BYTES).expect("its buffer");
    buffer[..text.len()].copy_from_slice(text.as_bytes());
    let length = text.len() as u64;
    other.replies.push(&Reply { tag: entry.tag, status: status.0, length, ..Reply::default() });
    let _ = other.replies.publish();
    rig.turn(0);
}

#[test]
fn orders_are_given_one_after_the_other_and_answered() {
    let (mut rig, mut other) = connected(2);
    let first = told(&rig, "do this", false);
    rig.notify();
    let (entry, text) = order(&mut other);
    assert_eq!((text.as_str(), entry.flags), ("do this", 0));
    let second = told(&rig, "and that", true);
    rig.notify();
    assert_eq!(other.requests.waiting(), Ok(0), "one at a time");
    // A drive that only waits for an answer sleeps, and its commands go on.
    rig.submit(Operation::Flush, 0, 0, &[]);
    other.serve(u16::MAX);
    rig.turn(0);
    assert_eq!(rig.finished(), Some((0, OK)));
    answer(&mut other, &mut rig, &entry, "done", OK);
    assert_eq!(first.join().expect("no panic"), Ok("done".to_owned()));
    let (entry, text) = order(&mut other);
    assert_eq!((text.as_str(), entry.flags), ("and that", flag::QUIET));
    answer(&mut other, &mut rig, &entry, "never", Status::INVALID_FIELD);
    assert_eq!(second.join().expect("no panic"), Err("never".to_owned()));
    assert!(other.arena.bytes(0, 256 << 10).expect("all of it").iter().all(|byte| *byte == 0));
}

#[test]
fn a_function_here_is_told_and_asked_for_what_it_counts() {
    let (here, control) = PreparedUif::local(rig::config(OnDeath::Park), Box::new(Xor)).expect("memory");
    let mut rig = Rig::new(here);
    for (text, expected) in
        [("metrics", Ok(String::new())), ("turn", Err("this function takes no orders".to_owned()))]
    {
        let answer = std::thread::scope(|scope| {
            let querier = scope.spawn(|| control.query(text, false, Duration::from_secs(20)));
            while !querier.is_finished() {
                rig.notify();
            }
            querier.join().expect("no panic")
        });
        assert_eq!(answer, expected);
    }
}

#[test]
fn what_is_no_answer_is_counted() {
    let (mut rig, mut other) = connected(2);
    let querier = told(&rig, "do this", false);
    rig.notify();
    let (entry, _) = order(&mut other);
    let reply = Reply { tag: entry.tag, length: 1, ..Reply::default() };
    other.replies.push(&Reply { tag: entry.tag ^ 1 << 32, ..reply });
    other.replies.push(&Reply { length: CONTROL_BYTES as u64 + 1, ..reply });
    other.replies.push(&reply);
    other.replies.push(&Reply { disposition: disposition::FORWARD, ..reply });
    let _ = other.replies.publish();
    rig.turn(0);
    assert_eq!(querier.join().expect("no panic"), Err("its answer is malformed".to_owned()));
    assert_eq!((rig.instance.counts.stray.get(), rig.instance.counts.invalid.get()), (3, 1));
}

#[test]
fn an_order_ends_with_its_function_and_the_next_waits_for_the_next() {
    let (mut rig, mut other) = connected(2);
    let querier = told(&rig, "do this", false);
    rig.notify();
    order(&mut other);
    rig.instance.end(1);
    rig.notify();
    assert!(querier.join().expect("no panic").expect_err("it is gone").contains("it went"));
    let querier = told(&rig, "do that", false);
    rig.notify();
    let (link, mut next) = link_to(Box::new(Xor), 2, 128, 256 << 10);
    rig.instance.offer(2, link);
    rig.notify();
    next.serve(u16::MAX);
    rig.turn(0);
    let (entry, _) = order(&mut next);
    answer(&mut next, &mut rig, &entry, "", OK);
    assert_eq!(querier.join().expect("no panic"), Ok(String::new()));
}

#[test]
fn one_of_the_first_version_takes_no_orders() {
    let (mut rig, other) = connected(1);
    let querier = told(&rig, "do this", false);
    rig.notify();
    assert!(querier.join().expect("no panic").is_err());
    assert_eq!(other.requests.waiting(), Ok(0));
}

#[test]
fn a_drive_does_not_stay_quiet_for_a_function_that_does_not_answer() {
    let (mut rig, mut other) = connected(2);
    let querier = told(&rig, "do this", true);
    rig.notify();
    order(&mut other);
    rig.turn(14 * SECOND_NS);
    assert!(!rig.instance.is_killed(1));
    rig.turn(SECOND_NS);
    assert!(rig.instance.is_killed(1));
    assert!(querier.join().expect("no panic").is_err());
}

#[test]
fn an_order_that_nobody_waits_for_any_more_is_not_given() {
    let (mut rig, other) = connected(2);
    let control = UifControl::new(&rig.instance, None, Options::default(), Properties::NONE);
    let late = control.query("do this", true, Duration::from_millis(1)).expect_err("no turn comes");
    assert!(late.contains("did not answer"), "{late}");
    rig.notify();
    assert_eq!((other.requests.waiting(), rig.instance.has_orders()), (Ok(0), false));
}

#[test]
fn nor_does_it_keep_the_next_from_the_function() {
    let (mut rig, mut other) = connected(2);
    for text in ["late", "later", "in time"] {
        let (stage, answer) = (Arc::new(OrderState::default()), mpsc::sync_channel(1).0);
        assert!(text == "in time" || stage.decide());
        rig.instance.order(Order { text: text.to_owned(), quiet_ns: None, stage, answer });
    }
    rig.notify();
    assert_eq!((order(&mut other).1.as_str(), rig.instance.has_orders()), ("in time", false));
}

/// Function that answers after nineteen seconds.
struct Late;

impl sluice_uif::Function for Late {
    fn properties(&self) -> Properties {
        Properties::NONE
    }

    fn submit(&mut self, _: &mut Call<'_>, _: &mut Io<'_>) -> Answer {
        unreachable!("it wants to see nothing")
    }

    fn control(&mut self, _: &str, io: &mut Io<'_>) -> Control {
        io.wake_at(Some(io.now_ns() + 19 * SECOND_NS));
        Control::Later
    }

    fn timer(&mut self, io: &mut Io<'_>) {
        io.answer(Ok("late".to_owned()));
    }
}

#[test]
fn a_function_here_keeps_its_order_until_it_answers() {
    let (here, _control) = PreparedUif::local(rig::config(OnDeath::Park), Box::new(Late)).expect("memory");
    let mut rig = Rig::new(here);
    let querier = told(&rig, "do this", true);
    rig.notify();
    for _ in 0..19 {
        rig.turn(SECOND_NS);
    }
    assert_eq!(querier.join().expect("no panic"), Ok("late".to_owned()));
    assert_eq!(rig.instance.counts.stray.get(), 0);
}
