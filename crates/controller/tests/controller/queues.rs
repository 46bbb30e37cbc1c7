//! I/O queues: created, used, full, and deleted in every order.

use crate::copy::copy;
use crate::host::{CC_ENABLED, Host, PAGE, create_cq, create_sq, entry, io as io_entry};
use crate::io::{DEALLOCATE, dataset};
use crate::model::Model;
use sluice_command::TURN_BYTES;
use sluice_controller::{IO_QUEUES_MAX, QUEUE_ENTRIES_MAX};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{Status, SubmissionEntry, register};
use zerocopy::IntoBytes;

fn flush() -> SubmissionEntry {
    SubmissionEntry { nsid: 1, ..entry(io::FLUSH) }
}

fn host() -> Host {
    Host::enabled(vec![Model::new(64).namespace(1)])
}

/// Conformance: Base 5.4, an invalid identifier, size, vector or address of a completion queue is refused with the status named for it.
/// Conformance: Base 5.4, a completion queue without interrupts needs no valid vector.
#[test]
fn completion_queues_that_cannot_be_are_refused() {
    let mut host = host();
    let memory = host.allocate(2 * PAGE);
    let good = create_cq(3, 16, memory);
    let cases = [
        (create_cq(0, 16, memory), Status::INVALID_QUEUE_IDENTIFIER),
        (SubmissionEntry { cdw10: 129 | 15 << 16, ..good }, Status::INVALID_QUEUE_IDENTIFIER),
        (SubmissionEntry { cdw10: 0xffff | 15 << 16, ..good }, Status::INVALID_QUEUE_IDENTIFIER),
        (create_cq(3, 1, memory), Status::INVALID_QUEUE_SIZE),
        (create_cq(3, QUEUE_ENTRIES_MAX + 1, memory), Status::INVALID_QUEUE_SIZE),
        (create_cq(3, 0x1_0000, memory), Status::INVALID_QUEUE_SIZE),
        (SubmissionEntry { cdw11: good.cdw11 & !1, ..good }, Status::INVALID_FIELD),
        (SubmissionEntry { cdw11: 129 << 16 | 0b11, ..good }, Status::INVALID_INTERRUPT_VECTOR),
        (create_cq(3, 16, memory + 16), Status::PRP_OFFSET_INVALID),
        (create_cq(3, 16, host.nowhere()), Status::DATA_TRANSFER_ERROR),
    ];
    for (entry, status) in cases {
        assert_eq!(host.admin(entry).status(), status, "{entry:?}");
    }
    assert!(host.admin(good).status().is_success());
    assert_eq!(host.admin(good).status(), Status::INVALID_QUEUE_IDENTIFIER, "it is there already");
    // Without interrupts the vector is ignored.
    let polled = SubmissionEntry { cdw11: 0xffff << 16 | 1, ..create_cq(4, 16, memory) };
    assert!(host.admin(polled).status().is_success());
}

/// Conformance: Base 5.5, an invalid identifier, size, completion queue or address of a submission queue is refused with the status named for it.
#[test]
fn submission_queues_that_cannot_be_are_refused() {
    let mut host = host();
    assert_eq!(host.create_cq(3, 16), Status::SUCCESS);
    let memory = host.allocate(PAGE);
    let good = create_sq(5, 16, 3, memory);
    let cases = [
        (create_sq(0, 16, 3, memory), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(129, 16, 3, memory), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(5, 1, 3, memory), Status::INVALID_QUEUE_SIZE),
        (create_sq(5, QUEUE_ENTRIES_MAX + 1, 3, memory), Status::INVALID_QUEUE_SIZE),
        (create_sq(5, 16, 0, memory), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(5, 16, 129, memory), Status::INVALID_QUEUE_IDENTIFIER),
        (create_sq(5, 16, 4, memory), Status::COMPLETION_QUEUE_INVALID),
        (create_sq(5, 16, 128, memory), Status::COMPLETION_QUEUE_INVALID),
        (SubmissionEntry { cdw11: 3 << 16, ..good }, Status::INVALID_FIELD),
        (create_sq(5, 16, 3, memory + 64), Status::PRP_OFFSET_INVALID),
        (create_sq(5, 16, 3, host.nowhere()), Status::DATA_TRANSFER_ERROR),
    ];
    for (entry, status) in cases {
        assert_eq!(host.admin(entry).status(), status, "{entry:?}");
    }
    assert!(host.admin(good).status().is_success());
    assert_eq!(host.admin(good).status(), Status::INVALID_QUEUE_IDENTIFIER, "it is there already");
}

