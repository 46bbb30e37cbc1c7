//! States in which a drive is not handed to another process or reactor.

use super::{shared, small, subsystem};
use crate::model::{Controller, Subsystem, self_test};
use crate::state::abandoned::Change;
use crate::state::doorbells::DoorbellMode;
use crate::state::fused::Claim;
use crate::state::latency::LatencyCells;
use crate::state::mailbox::Notice;
use crate::state::orders::UnderWay;
use crate::state::persist::PersistentRecord;
use crate::state::queue::{CompletionQueue, Service, SubmissionQueue};
use crate::state::record::{NamespaceRecord, SubsystemRecord};
use crate::state::registers::State;
use crate::state::remote_queues::cause::RecallCause;
use crate::state::remote_queues::groups::{Migrating, RemoteGroup};
use crate::state::reservation::{HostId, Reservations};
use crate::state::self_test::TestKind;
use crate::state::sync::Sync;
use crate::state::uncorrectable::Step;
use crate::state::{fused, persistent_event};
use sluice_command::{Characteristics, Origin, Slab};
use sluice_memory::{ShadowMemory, SharedRegion, Space};
use sluice_nvme::opcode::{admin, io};
use sluice_nvme::{NSID_ALL, Status, SubmissionEntry, register};

type OfController = fn(&mut Controller);
type OfDrive = fn(&mut Subsystem);

/// Installs queue pairs 0 and 1 of eight entries.
fn with_queues(controller: &mut Controller) {
    let memory = ShadowMemory::new(4096).expect("memory");
    for id in 0..2 {
        controller.install_cq(CompletionQueue::new(id, 0, memory.pages(), 8, Some(id)));
        controller.install_sq(SubmissionQueue::new(id, id, 1, 0, memory.pages(), 8));
    }
}

/// Returns the reason after this change of a controller that is ready.
fn reason<T>(change: OfController, of: fn(&Controller) -> Result<T, String>) -> Option<String> {
    let (mut drive, mut controllers) = shared(vec![small(1)], 1);
    let mut controller = controllers.pop().expect("one");
    with_queues(&mut controller);
    controller.set_ready();
    change(&mut controller);
    let found = of(&controller).err();
    // No command is left behind.
    controller.deletions.drain(..).for_each(std::mem::forget);
    controller.leave(&mut drive);
    found
}

fn begin_test(controller: &mut Controller) {
    controller.begin_self_test(TestKind::Short, 0, Vec::new(), 0).expect("none runs");
}

fn delete_queue(controller: &mut Controller) {
    let mut slab = Slab::new(sluice_command::Limits::new(1, 0)).expect("memory");
    let command = slab.admit(&SubmissionEntry::default(), Origin::default()).expect("room");
    controller.await_deletion(command);
}

#[test]
fn a_controller_is_handed_over_only_as_a_record_has_it() {
    let words = |change| reason(change, |it| it.may_hand_over().map_err(|why| why.to_string()));
    let (reset, queue) =
        ("a reset or a shutdown is under way", "a queue is being deleted, or its memory is unmapped");
    let cases: [(OfController, Option<&str>); 13] = [
        (|_| {}, None),
        (|it| it.client_dma = Some(Box::default()), Some("some of the host's memory is not shared")),
        (begin_test, Some("a self-test is under way")),
        (|it| it.registers.state = State::Draining, Some(reset)),
        (|it| it.registers.shutdown_begins(), Some(reset)),
        (|it| it.registers.shutdown_complete(), None),
        (|it| it.sqs[1].iter_mut().for_each(|it| it.deleting = true), Some(queue)),
        (|it| it.sqs[1].iter_mut().for_each(|it| it.service = Service::Unmapped), Some(queue)),
        (|it| it.cqs[0].iter_mut().for_each(|it| it.deleting = true), Some(queue)),
        (|it| it.cqs[1].iter_mut().for_each(|it| it.service = Service::Unmapped), Some(queue)),
        (|it| it.cqs[1].iter_mut().for_each(|it| it.service = Service::Over), None),
        (|it| it.unmapped.begin(), Some(queue)),
        (delete_queue, Some(queue)),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        assert_eq!(words(change).as_deref(), expected, "case {number}");
    }
}

