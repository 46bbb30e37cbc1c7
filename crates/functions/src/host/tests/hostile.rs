//! Hostile functions.

use super::*;
use sluice_uif::abi::{Reply, Submission};
use std::sync::atomic::Ordering::Relaxed;

fn connected(on_death: OnDeath) -> (Rig, Other) {
    let mut rig = Rig::external(on_death);
    let (link, other) = link(8, 256 << 10);
    rig.instance.offer(1, link);
    rig.notify();
    (rig, other)
}

#[test]
fn repeated_invented_and_late_replies_are_dropped_and_counted() {
    let (mut rig, mut other) = connected(OnDeath::Park);
    rig.submit(Operation::Write, 0, BLOCK, &[1; 512]);
    let entry: Submission = other.requests.take();
    let reply = other.answer(&entry);
    let invented = Reply { tag: reply.tag ^ 1, ..reply };
    let of_another_time = Reply { tag: reply.tag ^ 1 << 40, ..reply };
    for reply in [invented, of_another_time, reply, reply] {
        other.replies.push(&reply);
    }
    let _ = other.replies.publish();
    rig.turn(0);
    // The command went below once, and is back with the function under another tag.
    let again: Submission = other.requests.take();
    assert_ne!(again.tag, entry.tag);
    other.replies.push(&reply);
    let reply = other.answer(&again);
    other.replies.push(&reply);
    let _ = other.replies.publish();
    rig.turn(0);
    assert_eq!((rig.finished(), rig.finished()), (Some((0, OK)), None));
    assert_eq!((rig.instance.counts.stray.get(), rig.instance.counts.replies.get()), (4, 2));
}

#[test]
fn what_makes_no_sense_fails_its_command_and_no_other() {
    let bad: [fn(&mut Reply); 8] = [
        |reply| reply.disposition = 3,
        |reply| reply.operation = 5,
        |reply| reply.offset = rig::SIZE,
        |reply| reply.offset = u64::MAX - 511,
        |reply| reply.offset = 1,
        |reply| reply.length = 1024,
        |reply| reply.length = 0,
        |reply| (reply.operation, reply.length) = (3, rig::SIZE + 512),
    ];
    for (number, spoil) in bad.into_iter().enumerate() {
        let (mut rig, mut other) = connected(OnDeath::Park);
        rig.submit(Operation::Write, 0, BLOCK, &[1; 512]);
        rig.submit(Operation::Write, 512, BLOCK, &[1; 512]);
        let entry: Submission = other.requests.take();
        let mut reply = other.answer(&entry);
        spoil(&mut reply);
        other.replies.push(&reply);
        for _ in 0..3 {
            other.serve(u16::MAX);
            rig.turn(0);
        }
        assert_eq!(rig.finished(), Some((0, Status::INTERNAL_ERROR)), "{number}");
        assert_eq!(rig.finished(), Some((1, OK)), "{number}");
        assert_eq!(rig.instance.counts.invalid.get(), 1);
    }
}

#[test]
fn a_tail_that_cannot_be_ends_the_connection() {
    let (mut rig, other) = connected(OnDeath::Fail);
    rig.submit(Operation::Write, 0, BLOCK, &[1; 512]);
    other.rings.region().atomic_u32(2 * 4096).store(9, Relaxed);
    rig.turn(0);
    assert!(rig.instance.is_killed(1));
    assert_eq!(rig.finished(), Some((0, Status::INTERNAL_ERROR)));
}

#[test]
fn a_function_finds_nothing_in_its_arena_of_commands_that_are_done() {
    let (mut rig, mut other) = connected(OnDeath::Park);
    rig.submit(Operation::Write, 0, 4096, &[7; 4096]);
    rig.submit(Operation::Read, 0, 4096, &[]);
    for _ in 0..4 {
        other.serve(u16::MAX);
        rig.turn(0);
    }
    assert_eq!(std::iter::from_fn(|| rig.finished()).filter(|(_, status)| *status == OK).count(), 2);
    assert!(other.arena.bytes(0, 256 << 10).expect("all of it").iter().all(|byte| *byte == 0));
}

/// Has a function write anything into its memory: the commands end, the layer below gets nothing that it must
/// not get (a guard there panics), and the next function finds everything in order.
#[test]
fn random_memory_harms_nobody() {
    for seed in 0..120 {
        let version = seed as u32 % 2 + 1;
        let connect = || link_to(Box::new(Xor), version, [8, 128][version as usize - 1], 256 << 10);
        let mut rig = Rig::over(prepared_external(&Xor, OnDeath::Fail), &[rig::SIZE, 1 << 16], 1 << 20);
        let (link, mut other) = connect();
        rig.instance.offer(1, link);
        rig.notify();
        let mut random = Random::new(seed);
        let mut number = 1;
        for _ in 0..300 {
            if rig.in_flight() < 40 {
                let operation = *random.pick(&[Operation::Read, Operation::Write, Operation::Flush]);
                let length = if operation == Operation::Flush { 0 } else { random.between(1, 40) * 512 };
                let offset = random.below((rig::SIZE - length) / 512 + 1) * 512;
                let offset = if length == 0 { 0 } else { offset };
                rig.submit(operation, offset, length, &vec![1; length as usize]);
            }
            match random.below(8) {
                0 => scribble(&other, &mut random),
                1 => (0..random.below(6)).for_each(|_| other.replies.push(&likely(&mut random))),
                2 => drop(other.replies.publish()),
                3 => rig.notify_replies(),
                _ => rig.turn(random.below(1 << 28)),
            }
            while rig.finished().is_some() {}
            if rig.instance.is_killed(number) {
                number += 1;
                let (link, next) = connect();
                rig.instance.offer(number, link);
                rig.notify();
                other = next;
            }
        }
        dies_and_returns(&mut rig, number, seed);
    }
}

fn dies_and_returns(rig: &mut Rig, number: u32, seed: u64) {
    rig.instance.end(number);
    rig.notify();
    // Commands in the layers below come back.
    rig.turn(1 << 30);
    while rig.finished().is_some() {}
    assert_eq!((rig.in_flight(), rig.live()), (0, 0), "seed {seed}");
    let (link, mut honest) = link(8, 256 << 10);
    rig.instance.offer(number + 1, link);
    rig.notify();
    let cid = rig.submit(Operation::Write, 0, BLOCK, &[1; 512]);
    for _ in 0..3 {
        honest.serve(u16::MAX);
        rig.turn(1 << 21);
    }
    assert_eq!(rig.finished(), Some((cid, OK)), "seed {seed}");
}

/// Writes random words anywhere in the rings.
fn scribble(other: &Other, random: &mut Random) {
    let region = other.rings.region();
    for _ in 0..random.between(1, 50) {
        let word = random.below(region.len() as u64 / 8) as usize * 8;
        let value = *random.clone().pick(&[0, 1, 8, u64::MAX, random.next_u64()]);
        region.atomic_u64(word).store(value, Relaxed);
    }
}

/// Returns a plausible reply: for a slot that exists, of a generation that existed.
fn likely(random: &mut Random) -> Reply {
    let mut words: [u64; 8] = std::array::from_fn(|_| random.next_u64());
    words[0] = random.below(6) << 32 | random.below(70);
    let mut reply: Reply = zerocopy::transmute!(words);
    (reply.disposition, reply.operation) = (random.below(7) as u8, random.below(6) as u8);
    if random.one_in(2) {
        (reply.offset, reply.length) = (random.below(2050) * 512, random.below(50) * 512);
        (reply.layer, reply.data_offset) = (random.below(3) as u8, random.below(600) * 512);
    }
    reply
}