/// Conformance: Base 3.1.3.5, CC.IOSQES and CC.IOCQES may be set after enabling and before the first I/O queue, and queues are created only with them.
#[test]
fn entry_sizes_are_those_that_cc_names() {
    let mut host = Host::new(vec![Model::new(64).namespace(1)]);
    host.configure_admin_queues();
    host.write_register(register::CC, 1);
    host.turn();
    assert_eq!(host.create_cq(1, 16), Status::INVALID_QUEUE_SIZE);
    // CC.IOSQES and CC.IOCQES may be set after enabling, and before the first queue.
    host.write_register(register::CC, CC_ENABLED);
    host.create_pair(1, 16);
}

/// Conformance: Base 5.27.1.5, as many I/O queues work as were granted.
/// Conformance: Base 3.3.3.2, a completion names its submission queue and how far that was read.
#[test]
fn every_queue_there_may_be_works() {
    let model = Model::new(64);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    for id in 1..=IO_QUEUES_MAX {
        host.create_pair(id, 4);
    }
    for id in (1..=IO_QUEUES_MAX).rev() {
        host.submit(id, flush());
    }
    host.run();
    for id in 1..=IO_QUEUES_MAX {
        let completion = host.reap(id).expect("a completion");
        assert_eq!((completion.sq_id, completion.sq_head), (id, 1));
    }
    let mut vectors = Vec::new();
    host.controller.controller.take_vectors(|vector| vectors.push(vector));
    assert!(vectors.into_iter().eq(0..=IO_QUEUES_MAX), "each queue has its vector");
    host.controller.controller.take_vectors(|vector| panic!("vector {vector} twice"));
}

/// Conformance: Base 3.1.3.1, queues of CAP.MQES entries work and go round.
/// Conformance: Base 3.3.3.2, the phase tag turns over each time that a completion queue goes round.
#[test]
fn the_deepest_queue_goes_round() {
    let model = Model::new(64);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    host.create_pair(1, QUEUE_ENTRIES_MAX);
    for round in 0..3 {
        for _ in 1..QUEUE_ENTRIES_MAX {
            host.put(1, flush());
        }
        host.ring(1);
        host.run();
        let mut count = 0;
        while let Some(completion) = host.take(1) {
            assert!(completion.status().is_success());
            count += 1;
        }
        assert_eq!(count, QUEUE_ENTRIES_MAX - 1, "round {round}");
        host.release(1);
    }
}

/// Conformance: Base 3.3.1, queues of two entries work: a queue is full with one entry less than its size.
#[test]
fn the_smallest_queues_go_round() {
    let model = Model::new(64);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    for (id, sq_size, cq_size) in [(1, 2, 2), (2, 2, 3), (3, 3, 2), (4, 7, 5)] {
        assert_eq!(host.create_cq(id, cq_size), Status::SUCCESS);
        assert_eq!(host.create_sq(id, sq_size, id), Status::SUCCESS);
        for count in 1..50 {
            let completion = host.execute(id, flush());
            assert_eq!(u32::from(completion.sq_head), count % sq_size);
        }
    }
}

