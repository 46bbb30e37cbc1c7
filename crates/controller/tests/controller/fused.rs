//! Fused Compare and Write: both or neither, and one step to all other commands.

use crate::client::Mood;
use crate::host::{Host, PAGE, entry, io};
use crate::model::Model;
use sluice_command::TURN_BYTES;
use sluice_controller::{AnaRule, COMMANDS_MAX};
use sluice_nvme::AnaState;
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{Cns, Status, SubmissionEntry};
use zerocopy::IntoBytes;

const BLOCKS: usize = 64;

/// Values of FUSE.
const FIRST: u8 = 1;
const SECOND: u8 = 2;
/// Reserved value of PSDT, in the same field.
const PSDT: u8 = 3 << 6;

/// Returns a page with the expected data and one with the new data.
pub(crate) struct Pair {
    expected: u64,
    wanted: u64,
}

impl Pair {
    pub(crate) fn new(host: &mut Host) -> Self {
        Self { expected: host.allocate(PAGE), wanted: host.allocate(PAGE) }
    }

    /// Makes the pair wait for a write of another queue that does not end.
    pub(crate) fn wait_for_a_write(&self, host: &mut Host, model: &Model, buffer: u64) {
        model.disk().hold = true;
        submit(host, 2, &[io(opcode::WRITE, 9, 1, buffer)]);
        host.run();
        submit(host, 1, &self.entries(8, 8));
        host.run();
    }

    pub(crate) fn fill(&self, host: &Host, expected: u8, wanted: u8) {
        host.write(self.expected, &[expected; PAGE]);
        host.write(self.wanted, &[wanted; PAGE]);
    }

    pub(crate) fn entries(&self, slba: u64, blocks: u32) -> [SubmissionEntry; 2] {
        let [first, second] =
            [(opcode::COMPARE, self.expected), (opcode::WRITE, self.wanted)].map(|(opcode, buffer)| {
                SubmissionEntry { dptr: [buffer, 0], ..io(opcode, slba, blocks, buffer) }
            });
        [SubmissionEntry { flags: FIRST, ..first }, SubmissionEntry { flags: SECOND, ..second }]
    }
}

/// Returns the statuses in the order of their completions.
pub(crate) fn statuses(host: &mut Host, cq: u16) -> Vec<Status> {
    host.run();
    host.reap_all(cq).into_iter().map(|entry| entry.status()).collect()
}

/// Returns the command identifiers in the order of their completions.
pub(crate) fn submit(host: &mut Host, sq: u16, entries: &[SubmissionEntry]) -> Vec<u16> {
    let cids = entries.iter().map(|entry| host.put(sq, *entry)).collect();
    host.ring(sq);
    cids
}

/// Conformance: Base 3.4.2, the two commands of a fused operation are executed one behind the other, or neither.
#[test]
fn both_are_done_or_neither() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let page = host.identify(Cns::CONTROLLER, 0).expect("a page");
    assert_eq!(page[522], 1, "FUSES");
    assert_eq!(u16::from_le_bytes([page[532], page[533]]), 7, "ACWU: 4 KiB");
    let pair = Pair::new(&mut host);
    pair.fill(&host, 0, 7);
    submit(&mut host, 1, &pair.entries(8, 8));
    assert_eq!(statuses(&mut host, 1), [Status::SUCCESS; 2]);
    assert!(model.disk().bytes[8 * 512..16 * 512].iter().all(|&byte| byte == 7));
    submit(&mut host, 1, &pair.entries(8, 8));
    assert_eq!(statuses(&mut host, 1), [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED]);
    pair.fill(&host, 7, 9);
    model.disk().fails_with = Some(Status::UNRECOVERED_READ_ERROR);
    submit(&mut host, 1, &pair.entries(8, 8));
    assert_eq!(statuses(&mut host, 1), [Status::UNRECOVERED_READ_ERROR, Status::ABORTED_FAILED_FUSED]);
    model.disk().fails_with = None;
    assert!(model.disk().bytes[8 * 512..16 * 512].iter().all(|&byte| byte == 7));
    assert_eq!(host.controller.in_flight(), 0);
}

