//! Functions that exit, and come back.

use super::*;

const SECOND_NS: u64 = 1_000_000_000;
const LOST: Status = Status::INTERNAL_ERROR;

/// Submits three writes: one is answered and done, one is in the function, one waits.
fn with_three(on_death: OnDeath) -> (Rig, Other) {
    let mut rig = Rig::external(on_death);
    let (link, mut other) = link(1, 1 << 20);
    rig.instance.offer(1, link);
    rig.notify();
    rig.submit(Operation::Write, 0, BLOCK, &[1; 512]);
    for _ in 0..2 {
        other.serve(u16::MAX);
        rig.turn(0);
    }
    assert_eq!(rig.finished(), Some((0, OK)));
    rig.submit(Operation::Write, BLOCK, BLOCK, &[2; 512]);
    rig.submit(Operation::Write, 2 * BLOCK, BLOCK, &[3; 512]);
    (rig, other)
}

fn dies(rig: &mut Rig, number: u32) {
    rig.instance.end(number);
    rig.notify();
}

/// Connects the next function, which serves everything.
fn returns(rig: &mut Rig, number: u32) {
    let (link, mut other) = link(16, 1 << 20);
    rig.instance.offer(number, link);
    rig.notify();
    for _ in 0..10 {
        other.serve(u16::MAX);
        rig.turn(0);
    }
}

#[test]
fn commands_of_a_function_that_died_wait_for_the_next() {
    let (mut rig, _gone) = with_three(OnDeath::Park);
    dies(&mut rig, 1);
    assert_eq!(rig.finished(), None);
    let read = rig.submit(Operation::Read, 0, BLOCK, &[]);
    assert_eq!((rig.in_flight(), rig.stack.deadline_ns()), (3, None));
    returns(&mut rig, 2);
    let mut done: Vec<_> = std::iter::from_fn(|| rig.finished()).collect();
    done.sort_unstable_by_key(|(cid, _)| *cid);
    assert_eq!(done, [(1, OK), (2, OK), (read, OK)]);
    assert!(rig.data(read, 512) == [1; 512]);
    let second = rig.submit(Operation::Read, BLOCK, BLOCK, &[]);
    let counts = &rig.instance.counts;
    assert_eq!((counts.deaths.get(), counts.failed.get(), second), (1, 0, 4));
}

#[test]
fn or_they_fail_and_so_does_what_comes_until_the_next() {
    let (mut rig, _gone) = with_three(OnDeath::Fail);
    dies(&mut rig, 1);
    rig.submit(Operation::Read, 0, BLOCK, &[]);
    let mut done: Vec<_> = std::iter::from_fn(|| rig.finished()).collect();
    done.sort_unstable_by_key(|(cid, _)| *cid);
    assert_eq!(done, [(1, LOST), (2, LOST), (3, LOST)]);
    assert_eq!((rig.in_flight(), rig.instance.counts.failed.get()), (0, 3));
    returns(&mut rig, 2);
    rig.submit(Operation::Deallocate, 0, BLOCK, &[]);
    assert_eq!(rig.finished(), Some((4, OK)), "what the function does not want to see passes it by");
}

#[test]
fn nothing_fails_of_a_restart() {
    let (mut rig, _gone) = with_three(OnDeath::Fail);
    rig.instance.request_restart();
    assert!(rig.instance.take_restart() && !rig.instance.take_restart());
    dies(&mut rig, 1);
    rig.submit(Operation::Write, 0, BLOCK, &[1; 512]);
    assert_eq!(rig.finished(), None);
    returns(&mut rig, 2);
    assert_eq!(std::iter::from_fn(|| rig.finished()).filter(|(_, status)| *status == OK).count(), 3);
    rig.submit(Operation::Write, 0, BLOCK, &[1; 512]);
    dies(&mut rig, 2);
    assert_eq!(rig.finished(), Some((4, LOST)), "that was no restart");
}