/// Conformance: Base 3.3.1, nothing is written to a completion queue that is full, and no completion is lost.
/// Conformance: Base 3.3.1.2, entries of a completion queue are released by its head doorbell alone.
#[test]
fn a_full_completion_queue_holds_commands_back() {
    let model = Model::new(64);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    assert_eq!(host.create_cq(1, 4), Status::SUCCESS);
    assert_eq!(host.create_sq(1, 16, 1), Status::SUCCESS);
    let cids: Vec<u16> = (0..10).map(|_| host.put(1, flush())).collect();
    host.ring(1);
    host.run();
    assert_eq!(model.take_seen().len(), 3, "as many as have a slot");
    let mut completed = Vec::new();
    while completed.len() < 9 {
        for _ in 0..3 {
            completed.push(host.take(1).expect("a completion").cid);
        }
        assert_eq!(host.take(1), None);
        host.run();
        assert_eq!(model.take_seen().len(), 0, "nothing was released");
        host.release(1);
        host.run();
        assert_eq!(model.take_seen().len(), (10 - completed.len()).min(3));
    }
    completed.push(host.reap(1).expect("the last").cid);
    assert_eq!(completed, cids);
}

#[test]
fn slots_are_promised_to_commands_in_flight() {
    let model = Model::new(64);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    assert_eq!(host.create_cq(1, 3), Status::SUCCESS);
    for sq in [1, 2, 3] {
        assert_eq!(host.create_sq(sq, 8, 1), Status::SUCCESS);
    }
    model.disk().hold = true;
    for sq in [1, 2, 3] {
        host.submit(sq, flush());
    }
    host.run();
    assert_eq!(model.take_seen().len(), 2);
    host.answer(1, &model, 2);
    host.run();
    assert_eq!(model.take_seen().len(), 0, "both slots are taken by completions now");
    assert_eq!(host.reap_all(1).len(), 2);
    host.run();
    assert_eq!(model.take_seen().len(), 1);
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.reap_all(1).len(), 1);
}

/// Conformance: Base 5.5, several submission queues may share a completion queue.
/// Conformance: Base 5.6, a completion queue that a submission queue uses cannot be deleted.
#[test]
fn several_submission_queues_share_a_completion_queue() {
    let model = Model::new(64);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    assert_eq!(host.create_cq(9, 32), Status::SUCCESS);
    for sq in [3, 9, 100] {
        assert_eq!(host.create_sq(sq, 8, 9), Status::SUCCESS);
    }
    let expected: Vec<_> = [100, 3, 9].map(|sq| (sq, host.submit(sq, flush()))).into();
    host.run();
    let mut found: Vec<_> = host.reap_all(9).iter().map(|c| (c.sq_id, c.cid)).collect();
    found.sort_by_key(|pair| pair.1);
    assert_eq!(found, expected);
    assert_eq!(host.delete_cq(9), Status::INVALID_QUEUE_DELETION);
    assert_eq!(host.delete_sq(9), Status::SUCCESS);
    assert_eq!(host.delete_sq(100), Status::SUCCESS);
    assert_eq!(host.delete_cq(9), Status::INVALID_QUEUE_DELETION);
    assert!(host.execute(3, flush()).status().is_success(), "the one left still works");
    assert_eq!(host.delete_sq(3), Status::SUCCESS);
    assert_eq!(host.delete_cq(9), Status::SUCCESS);
}

/// Conformance: Base 5.7, only queues that exist can be deleted, and not the admin queues.
#[test]
fn queues_that_are_not_there_cannot_be_deleted() {
    let mut host = host();
    host.create_pair(1, 4);
    for id in [0, 2, 129, 0xffff] {
        assert_eq!(host.delete_sq(id), Status::INVALID_QUEUE_IDENTIFIER);
        assert_eq!(host.delete_cq(id), Status::INVALID_QUEUE_IDENTIFIER);
    }
    assert_eq!(host.delete_sq(1), Status::SUCCESS);
    assert_eq!(host.delete_sq(1), Status::INVALID_QUEUE_IDENTIFIER);
    assert_eq!(host.delete_cq(1), Status::SUCCESS);
    assert_eq!(host.delete_cq(1), Status::INVALID_QUEUE_IDENTIFIER);
}

#[test]
fn a_queue_created_anew_begins_at_the_beginning() {
    let model = Model::new(64);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    for _ in 0..3 {
        host.create_pair(1, 8);
        for _ in 0..5 {
            assert!(host.io(flush()).is_success());
        }
        assert_eq!(host.delete_sq(1), Status::SUCCESS);
        assert_eq!(host.delete_cq(1), Status::SUCCESS);
    }
}

