//! Namespaces that hosts delete or detach while commands to them are under way.

use crate::copy::{NAMED, copy, enable_named_ranges};
use crate::host::{MS, PAGE, entry, io};
use crate::management::{attach, attachment, create, deletion, event, list, pair, pair_on, read, wanted};
use crate::model::Model;
use sluice_command::{Characteristics, Opcodes, Passthrough};
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{Cns, LogId, Status, SubmissionEntry};

/// Conformance: Base 8.11, a detached or deleted namespace takes no command any more, and those that it has are done before.
#[test]
fn commands_in_flight_come_to_their_end_before_a_namespace_goes() {
    for deleted in [false, true] {
        let (mut pair, daemon) = pair();
        assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
        assert_eq!(attach(&mut pair, &daemon, 2, &[1, 2], true), Status::SUCCESS);
        event(&mut pair, 1);
        let model = daemon.disk(2);
        model.disk().hold = true;
        let (buffer, other) = (pair.host(0).allocate(PAGE), pair.host(1).allocate(PAGE));
        pair.host(0).submit(1, SubmissionEntry { nsid: 2, ..io(opcode::READ, 0, 1, buffer) });
        pair.run();
        let entry = if deleted { deletion(2) } else { attachment(pair.host(1), 2, &[1], false) };
        pair.host(1).submit(0, entry);
        pair.run();
        assert_eq!(
            daemon.asked.lock().expect("not poisoned").as_slice(),
            [],
            "nothing is stored before they are done"
        );
        // New commands do not begin.
        assert_eq!(read(pair.host(0), 2), Status::INVALID_FIELD);
        if !deleted {
            // The other controller has it as before.
            pair.host(1).submit(1, SubmissionEntry { nsid: 2, ..io(opcode::READ, 0, 1, other) });
            pair.run();
            assert_eq!(pair.host(1).take(1), None);
        }
        let held = 1 + usize::from(!deleted);
        pair.host(0).answer(2, &model, held);
        pair.run();
        assert_eq!(pair.host(0).reap(1).map(|it| it.status()), Some(Status::SUCCESS));
        for _ in 0..2 {
            pair.hosts_wait(2 * MS);
            let host = pair.host(0);
            daemon.answer(host, true);
            pair.run();
        }
        assert_eq!(pair.host(1).reap(0).map(|it| it.status()), Some(Status::SUCCESS));
        assert_eq!(list(pair.host(0), Cns::ACTIVE_NAMESPACES), [1]);
        let left = if deleted { vec![1] } else { vec![1, 2] };
        assert_eq!(list(pair.host(1), Cns::ACTIVE_NAMESPACES), left);
    }
}

#[test]
fn a_namespace_whose_commands_do_not_end_stays() {
    for deleted in [false, true] {
        let (mut pair, daemon) = pair();
        assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
        assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::SUCCESS);
        let model = daemon.disk(2);
        model.disk().hold = true;
        let buffer = pair.host(0).allocate(PAGE);
        pair.host(0).submit(1, SubmissionEntry { nsid: 2, ..io(opcode::READ, 0, 1, buffer) });
        let entry = if deleted { deletion(2) } else { attachment(pair.host(1), 2, &[1], false) };
        pair.host(1).submit(0, entry);
        pair.run();
        pair.hosts_wait(9_000 * MS);
        assert_eq!(pair.host(1).reap(0).map(|it| it.status()), Some(Status::COMMAND_SEQUENCE_ERROR));
        assert_eq!(list(pair.host(0), Cns::ACTIVE_NAMESPACES), [1, 2]);
        model.disk().hold = false;
        pair.host(0).answer(2, &model, 1);
        pair.run();
        assert_eq!(pair.host(0).reap(1).map(|it| it.status()), Some(Status::SUCCESS));
        assert_eq!(read(pair.host(0), 2), Status::SUCCESS);
    }
}

/// Tests that a write that waits for room on its disk does not keep its namespace forever, and does not count
/// as written.
#[test]
fn a_write_that_waits_for_room_ends_when_its_namespace_goes() {
    let (mut pair, daemon) = pair();
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::SUCCESS);
    let model = daemon.disk(2);
    model.disk().hold = true;
    let buffer = pair.host(0).allocate(PAGE);
    let write = SubmissionEntry { nsid: 2, ..io(opcode::WRITE, 0, 1, buffer) };
    pair.host(0).submit(1, write);
    pair.run();
    let delete = deletion(2);
    pair.host(1).submit(0, delete);
    pair.run();
    // A command that a layer works on is waited for; there is no room by then.
    pair.hosts_wait(2 * MS);
    assert_eq!(pair.host(0).reap(1), None);
    model.disk().full = true;
    pair.hosts_wait(2 * MS);
    pair.run();
    assert_eq!(pair.host(0).reap(1).map(|it| it.status()), Some(Status::CAPACITY_EXCEEDED));
    daemon.remember(&mut pair, 4);
    assert_eq!(pair.host(1).reap(0).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(list(pair.host(0), Cns::ALLOCATED_NAMESPACES), [1]);
}

