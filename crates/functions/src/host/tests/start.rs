//! Start of a function.

use super::*;
use sluice_command::{Characteristics, Layer, Opcodes, Passthrough};
use sluice_uif::abi::{Reply, Submission, disposition, kind};

const SECOND_NS: u64 = 1_000_000_000;

fn connected() -> (Rig, Other) {
    let mut rig = Rig::over(prepared_external(&Xor, OnDeath::Park), &[rig::SIZE, 1 << 16], 0);
    let (link, other) = link_to(Box::new(Xor), 2, 128, 256 << 10);
    rig.instance.offer(1, link);
    rig.notify();
    (rig, other)
}

fn heard(other: &mut Other) -> Vec<Submission> {
    (0..other.requests.waiting().expect("in order")).map(|_| other.requests.take()).collect()
}

fn say(other: &mut Other, reply: Reply) {
    other.replies.push(&reply);
    let _ = other.replies.publish();
}

fn ready(status: Status) -> Reply {
    Reply { disposition: disposition::READY, status: status.0, ..Reply::default() }
}

#[test]
fn a_function_is_told_what_it_stands_on_and_gets_commands_when_it_is_ready() {
    let (mut rig, mut other) = connected();
    rig.submit(Operation::Flush, 0, 0, &[]);
    rig.turn(0);
    let told = heard(&mut other);
    let kinds: Vec<u8> = told.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [kind::BELOW, kind::BELOW, kind::START]);
    assert_eq!([told[0].offset, told[1].offset], [rig::SIZE, 1 << 16]);
    assert_eq!((told[1].stage, told[1].length), (1, 512));
    say(&mut other, ready(OK));
    rig.turn(0);
    assert_eq!(heard(&mut other).iter().map(|entry| entry.kind).collect::<Vec<_>>(), [kind::COMMAND]);
}

#[test]
fn what_cannot_start_fails_its_commands_with_the_reason_until_it_can() {
    let (mut rig, mut other) = connected();
    let early = rig.submit(Operation::Flush, 0, 0, &[]);
    rig.turn(0);
    say(&mut other, ready(Status::WRITE_FAULT));
    rig.turn(0);
    let late = rig.submit(Operation::Read, 0, BLOCK, &[]);
    let past = rig.submit(Operation::Deallocate, 0, BLOCK, &[]);
    let fault = Status::WRITE_FAULT;
    assert_eq!([rig.finished(), rig.finished()], [Some((early, fault)), Some((late, fault))]);
    assert_eq!(rig.finished(), Some((past, OK)), "it does not want to see these");
    say(&mut other, ready(OK));
    rig.turn(0);
    heard(&mut other);
    let better = rig.submit(Operation::Flush, 0, 0, &[]);
    other.serve(u16::MAX);
    rig.turn(0);
    assert_eq!(rig.finished(), Some((better, OK)));
}

#[test]
fn a_layer_of_another_size_is_news() {
    let (mut rig, mut other) = connected();
    rig.turn(0);
    other.serve(u16::MAX);
    rig.turn(0);
    rig.resize(rig::SIZE / 2);
    rig.submit(Operation::Flush, 0, 0, &[]);
    let told = heard(&mut other);
    assert_eq!(
        told.iter().map(|entry| entry.kind).collect::<Vec<_>>(),
        [kind::BELOW, kind::BELOW, kind::START]
    );
    assert_eq!(told[0].offset, rig::SIZE / 2);
    say(&mut other, ready(OK));
    rig.turn(0);
    other.serve(u16::MAX);
    rig.turn(0);
    assert_eq!(rig.finished(), Some((0, OK)));
}

#[test]
fn a_function_that_never_gets_ready_is_ended() {
    let (mut rig, _silent) = connected();
    rig.turn(0);
    for _ in 0..59 {
        rig.turn(SECOND_NS);
    }
    assert!(!rig.instance.is_killed(1));
    rig.turn(SECOND_NS);
    assert!(rig.instance.is_killed(1));
    assert_eq!(rig.instance.counts.timeouts.get(), 1);
}

#[test]
fn no_command_that_only_a_device_knows_is_announced() {
    let passthrough = Passthrough { io: Opcodes::NONE.and(0x93), admin: Opcodes::NONE.and(0xc0) };
    let below = Characteristics { passthrough, ..Characteristics::target(rig::SIZE, 512) };
    let layer = rig::layer(prepared_external(&Xor, OnDeath::Park), std::sync::Arc::default());
    assert_eq!(layer.characteristics(&[below]).passthrough, Passthrough::NONE);
}
