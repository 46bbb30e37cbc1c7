//! Commands whose queue is gone while a layer has them: they hold back commands that overlap them.

use crate::copy::{NAMED, copy, enable_named_ranges};
use crate::host::{Host, PAGE, entry, io};
use crate::model::Model;
use crate::shared::Pair;
use sluice_command::Operation;
use sluice_nvme::opcode::io as opcode;
use sluice_nvme::{Status, SubmissionEntry};
use zerocopy::IntoBytes;

const BLOCKS: usize = 64;

/// Range of blocks of the abandoned write.
const START: u64 = 8;
const COUNT: u32 = 8;

/// Returns a command with its data in the host's memory.
type Make = fn(&mut Host) -> SubmissionEntry;

fn filled(host: &mut Host, byte: u8) -> u64 {
    let buffer = host.allocate(PAGE);
    host.write(buffer, &[byte; PAGE]);
    buffer
}

/// Returns two controllers. The first is reset while the layer has its write.
fn abandoned(model: &Model) -> Pair {
    let mut pair = Pair::enabled(model);
    model.disk().hold = true;
    let first = pair.host(0);
    let buffer = filled(first, 1);
    first.submit(1, io(opcode::WRITE, START, COUNT, buffer));
    pair.run();
    pair.host(0).controller.reset();
    pair.run();
    model.disk().hold = false;
    model.take_seen();
    pair
}

fn dataset(host: &mut Host, slba: u64, blocks: u32) -> SubmissionEntry {
    let ranges = host.allocate(PAGE);
    host.write(ranges, [u64::from(blocks) << 32, slba].as_bytes());
    SubmissionEntry { nsid: 1, dptr: [ranges, 0], cdw11: 1 << 2, ..entry(opcode::DATASET_MANAGEMENT) }
}

#[test]
fn a_newer_write_of_another_controller_ends_after_it() {
    let model = Model::new(BLOCKS);
    let mut pair = abandoned(&model);
    let second = pair.host(1);
    let (newer, other) = (filled(second, 2), filled(second, 3));
    second.submit(1, io(opcode::WRITE, START, COUNT, newer));
    assert_eq!(second.io(io(opcode::WRITE, START + u64::from(COUNT), COUNT, other)), Status::SUCCESS);
    pair.run();
    assert!(pair.host(1).reap(1).is_none(), "it waits");
    assert_eq!(model.take_seen().len(), 1);
    assert!(!pair.host(1).controller.arm(), "and wakes nothing meanwhile");
    pair.host(1).controller.disarm();
    pair.host(1).answer(1, &model, 1);
    pair.run();
    assert_eq!(pair.host(1).reap(1).map(|entry| entry.status()), Some(Status::SUCCESS));
    assert!(pair.host(0).controller.is_quiescent());
    assert!(model.disk().bytes[8 * 512..16 * 512] == [2; 4096]);
    // No command waits any more.
    assert_eq!(pair.host(1).io(io(opcode::WRITE, START, COUNT, other)), Status::SUCCESS);
}

#[test]
fn commands_that_overlap_it_wait_and_others_do_not() {
    let wait: [Make; 9] = [
        |host| io(opcode::READ, START + 7, 1, host.allocate(PAGE)),
        |host| io(opcode::WRITE, START - 1, 2, host.allocate(PAGE)),
        |host| io(opcode::COMPARE, START, 1, host.allocate(PAGE)),
        |_| SubmissionEntry { dptr: [0; 2], ..io(opcode::WRITE_ZEROES, 0, BLOCKS as u32, 0) },
        |_| SubmissionEntry { dptr: [0; 2], ..io(opcode::VERIFY, START, 1, 0) },
        |_| SubmissionEntry { dptr: [0; 2], ..io(opcode::WRITE_UNCORRECTABLE, START, 1, 0) },
        |host| dataset(host, START + 7, 20),
        |host| copy(host, NAMED, START + 4, &[(1, 40, 2)]),
        |host| copy(host, NAMED, 40, &[(1, START, 1)]),
    ];
    let go_on: [Make; 6] = [
        |host| io(opcode::READ, START - 1, 1, host.allocate(PAGE)),
        |host| io(opcode::WRITE, START + u64::from(COUNT), 1, host.allocate(PAGE)),
        |_| SubmissionEntry { nsid: 1, ..entry(opcode::FLUSH) },
        |_| SubmissionEntry { dptr: [0; 2], ..io(opcode::WRITE_ZEROES, 0, START as u32, 0) },
        |host| dataset(host, 20, 20),
        |host| copy(host, NAMED, 30, &[(1, 40, 2)]),
    ];
    let all = wait.into_iter().map(|it| (it, true)).chain(go_on.into_iter().map(|it| (it, false)));
    for (number, (command, waits)) in all.enumerate() {
        let model = Model::new(BLOCKS);
        let mut pair = abandoned(&model);
        enable_named_ranges(pair.host(1));
        let second = pair.host(1);
        let command = command(second);
        second.submit(1, command);
        pair.run();
        let is_done = pair.host(1).reap(1).is_some();
        assert_eq!((is_done, model.take_seen().is_empty()), (!waits, waits), "command {number}");
        pair.host(1).answer(1, &model, 1);
        pair.run();
        assert_eq!(pair.host(1).reap(1).is_some(), waits, "command {number}");
    }
}