/// Conformance: Base 3.4.2, a command of a fused operation whose other is not next to it in its queue is aborted.
#[test]
fn what_has_no_other_half_or_another_one_is_aborted() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let pair = Pair::new(&mut host);
    pair.fill(&host, 0, 7);
    let [first, second] = pair.entries(8, 8);
    let plain = io(opcode::READ, 0, 1, pair.wanted);
    let missing = Status::ABORTED_MISSING_FUSED;
    submit(&mut host, 1, &[second]);
    assert_eq!(statuses(&mut host, 1), [missing]);
    submit(&mut host, 1, &[first, first, second]);
    let mut ended = statuses(&mut host, 1);
    ended.sort_by_key(|status| status.0 & 0x7ff);
    assert_eq!(ended, [Status::SUCCESS, Status::SUCCESS, missing], "the second pairs with the nearer");
    // A first half, another command, a second half.
    pair.fill(&host, 7, 7);
    submit(&mut host, 1, &[first, plain, second]);
    let mut ended = statuses(&mut host, 1);
    ended.sort_by_key(|status| status.0 & 0x7ff);
    assert_eq!(ended, [Status::SUCCESS, missing, missing]);
    // No entry comes after it, and then another queue continues.
    host.create_pair(2, 16);
    submit(&mut host, 1, &[first]);
    submit(&mut host, 2, &[second]);
    assert_eq!(statuses(&mut host, 2), [missing]);
    assert_eq!(statuses(&mut host, 1), []);
    assert_eq!(host.delete_sq(1), Status::SUCCESS);
    assert_eq!(statuses(&mut host, 1), [missing]);
    // These are invalid pairs.
    let both = |status| vec![status; 2];
    let elsewhere = SubmissionEntry { cdw10: 9, ..second };
    let (reversed, absent) = (SubmissionEntry { flags: SECOND, ..first }, 5);
    for (entries, ends) in [
        ([first, elsewhere], both(Status::INVALID_FIELD)),
        ([SubmissionEntry { flags: FIRST, ..second }, reversed], both(Status::INVALID_FIELD)),
        // PSDT 11b is reserved, in either half.
        ([SubmissionEntry { flags: FIRST | PSDT, ..first }, second], both(Status::INVALID_FIELD)),
        ([first, SubmissionEntry { flags: SECOND | PSDT, ..second }], both(Status::INVALID_FIELD)),
        (pair.entries(8, 9), both(Status::ATOMIC_WRITE_UNIT_EXCEEDED)),
        (pair.entries(60, 8), vec![Status::LBA_OUT_OF_RANGE, Status::ABORTED_FAILED_FUSED]),
        ([first, second].map(|it| SubmissionEntry { nsid: absent, ..it }), both(Status::INVALID_FIELD)),
        (
            [first, SubmissionEntry { dptr: [host.nowhere(), 0], ..second }],
            vec![Status::ABORTED_FAILED_FUSED, Status::DATA_TRANSFER_ERROR],
        ),
    ] {
        submit(&mut host, 2, &entries);
        assert_eq!(statuses(&mut host, 2), ends, "{entries:?}");
    }
    submit(&mut host, 2, &[SubmissionEntry { flags: 3, ..first }]);
    assert_eq!(statuses(&mut host, 2), [Status::INVALID_FIELD]);
    // These opcodes have a meaning inside of the controller.
    submit(&mut host, 2, &[0x7e, 0x7f].map(|opcode| io(opcode, 0, 1, pair.wanted)));
    assert_eq!(statuses(&mut host, 2), [Status::INVALID_OPCODE; 2]);
    assert_eq!(host.controller.in_flight(), 0);
}