/// Conformance: Base 5.7, a Delete I/O Submission Queue is completed after all commands that were taken out of the queue.
#[test]
fn a_deletion_waits_for_commands_in_flight() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    model.disk().hold = true;
    let flying = [host.submit(1, flush()), host.submit(1, flush())];
    host.run();
    let deletion = host.submit(0, SubmissionEntry { cdw10: 1, ..entry(admin::DELETE_IO_SQ) });
    host.run();
    let waiting = host.submit(1, flush());
    host.run();
    assert_eq!(host.take(0), None);
    assert_eq!(model.take_seen().len(), 2, "nothing is fetched from a queue that is being deleted");
    assert_eq!(host.delete_sq(1), Status::INVALID_QUEUE_IDENTIFIER, "it is being deleted");
    assert_eq!(host.create_sq(1, 4, 1), Status::INVALID_QUEUE_IDENTIFIER, "and is still there");
    assert_eq!(host.delete_cq(1), Status::INVALID_QUEUE_DELETION);

    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.reap(1).map(|completion| completion.cid), Some(flying[0]));
    assert_eq!(host.take(0), None);
    host.answer(1, &model, 1);
    host.run();
    assert_eq!(host.reap(1).map(|completion| completion.cid), Some(flying[1]));
    let completion = host.reap(0).expect("the deletion");
    assert_eq!((completion.cid, completion.status()), (deletion, Status::SUCCESS));
    assert_eq!(host.take(1), None, "command {waiting} is gone with its queue");
    assert_eq!(host.delete_cq(1), Status::SUCCESS);
    assert!(host.controller.is_quiescent());
}

#[test]
fn two_deletions_wait_at_once() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    host.create_pair(2, 8);
    model.disk().hold = true;
    for sq in [1, 2] {
        host.submit(sq, flush());
    }
    host.run();
    let delete = |id| SubmissionEntry { cdw10: id, ..entry(admin::DELETE_IO_SQ) };
    let deletions = [host.submit(0, delete(2)), host.submit(0, delete(1))];
    host.run();
    assert_eq!(host.take(0), None);
    host.answer(1, &model, 2);
    host.run();
    let mut finished: Vec<u16> = host.reap_all(0).iter().map(|completion| completion.cid).collect();
    finished.sort_unstable();
    assert_eq!(finished, deletions);
}

#[test]
fn a_queue_may_be_deleted_by_the_command_before_its_entries_are_fetched() {
    let model = Model::new(64);
    let mut host = Host::with_io(&model);
    let address = host.allocate(PAGE);
    // There is one doorbell write and one fetch: the queue goes away, comes back, and goes again.
    host.put(0, SubmissionEntry { cdw10: 1, ..entry(admin::DELETE_IO_SQ) });
    host.put(0, create_sq(1, 4, 1, address));
    host.put(0, SubmissionEntry { cdw10: 1, ..entry(admin::DELETE_IO_SQ) });
    host.put(0, SubmissionEntry { cdw10: 1, ..entry(admin::DELETE_IO_CQ) });
    host.ring(0);
    host.run();
    let statuses: Vec<_> = host.reap_all(0).iter().map(|completion| completion.status()).collect();
    assert_eq!(statuses, [Status::SUCCESS; 4]);
    assert_eq!(host.controller.overview().submission_queues, 0);
    assert_eq!(host.controller.overview().completion_queues, 0);
}

#[test]
fn more_commands_than_the_drive_takes_wait_in_their_queues() {
    let model = Model::new(64);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    host.create_pair(1, 2048);
    model.disk().hold = true;
    for _ in 0..2000 {
        host.put(1, flush());
    }
    host.ring(1);
    host.run();
    let limit = sluice_controller::COMMANDS_MAX as usize;
    assert_eq!(model.disk().parked.len(), limit);
    assert_eq!(host.controller.in_flight() as usize, limit);
    let mut completed = 0;
    while completed < 2000 {
        let parked = model.disk().parked.len();
        host.answer(1, &model, parked);
        host.run();
        completed += host.reap_all(1).len();
    }
    assert_eq!(host.controller.in_flight(), 0);
}

