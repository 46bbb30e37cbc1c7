//! Requests of functions to the layers below.

use super::*;
use sluice_uif::abi::{DATA_MAX, REQUESTS_MAX, Reply, Submission, disposition, kind, operation};

const SECOND_NS: u64 = 1_000_000_000;

/// Returns a function that is ready, under the test's control, over layers that take a second.
fn connected() -> (Rig, Other) {
    connected_over(&[rig::SIZE, 1 << 16], 256 << 10)
}

fn connected_over(sizes: &[u64], arena_bytes: usize) -> (Rig, Other) {
    let mut rig = Rig::over(prepared_external(&Xor, OnDeath::Park), sizes, SECOND_NS);
    let other = arrives(&mut rig, 1, arena_bytes);
    (rig, other)
}

fn arrives(rig: &mut Rig, number: u32, arena_bytes: usize) -> Other {
    let (link, mut other) = link_to(Box::new(Xor), 2, 128, arena_bytes);
    rig.instance.offer(number, link);
    rig.notify();
    other.serve(u16::MAX);
    rig.turn(0);
    other
}

fn asked(tag: u64) -> Reply {
    let (disposition, operation) = (disposition::REQUEST, operation::WRITE);
    Reply { tag, disposition, operation, length: 512, data_offset: 4096, ..Reply::default() }
}

fn say(other: &mut Other, rig: &mut Rig, replies: &[Reply]) {
    replies.iter().for_each(|reply| other.replies.push(reply));
    let _ = other.replies.publish();
    rig.turn(0);
}

fn heard(other: &mut Other) -> Vec<(u8, u64, Status)> {
    let entries = other.requests.waiting().expect("in order");
    let take = |_| {
        let entry: Submission = other.requests.take();
        (entry.kind, entry.tag, Status(entry.status))
    };
    (0..entries).map(take).collect()
}

#[test]
fn requests_are_answered_in_their_own_time_and_no_host_waits_for_them() {
    let (mut rig, mut other) = connected();
    say(&mut other, &mut rig, &[asked(7), Reply { layer: 1, ..asked(u64::MAX) }]);
    assert_eq!((rig.in_flight(), rig.live()), (0, 2));
    assert!(!rig.stack.arm() && rig.stack.deadline_ns().is_some(), "it may sleep until they are back");
    rig.stack.disarm();
    rig.turn(SECOND_NS);
    let mut heard = heard(&mut other);
    heard.sort_unstable_by_key(|(_, tag, _)| *tag);
    assert_eq!(heard, [(kind::DONE, 7, OK), (kind::DONE, u64::MAX, OK)]);
    assert_eq!((rig.live(), rig.instance.counts.requests.get()), (0, 2));
}

#[test]
fn a_sleeping_drive_is_rung_for_a_request() {
    let (mut rig, mut other) = connected();
    assert!(!rig.stack.arm());
    other.replies.push(&asked(1));
    assert!(other.replies.publish(), "it has to ring");
    rig.notify_replies();
    rig.stack.disarm();
    assert_eq!(rig.live(), 1);
    rig.turn(SECOND_NS);
    other.replies.push(&asked(1));
    assert!(!other.replies.publish() && rig.stack.arm(), "no sleep over what was said");
}

