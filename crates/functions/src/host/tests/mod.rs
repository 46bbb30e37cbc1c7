//! Layer over a real target, with a function in this process, and with a test at the other end of the rings.

mod control;
mod hostile;
mod life;
mod moving;
mod request;
mod rig;
mod start;
mod translate;
mod twin;

use super::*;
use crate::Random;
use rig::{Function as Other, Rig, Xor, link, link_to, prepared_external};
use sluice_command::Operation;
use sluice_nvme::Status;
use std::collections::VecDeque;
use twin::Twin;

const OK: Status = Status::SUCCESS;
const BLOCK: u64 = 512;

/// Runs random commands, several at a time and none over another, against a plain array.
fn matches_a_plain_array(mut rig: Rig, mut other: Option<Other>, zero: u8, seed: u64) {
    let mut random = Random::new(seed);
    // The function's view of the target's zeros.
    let mut model = vec![zero; rig::SIZE as usize];
    let mut flights: VecDeque<(u16, Operation, u64, Vec<u8>)> = VecDeque::new();
    for step in 0..600 {
        let blocks = random.between(1, 40);
        let first = random.below(rig::SIZE / BLOCK - blocks);
        let (offset, length) = (first * BLOCK, (blocks * BLOCK) as usize);
        let overlaps = |(_, _, at, data): &(u16, Operation, u64, Vec<u8>)| {
            *at < offset + length as u64 && offset < at + data.len() as u64
        };
        if !flights.iter().any(overlaps) {
            let operation =
                *random.pick(&[Operation::Read, Operation::Write, Operation::Write, Operation::Flush]);
            let data: Vec<u8> = (0..length).map(|n| (random.clone().next_u64() as usize + n) as u8).collect();
            random.next_u64();
            match operation {
                Operation::Flush => {
                    flights.push_back((rig.submit(operation, 0, 0, &[]), operation, 0, vec![]))
                }
                _ => {
                    flights.push_back((
                        rig.submit(operation, offset, length as u64, &data),
                        operation,
                        offset,
                        data,
                    ));
                }
            }
        }
        if let Some(other) = &mut other {
            other.serve(random.below(4) as u16);
        }
        rig.turn(random.below(3) * 1000);
        while let Some((cid, status)) = rig.finished() {
            assert_eq!(status, OK, "seed {seed}, step {step}");
            let at = flights.iter().position(|flight| flight.0 == cid).expect("it was in flight");
            let (_, operation, offset, data) = flights.remove(at).expect("it is there");
            let range = offset as usize..offset as usize + data.len();
            match operation {
                Operation::Write => model[range].copy_from_slice(&data),
                Operation::Read => {
                    assert!(rig.data(cid, range.len()) == model[range], "seed {seed}, step {step}")
                }
                _ => {}
            }
        }
    }
    for _ in 0..10_000 {
        if flights.is_empty() {
            break;
        }
        if let Some(other) = &mut other {
            other.serve(u16::MAX);
        }
        rig.turn(1000);
        while let Some((cid, _)) = rig.finished() {
            flights.retain(|flight| flight.0 != cid);
        }
    }
    assert!(flights.is_empty(), "seed {seed}: nothing is lost");
}

#[test]
fn a_function_here_sees_every_byte_and_the_host_none_of_what_it_made_of_them() {
    for seed in 0..8 {
        let config = rig::config(OnDeath::Park);
        let (prepared_layer, _control) = PreparedUif::local(config, Box::new(Xor)).expect("memory");
        let mut rig = Rig::new(prepared_layer);
        rig.write_and_check_below();
        matches_a_plain_array(rig, None, 0x5a, seed);
    }
}

#[test]
fn a_function_there_does_the_same_through_a_small_ring_and_a_small_arena() {
    for seed in 0..8 {
        let mut rig = Rig::external(OnDeath::Park);
        // Room for the longest command, and for two others at most.
        let (link, other) = link(4, 48 << 10);
        rig.instance.offer(1, link);
        rig.notify();
        matches_a_plain_array(rig, Some(other), 0x5a, seed);
    }
}

#[test]
fn a_function_that_asks_itself_is_as_good_here_and_there() {
    for seed in 0..8 {
        let (here, _control) =
            PreparedUif::local(rig::config(OnDeath::Park), Box::new(Twin::new())).expect("memory");
        matches_a_plain_array(Rig::over(here, &twin::SIZES, 500), None, 0, seed);
        let mut rig = Rig::over(prepared_external(&Twin::new(), OnDeath::Park), &twin::SIZES, 500);
        let (link, other) = link_to(Box::new(Twin::new()), 2, 128, 256 << 10);
        rig.instance.offer(1, link);
        rig.notify();
        matches_a_plain_array(rig, Some(other), 0, seed);
    }
}

#[test]
fn a_write_waits_for_a_place_though_every_buffer_is_free() {
    let mut rig = Rig::external(OnDeath::Park);
    let (link, mut other) = link(2, 48 << 10);
    rig.instance.offer(1, link);
    rig.notify();
    for _ in 0..2 {
        rig.submit(Operation::Flush, 0, 0, &[]);
    }
    let write = rig.submit(Operation::Write, 0, BLOCK, &[1; 512]);
    assert_eq!((rig.finished(), rig.in_flight()), (None, 3));
    for _ in 0..4 {
        other.serve(u16::MAX);
        rig.turn(0);
    }
    assert!(std::iter::from_fn(|| rig.finished()).any(|done| done == (write, OK)));
}

#[test]
fn a_function_that_sleeps_is_rung_and_one_that_is_awake_is_not() {
    let mut rig = Rig::external(OnDeath::Park);
    let (link, mut other) = link(16, 1 << 20);
    rig.instance.offer(1, link);
    rig.notify();
    rig.submit(Operation::Write, 0, BLOCK, &[1; 512]);
    assert_eq!(rig.rings(), 0);
    other.serve(u16::MAX);
    other.sleep();
    rig.submit(Operation::Write, 512, BLOCK, &[1; 512]);
    rig.submit(Operation::Write, 1024, BLOCK, &[1; 512]);
    assert_eq!(rig.rings(), 1, "once for both");
}

#[test]
fn a_layer_that_waits_is_polled_until_it_is_armed_and_then_rung_for() {
    let mut rig = Rig::external(OnDeath::Park);
    let (link, mut other) = link(16, 1 << 20);
    rig.instance.offer(1, link);
    rig.notify();
    assert!(rig.stack.polls() && !rig.stack.arm(), "nothing is out");
    assert_eq!(rig.stack.deadline_ns(), None);
    rig.submit(Operation::Flush, 0, 0, &[]);
    rig.turn(0);
    assert!(!rig.stack.arm(), "nothing has come back yet");
    assert!(rig.stack.deadline_ns() > Some(0), "it has a while");
    assert!(other.serve(u16::MAX), "it has to ring");
    rig.notify_replies();
    assert_eq!(rig.finished(), Some((0, OK)));
    rig.stack.disarm();
    rig.submit(Operation::Flush, 0, 0, &[]);
    assert!(!other.serve(u16::MAX), "the layer is awake");
    assert!(rig.stack.arm(), "the reply is there: no sleep");
}