/// Conformance: Base 3.3.1.2, a completion queue head that cannot be releases nothing.
#[test]
fn an_impossible_head_makes_no_room() {
    let model = Model::new(64);
    let mut host = Host::enabled(vec![model.namespace(1)]);
    assert_eq!(host.create_cq(1, 4), Status::SUCCESS);
    assert_eq!(host.create_sq(1, 16, 1), Status::SUCCESS);
    for _ in 0..3 {
        host.put(1, flush());
    }
    host.ring(1);
    host.run();
    assert_eq!(model.take_seen().len(), 3);
    assert!(host.take(1).is_some() && host.take(1).is_some());
    host.release(1);
    host.submit(1, flush());
    host.run();
    assert_eq!(model.take_seen().len(), 1, "the controller has read the head");
    // The next head lies before it, and would release entries that were not written yet. One slot is free.
    host.submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    host.ring_with(12, 1);
    model.disk().hold = true;
    host.put(1, flush());
    host.submit(1, flush());
    host.run();
    assert_eq!(model.take_seen().len(), 1);
    assert_eq!(host.reap(0).map(|event| event.dw0), Some(0x0001_0100), "an invalid doorbell value");
    while host.take(1).is_some() {}
    host.release(1);
    host.run();
    assert_eq!(model.take_seen().len(), 1);
    model.disk().hold = false;
    host.answer(1, &model, 2);
    host.run();
    let buffer = host.allocate(PAGE);
    assert_eq!(host.reap_all(1).len(), 2);
    assert!(host.io(io_entry(io::READ, 0, 1, buffer)).is_success());
}

/// Conformance: Base 3.4.4, round robin: each submission queue gets its turn.
#[test]
fn a_turn_moves_so_much_and_the_next_begins_with_the_other_queues() {
    const BLOCKS: u32 = 1 << 16;
    const { assert!(BLOCKS as u64 * 512 >= TURN_BYTES) };
    let mut host = Host::with_io(&Model::new(BLOCKS as usize));
    host.create_pair(2, 8);
    host.create_pair(3, 8);
    for sq in [1, 2, 3] {
        for _ in 0..2 {
            host.put(sq, io_entry(io::WRITE_ZEROES, 0, BLOCKS, 0));
        }
        host.ring(sq);
    }
    let mut served = Vec::new();
    for _ in 0..3 {
        assert!(host.turn() > 0);
        let done = [1, 2, 3].map(|cq| host.reap_all(cq).len());
        served.extend((1..=3).zip(done).filter(|(_, count)| *count > 0));
        assert_eq!(done.iter().sum::<usize>(), 2, "one queue in each turn");
    }
    served.sort_unstable();
    assert_eq!(served, [(1, 2), (2, 2), (3, 2)]);
}

#[test]
fn what_a_queue_has_beyond_what_a_turn_moves_stays_there_for_the_next() {
    const BLOCKS: u32 = 1 << 16;
    let mut host = Host::with_io(&Model::new(BLOCKS as usize));
    host.create_pair(2, 64);
    for _ in 0..40 {
        host.put(2, io_entry(io::WRITE_ZEROES, 0, BLOCKS, 0));
    }
    host.ring(2);
    let mut served = Vec::new();
    for _ in 0..4 {
        host.turn();
        served.push(host.reap_all(2).len());
    }
    assert_eq!(served, [16, 16, 8, 0]);
}

/// Fills two queues with one command, and returns the most bytes that its target was requested in one turn.
fn most_of_a_turn(command: impl FnOnce(&mut Host) -> SubmissionEntry) -> u64 {
    const EACH: usize = 40;
    let model = Model::new(1 << 13);
    let mut host = Host::with_io(&model);
    let command = command(&mut host);
    [2, 3].into_iter().for_each(|queue| host.create_pair(queue, 64));
    for queue in [2, 3] {
        (0..EACH).for_each(|_| _ = host.put(queue, command));
        host.ring(queue);
    }
    let (mut most, mut done) = (0, 0);
    loop {
        let work = host.turn();
        most = most.max(model.take_seen().iter().map(|request| request.length).sum());
        for entry in [2, 3].into_iter().flat_map(|cq| host.reap_all(cq)) {
            assert_eq!(entry.status(), Status::SUCCESS);
            done += 1;
        }
        if work == 0 {
            assert_eq!(done, 2 * EACH);
            return most;
        }
    }
}