#[test]
fn requests_that_cannot_be_are_refused_and_counted() {
    let bad: [fn(&mut Reply); 10] = [
        |reply| reply.layer = 2,
        |reply| reply.layer = u8::MAX,
        |reply| reply.operation = 5,
        |reply| reply.offset = rig::SIZE,
        |reply| reply.offset = u64::MAX - 511,
        |reply| (reply.layer, reply.offset) = (1, 1 << 16),
        |reply| reply.length = 0,
        |reply| reply.length = 513,
        |reply| reply.data_offset = (256 << 10) - 511,
        |reply| reply.data_offset = u64::MAX - 100,
    ];
    let (mut rig, mut other) = connected();
    for (number, spoil) in bad.into_iter().enumerate() {
        let mut reply = asked(number as u64);
        spoil(&mut reply);
        say(&mut other, &mut rig, &[reply]);
        assert_eq!(heard(&mut other), [(kind::DONE, number as u64, Status::INVALID_FIELD)], "{number}");
    }
    assert_eq!((rig.live(), rig.instance.counts.invalid.get()), (0, 10));
    assert!(!rig.instance.is_killed(1));
    // More than the layers below have room for, but neither the arena nor the layer is too small.
    let (mut rig, mut other) = connected_over(&[4 << 20], 4 << 20);
    say(&mut other, &mut rig, &[Reply { length: 2 << 20, ..asked(0) }]);
    assert_eq!(heard(&mut other), [(kind::DONE, 0, Status::INVALID_FIELD)]);
    let longest = Reply { length: DATA_MAX.into(), ..asked(1) };
    let without_data = Reply { operation: operation::WRITE_ZEROES, length: 4 << 20, ..asked(2) };
    say(&mut other, &mut rig, &[longest, without_data]);
    assert_eq!((rig.live(), rig.instance.counts.invalid.get()), (2, 1));
}

#[test]
fn more_requests_than_there_may_be_are_the_end_of_a_function() {
    let (mut rig, mut other) = connected();
    for tag in 0..u64::from(REQUESTS_MAX) {
        say(&mut other, &mut rig, &[asked(tag)]);
    }
    assert!(!rig.instance.is_killed(1));
    say(&mut other, &mut rig, &[asked(0)]);
    assert!(rig.instance.is_killed(1));
    assert_eq!(rig.live(), usize::from(REQUESTS_MAX));
}

#[test]
fn the_next_function_begins_when_the_requests_of_the_last_are_over_and_hears_nothing_of_them() {
    let (mut rig, mut other) = connected();
    let all: Vec<Reply> = (0..u64::from(REQUESTS_MAX)).map(asked).collect();
    say(&mut other, &mut rig, &all);
    rig.instance.end(1);
    rig.notify();
    let (link, mut next) = link_to(Box::new(Xor), 2, 128, 256 << 10);
    rig.instance.offer(2, link);
    rig.notify();
    let read = rig.submit(Operation::Read, 0, BLOCK, &[]);
    rig.turn(SECOND_NS / 2);
    assert_eq!((heard(&mut next), rig.live()), (vec![], 65), "the last one's are under way");
    rig.turn(SECOND_NS / 2);
    rig.turn(0);
    assert_eq!(rig.live(), 1);
    next.serve(u16::MAX);
    rig.turn(0);
    rig.turn(SECOND_NS);
    next.serve(u16::MAX);
    rig.turn(0);
    assert_eq!(rig.finished(), Some((read, OK)));
}

/// Sends a request with its data in the buffer of a command that is finished meanwhile.
#[test]
fn what_a_function_was_writing_when_it_died_is_written_as_it_was() {
    let (mut rig, mut other) = connected();
    rig.submit(Operation::Write, 0, BLOCK, &[7; 512]);
    let entry: Submission = other.requests.take();
    let data_offset = entry.data_offset.into();
    say(&mut other, &mut rig, &[Reply { offset: 4096, data_offset, ..asked(1) }]);
    rig.instance.end(1);
    rig.notify();
    rig.turn(SECOND_NS);
    assert_eq!((rig.live(), rig.instance.counts.deaths.get()), (1, 1), "the command waits for the next");
    let mut next = arrives(&mut rig, 2, 256 << 10);
    let data_offset = 128 << 10;
    let read = Reply { operation: operation::READ, offset: 4096, data_offset, ..asked(2) };
    say(&mut next, &mut rig, &[read]);
    rig.turn(SECOND_NS);
    assert!(next.arena.bytes(data_offset as usize, 512).expect("memory") == [7; 512]);
}