#[test]
fn queues_of_some_controllers_stay_together() {
    let words = |change| reason(change, |it| it.may_migrate().map_err(|why| why.to_string()));
    let (idle, down) = ("no host is at work with the drive", "the host has shut the drive down");
    let busy = "the drive is busy with something that takes all of its queues";
    let cases: [(OfController, Option<&str>); 14] = [
        (|_| {}, None),
        (|it| it.registers.power_on(), Some(idle)),
        (|it| it.registers.state = State::Draining, Some(idle)),
        (|it| it.set_fatal(), Some(idle)),
        (|it| it.registers.shutdown_begins(), Some(down)),
        (|it| it.registers.shutdown_complete(), Some(down)),
        (
            |it| {
                let group = RemoteGroup { cq: (1, 8), sqs: vec![(1, 8)], generation: 0, rung: false };
                it.remote_groups.groups.push(group);
                it.remote_groups.recall(RecallCause::Operator);
            },
            Some("something is to be done that takes all queues"),
        ),
        (
            |it| it.set_doorbell_mode(DoorbellMode::Capsules),
            Some("queues of hosts on the network stay with their drive"),
        ),
        (
            |it| {
                it.registers.write(register::CC, 1 << 11);
            },
            Some("the host has its queues weighted against each other"),
        ),
        (|it| it.set_interrupt_coalescing(0x0101, 0), Some("the host has its interrupts coalesced")),
        (|it| it.client_dma = Some(Box::default()), Some("some of the host's memory is not shared")),
        (|it| it.unmapped.begin(), Some("memory of queues is unmapped")),
        (begin_test, Some(busy)),
        (delete_queue, Some(busy)),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        assert_eq!(words(change).as_deref(), expected, "case {number}");
    }
}

#[test]
fn a_drive_that_works_is_not_handed_over() {
    let closed = "a namespace is closed to its hosts";
    let cases: [(OfDrive, Option<&str>); 4] = [
        (|_| {}, None),
        (|it| it.get_mut(2).into_iter().for_each(|it| it.close(Status::SANITIZE_FAILED)), Some(closed)),
        (|it| it.get_mut(1).into_iter().for_each(|it| it.leave()), Some(closed)),
        (|it| it.lose_writes(1, 0), Some("acknowledged writes were lost, and not all hosts may know")),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let mut drive = subsystem(vec![small(1), small(2)]);
        change(&mut drive);
        let found = drive.may_hand_over().err().map(|why| why.to_string());
        assert_eq!(found.as_deref(), expected, "case {number}");
    }
}

#[test]
fn a_drive_settles_when_nothing_is_on_its_way() {
    let waits = "commands wait for others, or storage is being flushed";
    let (order, stores) = ("a reservation is being changed", "state of a host is being stored");
    let cases: [(OfDrive, Option<&str>); 12] = [
        (|_| {}, None),
        (|it| it.jobs.sync = Some(Sync { in_flight: 0, ..Sync::default() }), None),
        (|it| it.jobs.sync = Some(Sync { in_flight: 1, ..Sync::default() }), Some(waits)),
        (|it| it.announce(Notice::Resumed), Some("results are on their way")),
        (|it| it.touched.push(0), Some("results are on their way")),
        (|it| it.held_mut().fused.has_work(), Some(waits)),
        (
            |it| {
                let claim = Claim { nsid: 1, bytes: 0..1, number: 0, step: fused::Step::Writing };
                it.held_mut().fused.claim = Some(claim);
            },
            Some(waits),
        ),
        (
            |it| {
                let change = Change { number: 0, origin: Origin::LAYER, nsid: 1, bytes: 0..1 };
                it.held_mut().abandoned.changes.push(change);
            },
            Some(waits),
        ),
        (
            |it| it.jobs.orders.under_way = Some(UnderWay::Storing { command: None, changes: Vec::new() }),
            Some(order),
        ),
        (|it| it.jobs.orders.gone.push(HostId::Unnamed(0)), Some(order)),
        (|it| it.jobs.uncorrectable.waiting.push_back(Step::Truncate { nsid: 1, end: 0 }), Some(stores)),
        (|it| it.jobs.persister.delayed.push_back(PersistentRecord::Removal), Some(stores)),
    ];
    for (number, (change, expected)) in cases.into_iter().enumerate() {
        let (mut drive, controllers) = shared(vec![small(1)], 1);
        drive.collect_mail(0);
        change(&mut drive);
        let found = drive.check_settled().err().map(|why| why.to_string());
        assert_eq!((found.as_deref(), drive.is_settled()), (expected, expected.is_none()), "case {number}");
        controllers.into_iter().for_each(|controller| controller.leave(&mut drive));
    }
}