#[test]
fn a_function_that_does_not_answer_is_ended() {
    let (mut rig, mut other) = with_three(OnDeath::Fail);
    for _ in 0..4 {
        rig.turn(SECOND_NS / 4);
        assert!(!rig.instance.is_killed(1));
    }
    for _ in 0..4 {
        rig.turn(SECOND_NS / 4);
    }
    assert!(rig.instance.is_killed(1));
    let mut done: Vec<_> = std::iter::from_fn(|| rig.finished()).collect();
    done.sort_unstable_by_key(|(cid, _)| *cid);
    assert_eq!(done, [(1, LOST), (2, LOST)]);
    // Too late.
    other.serve(u16::MAX);
    rig.turn(0);
    rig.notify_replies();
    assert_eq!(rig.finished(), None);
    let counts = &rig.instance.counts;
    assert_eq!((counts.timeouts.get(), counts.deaths.get()), (1, 1));
}

#[test]
fn a_function_is_not_blamed_for_the_time_that_the_daemon_was_away() {
    let (mut rig, mut other) = with_three(OnDeath::Fail);
    rig.turn(SECOND_NS / 4);
    for _ in 0..5 {
        rig.turn(60 * SECOND_NS);
        rig.turn(SECOND_NS / 4);
    }
    assert!(!rig.instance.is_killed(1));
    for _ in 0..4 {
        other.serve(u16::MAX);
        rig.turn(0);
    }
    assert_eq!(std::iter::from_fn(|| rig.finished()).filter(|(_, status)| *status == OK).count(), 2);
}

#[test]
fn an_answer_that_came_before_the_end_still_counts() {
    let mut rig = Rig::external(OnDeath::Fail);
    let (link, mut other) = link(16, 1 << 20);
    rig.instance.offer(1, link);
    rig.notify();
    rig.submit(Operation::Flush, 0, 0, &[]);
    other.serve(u16::MAX);
    rig.submit(Operation::Flush, 0, 0, &[]);
    dies(&mut rig, 1);
    let mut done: Vec<_> = std::iter::from_fn(|| rig.finished()).collect();
    done.sort_unstable_by_key(|(cid, _)| *cid);
    assert_eq!(done, [(0, OK), (1, LOST)]);
}

/// Resets a controller, which waits for commands in flight: one that waits for a missing function must end.
#[test]
fn what_only_waits_ends_when_the_host_begins_anew() {
    let (mut rig, _gone) = with_three(OnDeath::Park);
    dies(&mut rig, 1);
    rig.stack.revoke(0);
    rig.turn(0);
    let mut done: Vec<_> = std::iter::from_fn(|| rig.finished()).collect();
    done.sort_unstable_by_key(|(cid, _)| *cid);
    let aborted = Status::ABORTED_SQ_DELETION;
    assert_eq!((done, rig.in_flight()), (vec![(1, aborted), (2, aborted)], 0));
    // Later commands wait again.
    rig.stack.renew(0);
    rig.submit(Operation::Read, 0, BLOCK, &[]);
    rig.turn(0);
    assert_eq!((rig.finished(), rig.in_flight()), (None, 1));
    returns(&mut rig, 2);
    assert_eq!(rig.finished(), Some((3, OK)));
}

#[test]
fn a_function_that_is_restarted_finishes_what_it_has_and_gets_nothing_more() {
    let (mut rig, mut other) = with_three(OnDeath::Fail);
    rig.instance.request_restart();
    rig.notify();
    assert!(!rig.instance.has_quiesced(1));
    for _ in 0..4 {
        other.serve(u16::MAX);
        rig.turn(0);
    }
    assert!(rig.instance.has_quiesced(1), "it has nothing any more");
    assert_eq!((rig.finished(), rig.finished()), (Some((1, OK)), None), "the third waits");
    assert!(rig.instance.take_restart());
    dies(&mut rig, 1);
    returns(&mut rig, 2);
    assert_eq!(rig.finished(), Some((2, OK)));
    assert_eq!(rig.instance.counts.failed.get(), 0);
}