/// Tests that a host that detaches a namespace does not wait for its own writes without room; those of other
/// hosts go on waiting.
#[test]
fn a_write_that_waits_for_room_ends_when_its_host_loses_the_namespace() {
    let (mut pair, daemon) = pair();
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1, 2], true), Status::SUCCESS);
    event(&mut pair, 1);
    let model = daemon.disk(2);
    (model.disk().hold, model.disk().full) = (true, true);
    for host in [0, 1] {
        let buffer = pair.host(host).allocate(PAGE);
        pair.host(host).submit(1, SubmissionEntry { nsid: 2, ..io(opcode::WRITE, 0, 1, buffer) });
    }
    pair.run();
    let detach = attachment(pair.host(1), 2, &[1], false);
    pair.host(1).submit(0, detach);
    pair.run();
    pair.hosts_wait(2 * MS);
    assert_eq!(pair.host(0).reap(1).map(|it| it.status()), Some(Status::CAPACITY_EXCEEDED));
    daemon.remember(&mut pair, 2);
    assert_eq!(pair.host(1).reap(0).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(list(pair.host(0), Cns::ACTIVE_NAMESPACES), [1]);
    assert_eq!(pair.host(1).reap(1), None);
    pair.host(1).answer(2, &model, 1);
    pair.run();
    assert_eq!(pair.host(1).reap(1).map(|it| it.status()), Some(Status::SUCCESS));
}

/// Commands that a device gets unchanged are under way, too.
#[test]
fn a_command_that_is_handed_on_comes_to_its_end_before_its_namespace_goes() {
    const VENDORS: u8 = 0xc0;
    let handed_on = Passthrough { admin: Opcodes::NONE.and(VENDORS), io: Opcodes::NONE.and(VENDORS) };
    let model =
        Model::with(Characteristics { passthrough: handed_on, ..Characteristics::target(1 << 15, 512) });
    for sq in [0, 1] {
        let (mut pair, daemon) = pair_on(&model);
        model.disk().hold = true;
        pair.host(0).submit(sq, SubmissionEntry { nsid: 1, ..entry(VENDORS) });
        pair.run();
        assert_eq!(model.disk().parked.len(), 1);
        let detach = attachment(pair.host(1), 1, &[1], false);
        pair.host(1).submit(0, detach);
        pair.run();
        pair.hosts_wait(4 * MS);
        assert!(daemon.asked.lock().expect("not poisoned").is_empty(), "it is under way, in queue {sq}");
        pair.host(0).answer(1, &model, 1);
        model.disk().hold = false;
        daemon.remember(&mut pair, 2);
        assert_eq!(pair.host(1).reap(0).map(|it| it.status()), Some(Status::SUCCESS));
        assert!(pair.host(0).reap(sq).is_some());
    }
}