/// Checks which commands in flight let a drive be quiet, and which of them let it settle.
#[test]
fn some_commands_may_wait_for_ever() {
    for opcode in 0..=u8::MAX {
        for sq in [0, 1] {
            let mut drive = subsystem(vec![small(1)]);
            let origin = Origin { sq, opcode, ..Origin::default() };
            let command = drive.slab_mut().admit(&SubmissionEntry::default(), origin).expect("room");
            let waits = [admin::ASYNC_EVENT_REQUEST, admin::FORMAT_NVM, admin::SANITIZE].contains(&opcode);
            assert_eq!(drive.is_quiet(), sq == 0 && waits, "{opcode:#x} of queue {sq}");
            let is_request = sq == 0 && opcode == admin::ASYNC_EVENT_REQUEST;
            assert_eq!(drive.is_settled(), is_request, "{opcode:#x} of queue {sq}");
            drive.slab_mut().release(command);
        }
    }
    assert_eq!(io::VERIFY, admin::ASYNC_EVENT_REQUEST, "the queue decides");
}

/// Checks the namespaces of a record against those of the drive that takes it.
#[test]
fn a_drive_takes_only_its_own_namespaces() {
    let record = |nsid, block_size, blocks| NamespaceRecord {
        nsid,
        uuid: [nsid as u8; 16],
        block_size,
        blocks,
        reservations: Reservations::default(),
    };
    let take = |namespaces, may_have_grown| {
        let mut drive = subsystem(vec![small(1), small(2)]);
        drive.set_power_id([7; 16]);
        let record = SubsystemRecord {
            namespaces,
            health: crate::state::health::Health::new(),
            persistent_events: persistent_event::PersistentEventRecord::default(),
            log_contexts: 9,
            power_id: None,
        };
        let found = drive.take_over(record, may_have_grown, 100);
        let taken = (drive.power_id(), drive.jobs().persistent_events.generation, drive.is_held());
        assert_eq!(found.is_ok(), taken == (Some([7; 16]), 9, true));
        found.map_err(|why| why.to_string())
    };
    let (size, count) = (
        Err("the other process finds a namespace with another size".to_owned()),
        Err("the other process finds other namespaces".to_owned()),
    );
    for (blocks, grown, expected) in [
        (128, false, Ok(())),
        (128, true, Ok(())),
        (127, false, size.clone()),
        (127, true, Ok(())),
        (129, false, size.clone()),
        (129, true, size.clone()),
    ] {
        let namespaces = vec![record(1, 512, 128), record(2, 512, blocks)];
        assert_eq!(take(namespaces, grown), expected, "{blocks}, {grown}");
    }
    assert_eq!(take(vec![record(1, 512, 128)], false), count);
    assert_eq!(take(vec![record(1, 512, 128), record(3, 512, 128)], false), size);
    assert_eq!(take(vec![record(1, 512, 128), record(2, 4096, 128)], false), size);
    let other = NamespaceRecord { uuid: [3; 16], ..record(2, 512, 128) };
    assert_eq!(take(vec![record(1, 512, 128), other], false), size);
}