/// Checks each abandoned command with the blocks that it may change, and with no others.
#[test]
fn every_command_that_changes_blocks_holds_back_others() {
    let commands: [(Make, bool); 7] = [
        (|_| SubmissionEntry { dptr: [0; 2], ..io(opcode::WRITE_ZEROES, START, COUNT, 0) }, true),
        (|host| dataset(host, START, COUNT), true),
        (|host| copy(host, NAMED, START, &[(1, 40, 3), (1, 44, 5)]), true),
        (|host| copy(host, NAMED, 40, &[(1, START, COUNT as u16)]), false),
        (|host| io(opcode::READ, START, COUNT, host.allocate(PAGE)), false),
        (|host| io(opcode::COMPARE, START, COUNT, host.allocate(PAGE)), false),
        (|_| SubmissionEntry { nsid: 1, ..entry(opcode::FLUSH) }, false),
    ];
    for (number, (command, holds_back)) in commands.into_iter().enumerate() {
        let model = Model::new(BLOCKS);
        let mut pair = Pair::enabled(&model);
        enable_named_ranges(pair.host(0));
        model.disk().hold = true;
        let first = pair.host(0);
        let command = command(first);
        first.submit(1, command);
        pair.run();
        pair.host(0).controller.reset();
        pair.run();
        model.disk().hold = false;
        model.take_seen();
        let buffer = pair.host(1).allocate(PAGE);
        for (slba, waits) in [(START - 1, false), (START + 7, holds_back), (START + 8, false)] {
            pair.host(1).submit(1, io(opcode::READ, slba, 1, buffer));
            pair.run();
            assert_eq!(pair.host(1).reap(1).is_none(), waits, "command {number}, block {slba}");
        }
    }
}

/// Its host has not seen its end, and may be about to send it once more.
#[test]
fn a_command_that_waits_is_not_carried_out_when_its_queue_is_gone() {
    let model = Model::new(BLOCKS);
    let mut pair = abandoned(&model);
    let second = pair.host(1);
    let buffer = filled(second, 2);
    second.submit(1, io(opcode::WRITE, START, COUNT, buffer));
    pair.run();
    pair.host(1).controller.reset();
    pair.run();
    assert!(pair.host(1).controller.is_quiescent(), "it waits for nothing in a layer");
    pair.host(1).answer(1, &model, 1);
    pair.run();
    assert!(model.take_seen().is_empty());
    assert!(model.disk().bytes[8 * 512..16 * 512] == [1; 4096]);
}

#[test]
fn a_fused_operation_waits_like_any_other() {
    let model = Model::new(BLOCKS);
    let mut pair = abandoned(&model);
    let second = pair.host(1);
    let (expected, wanted) = (filled(second, 1), filled(second, 2));
    let compare = SubmissionEntry { flags: 1, ..io(opcode::COMPARE, START, COUNT, expected) };
    let write = SubmissionEntry { flags: 2, ..io(opcode::WRITE, START, COUNT, wanted) };
    second.put(1, compare);
    second.put(1, write);
    second.ring(1);
    pair.run();
    assert!(model.take_seen().is_empty());
    pair.host(1).answer(1, &model, 1);
    pair.run();
    let statuses: Vec<Status> = pair.host(1).reap_all(1).into_iter().map(|entry| entry.status()).collect();
    assert_eq!(statuses, [Status::SUCCESS; 2], "it sees what the abandoned write has left");
    let seen: Vec<Operation> = model.take_seen().into_iter().map(|request| request.operation).collect();
    assert_eq!(seen, [Operation::Read, Operation::Write]);
}

/// Uses more commands of both controllers than a turn takes.
#[test]
fn all_that_waits_goes_on() {
    const EACH: u16 = 40;
    let model = Model::new(BLOCKS);
    let mut pair = abandoned(&model);
    let third = pair.host(1);
    third.create_pair(2, 64);
    let buffer = third.allocate(PAGE);
    for queue in 1..=2 {
        for _ in 0..EACH {
            third.put(queue, io(opcode::WRITE, START, 1, buffer));
        }
        third.ring(queue);
    }
    pair.run();
    assert!(model.take_seen().is_empty());
    pair.host(1).answer(1, &model, 1);
    pair.run();
    assert_eq!(model.take_seen().len(), usize::from(2 * EACH));
    assert_eq!(pair.host(1).reap_all(1).len() + pair.host(1).reap_all(2).len(), usize::from(2 * EACH));
}