/// Conformance: NVM 3.4.3, a Compare and Write is atomic.
#[test]
fn commands_on_the_same_blocks_come_before_or_after_and_others_do_not_wait() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    host.create_pair(2, 16);
    let pair = Pair::new(&mut host);
    let buffer = host.allocate(2 * PAGE);
    host.write(buffer, &[3; PAGE]);
    model.disk().hold = true;
    // A write that is under way, the pair that expects its data, and a later read.
    submit(&mut host, 2, &[io(opcode::WRITE, 15, 1, buffer)]);
    host.run();
    pair.fill(&host, 0, 7);
    host.write(pair.expected + 7 * 512, &[3; 512]);
    submit(&mut host, 1, &pair.entries(8, 8));
    host.run();
    let seen = host.allocate(2 * PAGE);
    submit(&mut host, 2, &[io(opcode::READ, 15, 1, seen), io(opcode::READ, 16, 1, buffer)]);
    host.run();
    assert_eq!(model.disk().parked.len(), 2, "the write, and the read elsewhere");
    host.answer(1, &model, 1);
    assert_eq!(statuses(&mut host, 2), [Status::SUCCESS]);
    assert_eq!(model.disk().parked.len(), 2, "the read elsewhere, and the compare");
    host.answer(1, &model, 2);
    assert_eq!(statuses(&mut host, 2), [Status::SUCCESS]);
    assert_eq!(statuses(&mut host, 1), [Status::SUCCESS]);
    host.answer(1, &model, 1);
    assert_eq!(statuses(&mut host, 1), [Status::SUCCESS]);
    host.answer(1, &model, 1);
    assert_eq!(statuses(&mut host, 2), [Status::SUCCESS]);
    assert_eq!(host.read(seen, 512), [7; 512], "what was held saw what the pair wrote");
}

/// Tests a pair that has kept more commands waiting than a turn has time for.
#[test]
fn what_was_held_goes_on_a_batch_at_a_time() {
    const MIB: u64 = 1 << 20;
    const READS: usize = 100;
    let model = Model::new(1 << 13);
    let mut host = Host::with_io(&model);
    host.create_pair(2, 128);
    let (pair, buffer, list) = (Pair::new(&mut host), host.allocate(PAGE), host.allocate(PAGE));
    pair.fill(&host, 0, 7);
    pair.wait_for_a_write(&mut host, &model, buffer);
    host.write(list, [buffer; 255].as_bytes());
    let read = SubmissionEntry { dptr: [buffer, list], ..io(opcode::READ, 0, (MIB / 512) as u32, buffer) };
    submit(&mut host, 2, &[read; READS]);
    host.run();
    assert_eq!(model.disk().parked.len(), 1);
    model.disk().hold = false;
    model.take_seen();
    host.answer(1, &model, 1);
    let mut most = 0;
    while host.turn() > 0 {
        most = most.max(model.take_seen().iter().map(|request| request.length).sum());
    }
    assert_eq!(host.reap_all(2).len(), READS + 1);
    assert!((MIB..=TURN_BYTES + 16 * MIB).contains(&most), "{most}");
}

/// Commands after a claim were checked for it. The pair must not wait for them, however many they are.
#[test]
fn a_pair_does_not_wait_for_what_came_later() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    host.create_pair(2, 16);
    let (pair, buffer) = (Pair::new(&mut host), host.allocate(2 * PAGE));
    pair.fill(&host, 0, 7);
    pair.wait_for_a_write(&mut host, &model, buffer);
    submit(&mut host, 2, &[io(opcode::VERIFY, 40, 1, buffer), io(opcode::COMPARE, 50, 1, buffer)]);
    host.run();
    assert_eq!(model.disk().parked.len(), 3);
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(model.disk().parked.len(), 3, "the two that came later, and the pair's compare");
}