/// Checks the host of a controller that continues, and the notices and the record of one that is handed over.
#[test]
fn a_controller_continues_with_its_host() {
    let (mut drive, mut controllers) = shared(vec![small(1)], 2);
    for (number, host, expected) in [
        (1, HostId::Short([7; 8]), HostId::Short([7; 8])),
        (1, HostId::Extended([8; 16]), HostId::Extended([8; 16])),
        (1, HostId::Unnamed(0), HostId::Unnamed(1)),
        (0, HostId::Short([9; 8]), HostId::Short([9; 8])),
    ] {
        drive.resume_host(number, host);
        assert_eq!(drive.host(number), expected);
    }
    drive.resume_host(200, HostId::Unnamed(0));
    let controller = &mut controllers[0];
    for is_ready in [false, true] {
        drive.announce(Notice::Resumed);
        controller.drop_stale_notices(&mut drive);
        assert_eq!(drive.has_mail(0), is_ready);
        controller.set_ready();
    }
    drive.collect_mail(0);
    // A record of queues, on the doorbells of this process.
    let space = Space::new();
    let page = |bytes| SharedRegion::new("doorbells", bytes).expect("memory");
    let length = controller.doorbells().len();
    for (is_ready, bytes, expected) in [
        (false, length, None),
        (false, length - 4096, Some("the file of the doorbells is too short")),
        (true, length, Some("the admin queues are missing")),
        (false, length + 4096, None),
    ] {
        controller.registers.power_on();
        if is_ready {
            controller.set_ready();
        }
        let record = controller.record(&drive).expect("a record");
        let found = controller.resume_queues(&record, page(bytes), &space).err().map(|why| why.to_string());
        assert_eq!(found.as_deref(), expected, "{is_ready}, {bytes}");
    }
    controller.remote_groups.migrating = Some(Migrating { cq: 1, sqs: vec![1] });
    let refusal = controller.record(&drive).err().map(|why| why.to_string());
    assert_eq!(refusal.as_deref(), Some("queues are on other reactors"));
    controllers.into_iter().for_each(|controller| controller.leave(&mut drive));
}

/// Checks the states of a controller, and the registers whose writes recall its queues.
#[test]
fn a_controller_has_its_states() {
    let (mut drive, mut controllers) = shared(vec![small(1)], 1);
    let mut controller = controllers.pop().expect("one");
    assert!(controller.is_quiescent(&drive) && !controller.is_shutdown_requested());
    controller.set_ready();
    assert!(controller.is_quiescent(&drive) && controller.is_ready() && controller.serves());
    controller.begin_drain();
    assert!(!controller.is_quiescent(&drive) && controller.is_draining());
    controller.retire();
    assert!(controller.is_quiescent(&drive) && !controller.is_ready());
    controller.write_dword(register::CC, 1 << 14);
    assert!(controller.is_shutdown_requested());
    let group = RemoteGroup { cq: (1, 8), sqs: vec![(1, 8)], generation: 0, rung: false };
    controller.remote_groups.groups.push(group);
    for (offset, recalls) in [(register::INTMS, false), (register::INTMC, false), (register::CC, true)] {
        controller.write_dword(offset, 0);
        let cause = controller.remote_groups.recall_cause;
        assert_eq!(cause, recalls.then_some(RecallCause::Reset), "{offset:#x}");
    }
    controller.remote_groups.groups.clear();
    // Each namespace counts the commands of its layers, one that comes later, too.
    let cells = std::sync::Arc::new(LatencyCells::default().with_layers());
    let users = || cells.layers().map(std::sync::Arc::strong_count);
    assert_eq!(users(), Some(1));
    drive.measure_latency(quanta::Clock::mock().0, std::sync::Arc::clone(&cells));
    assert!(drive.latency_mut().is_some());
    let of_one = users();
    drive.put(small(2));
    assert!(of_one > Some(1) && users() > of_one);
    controller.leave(&mut drive);
}

/// Checks the percentage of a self-test of four namespaces of 16 chunks.
#[test]
fn a_self_test_has_its_percentage() {
    let large = |nsid| super::namespace(nsid, 512, Characteristics::target(256 << 10, 512));
    let (mut drive, mut controllers) = shared((1..5).map(large).collect(), 1);
    let mut controller = controllers.pop().expect("one");
    controller.begin_self_test(TestKind::Extended, NSID_ALL, vec![1, 2, 3, 4], 0).expect("none runs");
    // One read at a time, and a millisecond between two.
    controller.set_ready();
    let mut next = |in_flight, now_ns| {
        controller.self_test.running.iter_mut().for_each(|it| it.in_flight = in_flight);
        controller.next_self_test_read(&drive, now_ns).map(|it| (it.nsid, it.place, it.places))
    };
    assert_eq!((next(false, 5), next(true, 5_000_000)), (Some((1, 0, 4096)), None));
    assert_eq!((next(false, 1_000_004), next(false, 1_000_005)), (None, Some((1, 0, 4096))));
    for (done, place, percent) in
        [(0, 0, 0), (0, 4, 6), (1, 0, 25), (1, 4, 31), (3, 8, 87), (3, 16, 99), (4, 0, 99)]
    {
        let Some(running) = &mut controller.self_test.running else { panic!("it runs") };
        (running.done, running.place) = (done, place);
        let page = self_test::log(&controller, &drive);
        assert_eq!((page.current, page.completion), (2, percent), "{done} and {place}");
    }
    controller.leave(&mut drive);
}