#[test]
fn what_commands_do_in_steps_is_part_of_what_a_turn_moves() {
    // Commands that came back go on first, then entries are taken: 16 at a time, with their next step each.
    const MIB: u64 = 1 << 20;
    const MOST: u64 = 2 * TURN_BYTES + 16 * MIB;
    const BLOCKS: u32 = (MIB / 512) as u32;
    let whole = |_: &mut Host| io_entry(io::VERIFY, 0, BLOCKS, 0);
    let compared = |host: &mut Host| {
        let buffer = host.allocate(PAGE);
        let list = host.allocate(PAGE);
        host.write(list, [buffer; 255].as_bytes());
        SubmissionEntry { dptr: [buffer, list], ..io_entry(io::COMPARE, 0, BLOCKS, 0) }
    };
    let copied = |host: &mut Host| copy(host, 0, 4096, &[(1, 0, BLOCKS as u16)]);
    let discarded = |host: &mut Host| dataset(host, DEALLOCATE, &[(0, BLOCKS); 8]);
    let asked =
        [most_of_a_turn(whole), most_of_a_turn(compared), most_of_a_turn(copied), most_of_a_turn(discarded)];
    assert!(asked.iter().all(|most| (TURN_BYTES..=MOST).contains(most)), "{asked:?}");
}

/// Fills this number of queues with one command, and returns the most commands that end in one turn.
fn commands_of_a_turn(
    queues: u16,
    status: Status,
    command: impl FnOnce(&mut Host) -> SubmissionEntry,
) -> usize {
    const EACH: usize = 64;
    let mut host = Host::with_io(&Model::new(64));
    let command = command(&mut host);
    let queues = 2..2 + queues;
    queues.clone().for_each(|queue| host.create_pair(queue, EACH as u32 + 1));
    for queue in queues.clone() {
        (0..EACH).for_each(|_| _ = host.put(queue, command));
        host.ring(queue);
    }
    let (mut most, mut done) = (0, 0);
    while host.turn() > 0 {
        let ended: Vec<Status> =
            queues.clone().flat_map(|cq| host.reap_all(cq)).map(|entry| entry.status()).collect();
        assert!(ended.iter().all(|end| *end == status), "{ended:?}");
        (most, done) = (most.max(ended.len()), done + ended.len());
    }
    assert_eq!(done, queues.len() * EACH);
    most
}

/// Others have their turns meanwhile.
#[test]
fn a_turn_is_short_whatever_its_commands_are() {
    const SEGMENTS: u64 = 512;
    let flush = |_: &mut Host| io_entry(io::FLUSH, 0, 1, 0);
    let beyond = |_: &mut Host| io_entry(io::READ, 64, 1, 0);
    let scattered = |host: &mut Host| {
        let (buffer, list) = (host.allocate(PAGE), host.allocate(2 * PAGE));
        let descriptors: Vec<[u64; 2]> = (0..SEGMENTS).map(|at| [buffer + 2 * at, 1]).collect();
        host.write(list, descriptors.as_bytes());
        let last_segment = (0x30 << 56) | (SEGMENTS * 16);
        SubmissionEntry { flags: 1 << 6, dptr: [list, last_segment], ..io_entry(io::READ, 0, 1, 0) }
    };
    let batch = 16;
    assert!(commands_of_a_turn(20, Status::SUCCESS, flush) <= 1024 + batch);
    assert!(commands_of_a_turn(4, Status::LBA_OUT_OF_RANGE, beyond) <= 64 + batch);
    assert!(commands_of_a_turn(4, Status::SUCCESS, scattered) <= 64 + batch);
    let compared = |host: &mut Host| SubmissionEntry { opcode: io::COMPARE, ..scattered(host) };
    assert!(commands_of_a_turn(4, Status::SUCCESS, compared) <= 64 + batch);
}