/// Submits a write of one block at each of these places: of the two queues of the first host, and of the second.
fn three_writes(model: &Model, at: [u64; 3]) -> Pair {
    let mut pair = Pair::enabled(model);
    pair.host(0).create_pair(2, 16);
    model.disk().hold = true;
    for (slba, (number, queue)) in at.into_iter().zip([(0, 1), (0, 2), (1, 1)]) {
        let host = pair.host(number);
        let buffer = filled(host, 1);
        host.submit(queue, io(opcode::WRITE, slba, 1, buffer));
        pair.run();
    }
    model.disk().hold = false;
    assert_eq!(model.take_seen().len(), 3);
    pair
}

fn abandon(pair: &mut Pair, queue: u16) {
    let host = pair.host(0);
    host.controller.controller.abandon_queue(&mut host.controller.subsystem, queue, host.now_ns);
}

/// Returns the places at which a read of the second host waits.
fn held(pair: &mut Pair, places: &[u64]) -> Vec<u64> {
    let host = pair.host(1);
    let buffer = host.allocate(PAGE);
    let reads: Vec<u16> =
        places.iter().map(|slba| host.submit(1, io(opcode::READ, *slba, 1, buffer))).collect();
    pair.run();
    let done: Vec<u16> = pair.host(1).reap_all(1).iter().map(|entry| entry.cid).collect();
    places.iter().zip(reads).filter(|(_, cid)| !done.contains(cid)).map(|(slba, _)| *slba).collect()
}

/// Loses the connection of a queue, and looks which commands hold back others.
#[test]
fn the_commands_of_a_lost_queue_hold_back_and_no_others() {
    let places = [8, 16, 24];
    for (lost, holding) in [(vec![1], vec![8]), (vec![2], vec![16]), (vec![1, 2], vec![8, 16])] {
        let model = Model::new(BLOCKS);
        let mut pair = three_writes(&model, places);
        lost.iter().for_each(|queue| abandon(&mut pair, *queue));
        assert_eq!(held(&mut pair, &places), holding, "queues {lost:?}");
    }
    let model = Model::new(BLOCKS);
    let mut pair = three_writes(&model, places);
    abandon(&mut pair, 1);
    pair.host(0).controller.reset();
    assert_eq!(held(&mut pair, &places), [8, 16], "a reset after the loss of a queue");
}

/// Loses the second queue when its write has the slot of an abandoned one that has just ended.
#[test]
fn an_abandoned_command_may_have_the_slot_of_another() {
    let model = Model::new(BLOCKS);
    let mut pair = three_writes(&model, [8, 16, 24]);
    abandon(&mut pair, 1);
    model.disk().hold = true;
    let host = pair.host(0);
    let buffer = filled(host, 2);
    host.submit(2, io(opcode::WRITE, 32, 1, buffer));
    host.answer(1, &model, 1);
    host.turn();
    assert_eq!(model.take_seen().len(), 1, "the next write is in the layer");
    abandon(&mut pair, 2);
    model.disk().hold = false;
    assert_eq!(held(&mut pair, &[8, 16, 24, 32]), [16, 32]);
}

/// Loses a queue while commands of two queues wait for an abandoned one.
#[test]
fn commands_that_wait_end_with_their_own_queue() {
    for (lost, statuses) in [(1, [0, 1]), (2, [1, 0])] {
        let model = Model::new(BLOCKS);
        let mut pair = abandoned(&model);
        let second = pair.host(1);
        second.create_pair(2, 16);
        let buffer = filled(second, 2);
        for queue in 1..=2 {
            second.submit(queue, io(opcode::READ, START, 1, buffer));
        }
        pair.run();
        let host = pair.host(1);
        host.controller.controller.abandon_queue(&mut host.controller.subsystem, lost, host.now_ns);
        pair.run();
        pair.host(1).answer(1, &model, 1);
        pair.run();
        let done = [1, 2].map(|queue| {
            let done = pair.host(1).reap_all(queue);
            done.iter().filter(|entry| entry.status().is_success()).count()
        });
        assert_eq!(done, statuses, "queue {lost}");
    }
}

#[test]
fn the_end_of_an_abandoned_command_wakes_whom_it_held_up() {
    let model = Model::new(BLOCKS);
    let mut pair = abandoned(&model);
    let second = pair.host(1);
    let buffer = filled(second, 2);
    second.submit(1, io(opcode::WRITE, START, COUNT, buffer));
    pair.run();
    assert!(!pair.host(1).controller.arm());
    pair.host(1).controller.disarm();
    pair.host(0).answer(1, &model, 1);
    pair.host(0).turn();
    assert!(pair.host(1).controller.arm(), "there is something to go on with");
    pair.host(1).controller.disarm();
    pair.host(0).run();
    assert!(pair.host(1).controller.arm());
    pair.host(1).controller.disarm();
    pair.run();
    assert_eq!(pair.host(1).reap(1).map(|entry| entry.status()), Some(Status::SUCCESS));
}