/// Checks doorbell writes of all kinds, and the errors that they cause.
#[test]
fn a_doorbell_write_is_checked() {
    let (mut drive, mut controllers) = shared(vec![small(1)], 1);
    let mut controller = controllers.pop().expect("one");
    with_queues(&mut controller);
    controller.ring(8, 3);
    assert_eq!((controller.doorbells.sq_tail(1), controller.error_count()), (0, 0), "it is not ready");
    controller.set_ready();
    for (offset, value, tail, head, errors) in [
        (8, 3, 3, 0, 0),
        (12, 5, 3, 5, 0),
        (9, 1, 3, 5, 0),
        (10, 1, 3, 5, 0),
        (11, 1, 3, 5, 0),
        (4096 + 8, 1, 3, 5, 0),
        (u32::MAX - 3, 1, 3, 5, 0),
        (8, 7, 7, 5, 0),
        (8, 8, 7, 5, 1),
        (12, 8, 7, 5, 2),
        (16, 0, 7, 5, 3),
        (20, 0, 7, 5, 4),
    ] {
        controller.ring(offset, value);
        let found = (controller.doorbells.sq_tail(1), controller.doorbells.cq_head(1));
        assert_eq!((found, controller.error_count()), ((tail, head), errors), "{offset} and {value}");
    }
    assert_eq!(controller.take_errors().count(), 4);
    assert_eq!(controller.error_count(), 0);
    // Queues of a new host, and settings of a namespace that is gone.
    assert_eq!([controller.next_epoch(), controller.next_epoch(), controller.next_epoch()], [1, 2, 3]);
    controller.epochs = u32::MAX;
    assert_eq!(controller.next_epoch(), 0);
    controller.features.retry_limits[..4].fill(9);
    controller.forget_namespace(3);
    controller.forget_namespace(1);
    assert_eq!(controller.features.retry_limits[..5], [0, 9, 0, 9, 0]);
    // The order of service.
    assert_eq!((controller.served(), controller.is_served(1), controller.is_served(2)), (2, true, false));
    controller.stop_serving(&[1, 2]);
    assert_eq!((controller.served(), controller.served_at(0), controller.served_at(1)), (1, Some(0), None));
    controller.serve_again(vec![1, 2, 0]);
    assert_eq!([0, 1, 2].map(|index| controller.served_at(index)), [Some(0), Some(1), None]);
    let overview = controller.overview(&drive);
    assert_eq!((overview.submission_queues, overview.completion_queues), (1, 1));
    assert!(!overview.write_through && !overview.shadow_doorbells);
    controller.features.enable_write_cache(false);
    assert!(controller.overview(&drive).write_through);
    controller.stop_taking();
    assert_eq!(controller.served(), 0);
    controller.leave(&mut drive);
}

/// Checks that a controller looks at its own commands of hosts alone.
#[test]
fn a_controller_has_patience_for_its_own_commands() {
    let (mut drive, mut controllers) = shared(vec![small(1)], 2);
    let mut admit = |controller, sq, cid| {
        let origin = Origin { controller, sq, cid, ..Origin::default() };
        drive.slab_mut().admit(&SubmissionEntry::default(), origin).expect("room")
    };
    let commands = [admit(0, 1, 1), admit(0, 0, 2), admit(1, 1, 3), admit(1, 2, 4)];
    for (controller, expected) in controllers.iter_mut().zip([vec![1], vec![3, 4]]) {
        controller.watch_commands(&drive, 0);
        let mut late = Vec::new();
        for look in 1..=5 {
            assert!(late.is_empty(), "look {look}");
            let (found, status) = controller.take_late_commands(&drive, look * 5_000_000_000);
            assert!(status.same_code(Status::COMMAND_INTERRUPTED));
            late = found.iter().map(|it| it.cid).collect();
        }
        assert_eq!(late, expected);
        assert_eq!(controller.take_late_commands(&drive, 26_000_000_000), (vec![], Status::SUCCESS));
    }
    commands.into_iter().for_each(|command| drive.slab_mut().release(command));
    controllers.into_iter().for_each(|controller| controller.leave(&mut drive));
}