/// Tests that first halves may take all the room, for the second half that comes next or for another command.
#[test]
fn a_first_half_that_takes_the_last_room_goes() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let pair = Pair::new(&mut host);
    let missing = Status::ABORTED_MISSING_FUSED;
    let [first, second] = pair.entries(8, 8);
    let plain = io(opcode::READ, 0, 1, host.allocate(PAGE));
    // A completion queue of two entries has room for one command.
    host.create_cq(2, 2);
    host.create_sq(2, 8, 2);
    for (after, ends) in [(plain, [missing, Status::SUCCESS]), (second, [missing; 2])] {
        submit(&mut host, 2, &[first, after]);
        let ended = [statuses(&mut host, 2), statuses(&mut host, 2)].concat();
        assert_eq!(ended, ends);
    }
    // The same holds for several queues, unless another command is on its way.
    host.create_cq(3, 4);
    (3..=5).for_each(|sq| assert_eq!(host.create_sq(sq, 8, 3), Status::SUCCESS));
    let lay_first = |host: &mut Host, sq| {
        submit(host, sq, &[first]);
        assert_eq!(statuses(host, 3), []);
    };
    (3..=4).for_each(|sq| lay_first(&mut host, sq));
    model.disk().hold = true;
    submit(&mut host, 5, &[plain]);
    assert_eq!(statuses(&mut host, 3), []);
    submit(&mut host, 4, &[second]);
    assert_eq!(statuses(&mut host, 3), [], "the read is on its way");
    model.disk().hold = false;
    host.answer(1, &model, 1);
    assert_eq!(statuses(&mut host, 3), [Status::SUCCESS], "the read");
    assert_eq!(statuses(&mut host, 3), [Status::SUCCESS; 2], "the pair that there is room for now");
    (4..=5).for_each(|sq| lay_first(&mut host, sq));
    submit(&mut host, 3, &[second]);
    let ended = [statuses(&mut host, 3), statuses(&mut host, 3)].concat();
    assert_eq!(ended, [missing; 2], "one that waited in vain, and a second without its first");
    for sq in [4, 5] {
        submit(&mut host, sq, &[second]);
        assert_eq!(statuses(&mut host, 3), [Status::SUCCESS; 2]);
    }
    assert_eq!(host.controller.in_flight(), 0);
}

/// Tests that an erasure waits for commands under way. A first half does not count as under way, nor does a
/// waiting pair.
#[test]
fn a_first_half_alone_holds_up_no_erasure() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let pair = Pair::new(&mut host);
    let [first, second] = pair.entries(8, 8);
    submit(&mut host, 1, &[first]);
    assert_eq!(statuses(&mut host, 1), []);
    model.disk().bytes.fill(3);
    let block_erase = SubmissionEntry { cdw10: 2, ..entry(admin::SANITIZE) };
    assert_eq!(host.admin(block_erase).status(), Status::SUCCESS);
    // The erasure checks again after a pause.
    host.now_ns = host.controller.deadline_ns().unwrap_or(host.now_ns);
    assert_eq!(statuses(&mut host, 1), []);
    assert!(model.disk().bytes.iter().all(|&byte| byte == 0));
    submit(&mut host, 1, &[second]);
    assert_eq!(statuses(&mut host, 1), [Status::SUCCESS; 2]);
}

/// Tests a pair that was checked before its namespace was closed, and waits for a write. It does not begin
/// while the namespace is being erased.
#[test]
fn a_pair_that_waits_does_not_begin_on_what_is_erased() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    host.create_pair(2, 16);
    let (pair, buffer) = (Pair::new(&mut host), host.allocate(PAGE));
    pair.wait_for_a_write(&mut host, &model, buffer);
    host.submit(0, SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) });
    host.run();
    host.answer(1, &model, 1);
    let ended = statuses(&mut host, 1);
    assert_eq!(ended, [Status::FORMAT_IN_PROGRESS, Status::ABORTED_FAILED_FUSED]);
    model.disk().hold = false;
    while host.controller.deadline_ns().is_some_and(|at_ns| at_ns != u64::MAX) && host.take(0).is_none() {
        host.now_ns += 1_000_000;
        host.run();
    }
    assert_eq!(host.controller.in_flight(), 0);
}

/// Tests that the two halves of a pair may be taken in different turns.
#[test]
fn no_pair_is_torn_by_the_erasure_of_another_namespace() {
    let models = [Model::new(BLOCKS), Model::new(BLOCKS)];
    let mut host = Host::enabled(vec![models[0].namespace(1), models[1].namespace(2)]);
    host.create_pair(1, 128);
    let (pair, buffer) = (Pair::new(&mut host), host.allocate(PAGE));
    models[1].disk().hold = true;
    host.submit(0, SubmissionEntry { nsid: 2, ..entry(admin::FORMAT_NVM) });
    host.run();
    assert_eq!(models[1].disk().parked.len(), 1, "it erases");
    // The first half is the last entry that a turn takes.
    let mut entries = vec![io(opcode::READ, 0, 1, buffer); 63];
    entries.extend(pair.entries(8, 8));
    submit(&mut host, 1, &entries);
    assert_eq!(statuses(&mut host, 1), [Status::SUCCESS; 65]);
}