/// Sends a READY with an error while a request writes the buffer of a command.
#[test]
fn what_a_function_was_writing_when_its_command_failed_is_written_as_it_was() {
    let (mut rig, mut other) = connected();
    let write = rig.submit(Operation::Write, 0, BLOCK, &[7; 512]);
    let entry: Submission = other.requests.take();
    let data_offset = entry.data_offset.into();
    let again = Reply { disposition: disposition::FORWARD_AND_RETURN, ..other_reply(&entry) };
    say(&mut other, &mut rig, &[again]);
    rig.turn(SECOND_NS / 2);
    let ready =
        |status: Status| Reply { disposition: disposition::READY, status: status.0, ..Reply::default() };
    let unable = ready(Status::NAMESPACE_NOT_READY);
    say(&mut other, &mut rig, &[Reply { offset: 4096, data_offset, ..asked(1) }, unable]);
    rig.turn(SECOND_NS / 2);
    assert_eq!(rig.finished(), Some((write, Status::NAMESPACE_NOT_READY)));
    // No other command gets the buffer before the request ends.
    say(&mut other, &mut rig, &[ready(OK)]);
    rig.submit(Operation::Write, 0, BLOCK, &[8; 512]);
    let entry: Submission = other.requests.take();
    assert_ne!(u64::from(entry.data_offset), data_offset);
    say(&mut other, &mut rig, &[other_reply(&entry)]);
    rig.turn(SECOND_NS / 2);
    assert_eq!(heard(&mut other), [(kind::DONE, 1, OK)]);
    assert!(other.arena.bytes(data_offset as usize, 512).expect("memory") == [0; 512], "it is given back");
    let data_offset = 128 << 10;
    let read = Reply { operation: operation::READ, offset: 4096, data_offset, ..asked(2) };
    say(&mut other, &mut rig, &[read]);
    rig.turn(SECOND_NS);
    assert!(other.arena.bytes(data_offset as usize, 512).expect("memory") == [7; 512]);
}

/// Limits requests: the layers below have room for those of one function.
#[test]
fn the_next_function_may_not_ask_nor_begin_while_requests_of_the_last_are_under_way() {
    let (mut rig, mut other) = connected();
    let all: Vec<Reply> = (0..u64::from(REQUESTS_MAX)).map(asked).collect();
    say(&mut other, &mut rig, &all);
    rig.instance.end(1);
    rig.notify();
    let (link, mut next) = link_to(Box::new(Xor), 2, 128, 256 << 10);
    rig.instance.offer(2, link);
    rig.notify();
    let ready = Reply { disposition: disposition::READY, ..Reply::default() };
    say(&mut next, &mut rig, &[&all[..], &[ready]].concat());
    let refused = heard(&mut next).iter().filter(|(_, _, status)| *status == Status::INVALID_FIELD).count();
    assert_eq!((refused, rig.live()), (64, 64));
    assert_eq!((rig.instance.counts.invalid.get(), rig.instance.counts.ready.load(Relaxed)), (65, false));
    rig.turn(SECOND_NS);
    rig.turn(0);
    next.serve(u16::MAX);
    rig.turn(0);
    assert!(rig.instance.counts.ready.load(Relaxed) && !rig.instance.is_killed(2));
    say(&mut next, &mut rig, &all);
    assert_eq!(rig.live(), 64);
}

#[test]
fn a_function_may_ask_before_it_knows_of_a_new_size() {
    let (mut rig, mut other) = connected();
    rig.resize(rig::SIZE / 2);
    say(&mut other, &mut rig, &[asked(1)]);
    assert_eq!((rig.live(), rig.instance.counts.invalid.get()), (1, 0));
}

/// Returns the quarters of a second until a function is killed that sends so many requests while it has a
/// command.
fn quarters_with(requests: u64) -> u32 {
    let (mut rig, mut other) = connected();
    rig.submit(Operation::Flush, 0, 0, &[]);
    let mut quarters = 0;
    while !rig.instance.is_killed(1) && quarters < 1000 {
        if rig.live() == 1 && rig.instance.counts.requests.get() < requests {
            say(&mut other, &mut rig, &[asked(0)]);
        }
        rig.turn(SECOND_NS / 4);
        quarters += 1;
    }
    quarters
}