/// Tests that a deletion waits for a Copy that began before, since it may be in any namespace, and for no
/// later one.
#[test]
fn a_copy_from_what_goes_is_waited_for_wherever_it_is() {
    let own = Model::new(64);
    let (mut pair, daemon) = pair_on(&own);
    assert_eq!(create(&mut pair, &daemon, &wanted(64)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::SUCCESS);
    daemon.disk(2).disk().bytes.fill(0x5a);
    enable_named_ranges(pair.host(0));
    let model = daemon.disk(2);
    // It reads namespace 2, and then is in namespace 1 with its write.
    own.disk().hold = true;
    let command = copy(pair.host(0), NAMED, 0, &[(2, 0, 8), (2, 8, 8)]);
    pair.host(0).submit(1, command);
    pair.run();
    assert_eq!((own.disk().parked.len(), model.disk().parked.len()), (1, 0));
    pair.host(1).submit(0, deletion(2));
    pair.run();
    pair.hosts_wait(4 * MS);
    assert!(daemon.asked.lock().expect("not poisoned").is_empty(), "it comes back to it");
    own.disk().hold = false;
    pair.host(0).answer(1, &own, 1);
    daemon.remember(&mut pair, 4);
    // All its sources were still there.
    assert_eq!(pair.host(0).reap(1).map(|it| it.status()), Some(Status::SUCCESS));
    assert!(own.disk().bytes[..16 * 512].iter().all(|byte| *byte == 0x5a));
    assert_eq!(pair.host(1).reap(0).map(|it| it.status()), Some(Status::SUCCESS));
}

/// Conformance: Base 5.16.1.7, a self-test that a namespace was removed under says so.
#[test]
fn a_self_test_ends_with_the_namespace_that_goes() {
    let (mut pair, daemon) = pair();
    assert_eq!(create(&mut pair, &daemon, &wanted(64)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::SUCCESS);
    daemon.disk(2).disk().hold = true;
    let begin = SubmissionEntry { nsid: 2, cdw10: 1, ..entry(admin::DEVICE_SELF_TEST) };
    assert_eq!(pair.host(0).admin(begin).status(), Status::SUCCESS);
    pair.hosts_wait(2 * MS);
    let model = daemon.disk(2);
    assert_eq!(model.disk().parked.len(), 1);
    pair.host(1).submit(0, deletion(2));
    pair.run();
    model.disk().hold = false;
    pair.host(0).answer(2, &model, 1);
    daemon.remember(&mut pair, 4);
    assert_eq!(pair.host(1).reap(0).map(|it| it.status()), Some(Status::SUCCESS));
    let log = pair.host(0).log(LogId::SELF_TEST, 564).expect("a page");
    assert_eq!((log[0], log[4]), (0, 0x13), "a short one, ended by the removal of a namespace");
}

/// Tests that a deletion that the operator has withdrawn does not happen later; one that has begun is
/// reported.
#[test]
fn a_deletion_that_the_operator_withdraws_does_not_happen() {
    let (mut pair, daemon) = pair();
    for nsid in [2, 3] {
        assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(nsid));
        assert_eq!(attach(&mut pair, &daemon, nsid, &[1], true), Status::SUCCESS);
    }
    let model = daemon.disk(2);
    model.disk().hold = true;
    let buffer = pair.host(0).allocate(PAGE);
    pair.host(0).submit(1, SubmissionEntry { nsid: 2, ..io(opcode::READ, 0, 1, buffer) });
    pair.run();
    let subsystem = &mut pair.host(0).controller.subsystem;
    subsystem.delete_namespace(2, 0).expect("it is a host's");
    assert!(subsystem.withdraw_deletions(), "that one has begun");
    subsystem.delete_namespace(3, 0).expect("it is a host's");
    assert!(subsystem.withdraw_deletions(), "it waits for the other, and is withdrawn");
    pair.hosts_wait(9_000 * MS);
    assert!(!pair.host(0).controller.subsystem.withdraw_deletions(), "nothing is under way");
    pair.host(0).answer(2, &model, 1);
    pair.run();
    assert!(daemon.answer(pair.host(0), true).is_empty());
    assert_eq!(list(pair.host(0), Cns::ALLOCATED_NAMESPACES), [1, 2, 3]);
}

/// Tests that a pair that waits for its blocks is not under way: it finds no namespace when they are free.
#[test]
fn a_fused_pair_that_waits_does_not_begin_on_what_is_gone() {
    let (mut pair, daemon) = pair();
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::SUCCESS);
    let model = daemon.disk(2);
    model.disk().hold = true;
    let host = pair.host(0);
    let buffer = host.allocate(PAGE);
    let of = |opcode, flags| SubmissionEntry { nsid: 2, flags, ..io(opcode, 0, 1, buffer) };
    host.submit(1, of(opcode::WRITE, 0));
    pair.run();
    let host = pair.host(0);
    host.put(1, of(opcode::COMPARE, 1));
    host.submit(1, of(opcode::WRITE, 2));
    pair.run();
    pair.host(1).submit(0, deletion(2));
    pair.run();
    pair.host(0).answer(2, &model, 1);
    daemon.remember(&mut pair, 4);
    let statuses: Vec<Status> = pair.host(0).reap_all(1).iter().map(|it| it.status()).collect();
    assert_eq!(statuses, [Status::SUCCESS, Status::INVALID_FIELD, Status::INVALID_FIELD]);
    assert_eq!(pair.host(1).reap(0).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(list(pair.host(0), Cns::ALLOCATED_NAMESPACES), [1]);
}

#[test]
fn a_write_uncorrectable_that_a_device_takes_is_not_done_here() {
    const WRITE_UNCORRECTABLE: u8 = opcode::WRITE_UNCORRECTABLE;
    for handed_on in [false, true] {
        let io = if handed_on { Opcodes::NONE.and(WRITE_UNCORRECTABLE) } else { Opcodes::NONE };
        let passthrough = Passthrough { io, ..Passthrough::NONE };
        let model = Model::with(Characteristics { passthrough, ..Characteristics::target(1 << 15, 512) });
        let (mut pair, _daemon) = pair_on(&model);
        model.disk().hold = true;
        pair.host(0).submit(1, SubmissionEntry { nsid: 1, ..entry(WRITE_UNCORRECTABLE) });
        pair.run();
        assert_eq!(model.disk().parked.len(), usize::from(handed_on));
    }
}