/// Tests that first halves without their second, on all queues, do not hold a drive's room forever.
#[test]
fn first_halves_do_not_fill_a_drive() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let (pair, buffer) = (Pair::new(&mut host), host.allocate(PAGE));
    let [first, _] = pair.entries(8, 8);
    (2..=127).for_each(|queue| host.create_pair(queue, 2));
    host.create_pair(128, 1024);
    model.disk().hold = true;
    let mut entries = vec![io(opcode::READ, 0, 1, buffer); COMMANDS_MAX as usize - 129];
    entries.push(first);
    submit(&mut host, 128, &entries);
    (1..=127).for_each(|queue| _ = submit(&mut host, queue, &[first]));
    host.run();
    assert_eq!(host.controller.in_flight(), COMMANDS_MAX - 1, "there is room for one more");
    host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    host.run();
    let refused: Vec<Status> =
        (1..=128).flat_map(|queue| host.reap_all(queue)).map(|entry| entry.status()).collect();
    assert_eq!(refused, [Status::ABORTED_MISSING_FUSED; 128]);
    assert_eq!(host.controller.in_flight(), COMMANDS_MAX - 128);
}

/// Makes two queues compare and write the same block from the same state. The target answers in any order.
#[test]
fn of_two_pairs_that_expect_the_same_one_wins() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    host.create_pair(2, 16);
    let pairs = [Pair::new(&mut host), Pair::new(&mut host)];
    let buffer = host.allocate(2 * PAGE);
    model.disk().hold = true;
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut there = 0u8;
    for round in 0..500 {
        let wanted = [there.wrapping_add(1), there.wrapping_add(2)];
        // Overlapping ranges, and a read across them.
        let places = [8 + random(3), 8 + random(3)];
        for queue in 0..2 {
            pairs[queue].fill(&host, there, wanted[queue]);
        }
        let (mut ended, mut begun) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        while ended.iter().any(|of_queue| of_queue.len() < 2) {
            let queue = random(2) as usize;
            if begun[queue].is_empty() {
                begun[queue] = submit(&mut host, queue as u16 + 1, &pairs[queue].entries(places[queue], 3));
            } else if random(4) == 0 {
                submit(&mut host, 1, &[io(opcode::READ, 40, 1, buffer)]);
            }
            for _ in 0..random(3) {
                host.turn();
            }
            let parked = model.disk().parked.len() as u64;
            if parked > 0 {
                let which = random(parked) as usize;
                model.disk().parked.swap(0, which);
                host.answer(1, &model, 1);
            }
            host.turn();
            for queue in 0..2 {
                for completion in host.reap_all(queue as u16 + 1) {
                    let is_pairs = begun[queue].contains(&completion.cid);
                    ended[queue].extend(is_pairs.then_some(completion.status()));
                }
            }
        }
        host.run();
        while !model.disk().parked.is_empty() {
            host.answer(1, &model, 1);
            host.run();
        }
        host.reap_all(1);
        host.reap_all(2);
        let won = |queue: usize| !ended[queue].contains(&Status::ABORTED_FAILED_FUSED);
        // Ranges overlap if their starts differ by less than three blocks.
        assert!(won(0) != won(1), "round {round}: {ended:?}");
        let winner = usize::from(won(1));
        there = there.wrapping_add(3);
        let range = places[winner] as usize * 512..(places[winner] as usize + 3) * 512;
        assert!(model.disk().bytes[range].iter().all(|&byte| byte == wanted[winner]), "round {round}");
        model.disk().bytes[8 * 512..14 * 512].fill(there);
    }
    assert_eq!(host.controller.in_flight(), 0);
}