/// Extends the deadline of a second by requests that take a second each.
#[test]
fn a_command_may_take_as_long_as_requests_for_it_but_not_for_ever() {
    assert_eq!(quarters_with(0), 5);
    assert_eq!(quarters_with(3), 3 * 4 + 4);
    assert_eq!(quarters_with(u64::MAX), 12 * 4 + 1);
}

#[test]
fn a_reset_of_the_host_ends_nothing_that_a_function_asked_for() {
    let (mut rig, mut other) = connected();
    say(&mut other, &mut rig, &[asked(1)]);
    rig.stack.revoke(0);
    rig.turn(0);
    rig.stack.renew(0);
    assert_eq!(rig.live(), 1);
    rig.turn(SECOND_NS);
    assert_eq!(heard(&mut other), [(kind::DONE, 1, OK)]);
}

/// Returns a command whose host is gone: the function may have noted it and wait for it.
#[test]
fn a_command_comes_back_to_its_function_also_when_its_host_is_gone() {
    let (mut rig, mut other) = connected();
    rig.submit(Operation::Flush, 0, 0, &[]);
    let entry: Submission = other.requests.take();
    let again = Reply { disposition: disposition::FORWARD_AND_RETURN, ..other_reply(&entry) };
    rig.stack.revoke(0);
    say(&mut other, &mut rig, &[again]);
    rig.turn(SECOND_NS);
    let entry: Submission = other.requests.take();
    assert_eq!((entry.kind, rig.finished()), (kind::RETURNED, None));
    say(&mut other, &mut rig, &[Reply { disposition: disposition::FINISH, ..other_reply(&entry) }]);
    assert_eq!((rig.finished(), rig.in_flight()), (Some((0, OK)), 0));
}

#[test]
fn a_command_that_failed_below_comes_back_with_its_status() {
    let (mut rig, mut other) = connected();
    rig.failing.store(1, std::sync::atomic::Ordering::Relaxed);
    for status in [Status::WRITE_FAULT, OK] {
        let cid = rig.submit(Operation::Flush, 0, 0, &[]);
        let entry: Submission = other.requests.take();
        let again = Reply { disposition: disposition::FORWARD_AND_RETURN, ..other_reply(&entry) };
        say(&mut other, &mut rig, &[again]);
        rig.turn(SECOND_NS);
        let entry: Submission = other.requests.take();
        assert_eq!((entry.kind, Status(entry.status)), (kind::RETURNED, status));
        say(&mut other, &mut rig, &[Reply { disposition: disposition::FINISH, ..other_reply(&entry) }]);
        assert_eq!(rig.finished(), Some((cid, OK)), "the function has decided so");
    }
}

#[test]
fn commands_go_to_the_layer_that_a_function_says() {
    let (mut rig, mut other) = connected();
    rig.submit(Operation::Write, 512, BLOCK, &[1; 512]);
    let entry: Submission = other.requests.take();
    let data = other.arena.bytes(entry.data_offset as usize, 512).expect("its buffer");
    assert!(data == [1; 512]);
    let sent = |layer| Reply { layer, ..other_reply(&entry) };
    say(&mut other, &mut rig, &[sent(1)]);
    rig.turn(SECOND_NS);
    assert_eq!(rig.finished(), Some((0, OK)));
    rig.submit(Operation::Write, 512, BLOCK, &[1; 512]);
    let entry: Submission = other.requests.take();
    say(&mut other, &mut rig, &[Reply { layer: 2, ..other_reply(&entry) }]);
    assert_eq!(rig.finished(), Some((1, Status::INTERNAL_ERROR)), "there is none");
}

fn other_reply(entry: &Submission) -> Reply {
    let (tag, operation, offset, length) = (entry.tag, entry.operation, entry.offset, entry.length);
    Reply { tag, disposition: disposition::FORWARD, operation, offset, length, ..Reply::default() }
}