#[test]
fn it_is_told_to_stop_and_its_own_requests_are_waited_for() {
    use sluice_uif::abi::{Reply, Submission, disposition, kind, operation};
    let mut rig = Rig::over(prepared_external(&Xor, OnDeath::Park), &[rig::SIZE], SECOND_NS);
    let (link, mut other) = link_to(Box::new(Xor), 2, 128, 256 << 10);
    rig.instance.offer(1, link);
    rig.notify();
    other.serve(u16::MAX);
    rig.turn(0);
    let (disposition, operation) = (disposition::REQUEST, operation::WRITE);
    other.replies.push(&Reply { disposition, operation, length: 512, ..Reply::default() });
    let _ = other.replies.publish();
    rig.turn(0);
    rig.instance.request_restart();
    rig.notify();
    let told: Submission = other.requests.take();
    assert_eq!((told.kind, rig.instance.has_quiesced(1)), (kind::STOP, false));
    rig.turn(SECOND_NS);
    assert!(rig.instance.has_quiesced(1));
}

#[test]
fn one_that_was_on_its_way_when_a_restart_was_asked_for_leaves_as_planned() {
    let (mut rig, _gone) = with_three(OnDeath::Fail);
    dies(&mut rig, 1);
    let (link, _next) = link(16, 1 << 20);
    rig.instance.offer(2, link);
    rig.instance.request_restart();
    rig.notify();
    assert!(rig.instance.has_quiesced(2));
}

/// Fails a Flush of the function's own, which was reported to the function alone, before or after its exit.
#[test]
fn what_a_function_was_told_is_lost_fails_a_flush_after_it() {
    use sluice_uif::abi::{Reply, disposition, operation};
    for told in [false, true] {
        let mut rig = Rig::external(OnDeath::Park);
        returns(&mut rig, 1);
        let (link, mut other) = link(16, 1 << 20);
        dies(&mut rig, 1);
        rig.instance.offer(2, link);
        rig.notify();
        other.serve(u16::MAX);
        rig.turn(0);
        rig.failing.store(1, Relaxed);
        let flush =
            Reply { disposition: disposition::REQUEST, operation: operation::FLUSH, ..Reply::default() };
        other.replies.push(&flush);
        let _ = other.replies.publish();
        if told {
            rig.turn(0);
        }
        dies(&mut rig, 2);
        let waiting = rig.submit(Operation::Flush, 0, 0, &[]);
        assert_eq!(rig.finished(), None);
        returns(&mut rig, 3);
        assert_eq!(rig.finished(), Some((waiting, Status::WRITE_FAULT)), "told: {told}");
        let next = rig.submit(Operation::Flush, 0, 0, &[]);
        dies(&mut rig, 3);
        returns(&mut rig, 4);
        assert_eq!(rig.finished(), Some((next, OK)));
    }
}

/// Fails a Flush of a host below, whose function exits before it reports that.
#[test]
fn a_failed_flush_fails_although_its_function_has_died() {
    let mut rig = Rig::new(prepared_external(&Twice, OnDeath::Park));
    let (link, mut other) = rig::link_to(Box::new(Twice), sluice_uif::abi::VERSION, 16, 1 << 20);
    rig.instance.offer(1, link);
    rig.notify();
    other.serve(u16::MAX);
    rig.turn(0);
    rig.failing.store(1, Relaxed);
    let flush = rig.submit(Operation::Flush, 0, 0, &[]);
    other.serve(u16::MAX);
    rig.turn(0);
    dies(&mut rig, 1);
    assert_eq!(rig.finished(), None);
    let (link, mut other) = rig::link_to(Box::new(Twice), sluice_uif::abi::VERSION, 16, 1 << 20);
    rig.instance.offer(2, link);
    rig.notify();
    for _ in 0..10 {
        other.serve(u16::MAX);
        rig.turn(0);
    }
    assert_eq!(rig.finished(), Some((flush, Status::WRITE_FAULT)));
}

/// Function that sees a Flush before it goes below, and on its return.
struct Twice;

impl sluice_uif::Function for Twice {
    fn properties(&self) -> Properties {
        Properties::NONE.with(Operation::Flush, sluice_uif::Interest::Before)
    }

    fn submit(&mut self, _: &mut sluice_uif::Call<'_>, _: &mut sluice_uif::Io<'_>) -> sluice_uif::Answer {
        sluice_uif::Answer::ForwardAndReturn(1)
    }

    fn returned(
        &mut self,
        call: &mut sluice_uif::Call<'_>,
        _: &mut sluice_uif::Io<'_>,
    ) -> sluice_uif::Answer {
        sluice_uif::Answer::Finish(call.status)
    }
}