#[test]
fn a_reset_ends_what_waits() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    host.create_pair(2, 16);
    let pair = Pair::new(&mut host);
    let buffer = host.allocate(2 * PAGE);
    model.disk().hold = true;
    submit(&mut host, 2, &[io(opcode::WRITE, 8, 1, buffer)]);
    host.run();
    submit(&mut host, 1, &pair.entries(8, 8));
    submit(&mut host, 1, &pair.entries(8, 8));
    let [first, _] = pair.entries(0, 8);
    submit(&mut host, 1, &[first]);
    host.run();
    submit(&mut host, 2, &[io(opcode::READ, 8, 1, buffer)]);
    host.run();
    assert_eq!((model.disk().parked.len(), host.controller.in_flight()), (1, 7));
    host.write_register(sluice_nvme::register::CC, 0);
    host.run();
    assert_eq!(host.controller.in_flight(), 1);
    host.answer(1, &model, 1);
    host.run();
    model.disk().hold = false;
    host.enable();
    host.create_pair(1, 16);
    assert_eq!(host.io(io(opcode::READ, 8, 1, buffer)), Status::SUCCESS);
}

/// Tests a command whose list was fetched, and that waits for a pair. It uses the fetched list when it starts
/// again.
#[test]
fn what_a_client_has_brought_is_there_after_the_wait() {
    let model = Model::new(BLOCKS);
    // The first MiB is shared.
    let mut host = Host::with_client(&model, 11, |chunk| chunk < 16);
    let pair = Pair::new(&mut host);
    pair.fill(&host, 0, 7);
    host.align(1 << 20);
    let buffer = host.allocate(4 * PAGE);
    host.write(buffer, &[0x33; 4 * PAGE]);
    let list = host.allocate(PAGE);
    let pages = [buffer + PAGE as u64, buffer + 2 * PAGE as u64].map(u64::to_le_bytes);
    host.write(list, &pages.concat());
    host.client.mood = Mood::Silent;
    let read = SubmissionEntry { dptr: [buffer, list], ..io(opcode::READ, 0, 24, buffer) };
    submit(&mut host, 1, &[read]);
    host.run();
    model.disk().hold = true;
    submit(&mut host, 1, &pair.entries(8, 8));
    host.run();
    assert_eq!(model.disk().parked.len(), 1, "the compare, and not the read");
    host.client.mood = Mood::Willing;
    host.run();
    assert_eq!(model.disk().parked.len(), 1, "the read waits");
    model.disk().hold = false;
    host.answer(1, &model, 1);
    assert_eq!(statuses(&mut host, 1), [Status::SUCCESS; 3]);
    let seen = host.read(buffer, 4 * PAGE);
    let is = |page: usize, byte| seen[page * PAGE..][..PAGE].iter().all(|&it| it == byte);
    assert!(is(0, 0) && is(1, 7) && is(2, 0) && is(3, 0x33));
    // Nothing is fetched for a pair.
    let mut entries = pair.entries(8, 8);
    entries[1].dptr[0] = buffer;
    submit(&mut host, 1, &entries);
    assert_eq!(statuses(&mut host, 1), [Status::ABORTED_FAILED_FUSED, Status::DATA_TRANSFER_ERROR]);
    assert_eq!(host.controller.in_flight(), 0);
}

#[test]
fn a_way_that_leads_nowhere_takes_no_pair() {
    let mut host = Host::with_io(&Model::new(BLOCKS));
    let pair = Pair::new(&mut host);
    pair.fill(&host, 0, 1);
    host.controller.controller.set_port(&mut host.controller.subsystem, "10.0.0.1:4420");
    let closed = AnaRule { port: None, group: None, state: AnaState::Inaccessible };
    host.controller.subsystem.set_ana(vec![closed]);
    submit(&mut host, 1, &pair.entries(0, 8));
    let expected = [Status::ASYMMETRIC_ACCESS_INACCESSIBLE, Status::ABORTED_FAILED_FUSED];
    assert_eq!(statuses(&mut host, 1), expected);
    host.controller.subsystem.set_ana(Vec::new());
    submit(&mut host, 1, &pair.entries(0, 8));
    assert_eq!(statuses(&mut host, 1), [Status::SUCCESS; 2]);
}