#[test]
fn a_command_is_not_sent_to_and_fro_without_an_end() {
    let (mut rig, mut other) = connected();
    rig.submit(Operation::Flush, 0, 0, &[]);
    let mut rounds = 0;
    while rig.in_flight() > 0 {
        let entry: Submission = other.requests.take();
        let again = Reply { disposition: disposition::FORWARD_AND_RETURN, ..other_reply(&entry) };
        say(&mut other, &mut rig, &[again]);
        rig.turn(SECOND_NS);
        rounds += 1;
    }
    assert_eq!((rounds, rig.finished()), (RETURNS_MAX + 1, Some((0, Status::INTERNAL_ERROR))));
}

/// Function that writes zeros in parts, as one that encrypts does: each part is another command below.
struct Zeroes;

impl sluice_uif::Function for Zeroes {
    fn properties(&self) -> Properties {
        let own = Properties { scratch: 128 << 10, ..Properties::NONE };
        own.with(Operation::WriteZeroes, sluice_uif::Interest::Before)
    }

    fn submit(&mut self, call: &mut sluice_uif::Call<'_>, _: &mut sluice_uif::Io<'_>) -> sluice_uif::Answer {
        call.cookie[0] = call.request.end();
        call.request.operation = Operation::Write;
        call.request.length = call.data.len() as u64;
        sluice_uif::Answer::ForwardAndReturn(0)
    }

    fn returned(
        &mut self,
        call: &mut sluice_uif::Call<'_>,
        _: &mut sluice_uif::Io<'_>,
    ) -> sluice_uif::Answer {
        call.request.offset = call.request.end();
        match call.request.offset < call.cookie[0] {
            true => sluice_uif::Answer::ForwardAndReturn(0),
            false => sluice_uif::Answer::Finish(call.status),
        }
    }
}

/// Runs the longest Write Zeroes that a host can submit with blocks of 512 bytes.
#[test]
fn a_write_zeroes_takes_as_many_pieces_as_it_has() {
    let size = 32 << 20;
    let (here, _control) = PreparedUif::local(rig::config(OnDeath::Park), Box::new(Zeroes)).expect("memory");
    let mut rig = Rig::over(here, &[size], 0);
    rig.turn(0);
    let cid = rig.submit(Operation::WriteZeroes, 0, size, &[]);
    for _ in 0..1000 {
        rig.turn(1);
    }
    assert_eq!(rig.finished(), Some((cid, OK)));
}

/// Function that sends a request each second.
struct Clock(u64);

impl sluice_uif::Function for Clock {
    fn properties(&self) -> Properties {
        Properties { pool: 4096, ..Properties::NONE }
    }

    fn start(&mut self, io: &mut sluice_uif::Io<'_>) {
        io.ready(OK);
        io.wake_at(Some(io.now_ns() + SECOND_NS));
    }

    fn submit(&mut self, _: &mut sluice_uif::Call<'_>, _: &mut sluice_uif::Io<'_>) -> sluice_uif::Answer {
        unreachable!("it wants to see nothing")
    }

    fn timer(&mut self, io: &mut sluice_uif::Io<'_>) {
        self.0 += 1;
        let label = io.buffer(512).expect("memory");
        io.bytes(&label).fill(self.0 as u8);
        let request = sluice_command::Request {
            operation: Operation::Write,
            length: 512,
            ..sluice_command::Request::default()
        };
        io.request(0, request, sluice_uif::Data::Own(label), 0).expect("room");
        io.wake_at(Some(io.now_ns() + SECOND_NS));
    }

    fn done(&mut self, done: sluice_uif::Done, io: &mut sluice_uif::Io<'_>) {
        io.release(done.buffer.expect("it was asked with one"));
    }
}

#[test]
fn a_function_in_the_daemon_has_time_of_its_own() {
    let (here, _control) =
        PreparedUif::local(rig::config(OnDeath::Park), Box::new(Clock(0))).expect("memory");
    let mut rig = Rig::new(here);
    rig.turn(0);
    for second in 1..5u8 {
        assert_eq!(rig.stack.deadline_ns(), Some(u64::from(second) * SECOND_NS));
        rig.turn(SECOND_NS);
        let read = rig.submit(Operation::Read, 0, BLOCK, &[]);
        assert!(rig.data(read, 512) == [second; 512]);
    }
}
