//! Shares of controllers, obstacles of a migration, and pools.

use super::{namespace, shared, small, subsystem};
use crate::model::controller::Controller;
use crate::model::management::{Task, TaskStage, UnderWay as Managing};
use crate::state::ana::AnaRule;
use crate::state::erasure::{Erasure, Purpose};
use crate::state::management::{Attachment, Creation, Pool};
use crate::state::orders::UnderWay;
use crate::state::reservation::{HostId, KnownAs, RegistrantRecord, ReservationRecord, ReservationType};
use sluice_command::{Characteristics, Origin};
use sluice_nvme::{AnaState, SubmissionEntry};
use std::time::Duration;

/// Checks the room of each controller by its rule: an equal share, and eight slots for each disabled one.
#[test]
fn controllers_share_the_slots_evenly() {
    let (mut drive, controllers) = shared(vec![small(1)], 4);
    let limit = drive.slab().limit();
    let rooms = |drive: &crate::model::Subsystem| [0, 1, 2, 3].map(|number| drive.room(number));
    assert_eq!(rooms(&drive), [limit - 24; 4], "one of four may begin, and the others have eight each");
    drive.set_enabled(0, true);
    assert_eq!(rooms(&drive), [limit - 24; 4]);
    assert!(drive.is_alone(0) && !drive.is_alone(1) && drive.is_enabled(0) && !drive.is_enabled(1));
    drive.set_enabled(3, true);
    assert_eq!(rooms(&drive), [(limit - 16) / 2; 4]);
    assert!(!drive.is_alone(0) && !drive.is_alone(3) && drive.is_enabled(3));
    drive.set_enabled(1, true);
    drive.set_enabled(2, true);
    assert_eq!(rooms(&drive), [limit / 4; 4]);
    // A controller with commands in flight has less room, and others have theirs as long as there are slots.
    let mut commands = Vec::new();
    for count in 1..=limit / 4 {
        let origin = Origin { controller: 2, sq: 1, ..Origin::LAYER };
        commands.push(drive.slab_mut().admit(&SubmissionEntry::default(), origin).expect("room"));
        assert_eq!((drive.room(2), drive.has_share(2)), (limit / 4 - count, count < limit / 4));
        assert_eq!((drive.room(1), drive.has_share(1)), (limit / 4, true));
    }
    assert!(!drive.has_only_reserved_slots());
    drive.set_enabled(0, false);
    drive.set_enabled(1, false);
    drive.set_enabled(3, false);
    assert_eq!(drive.room(2), limit - 24 - limit / 4);
    for _ in 0..drive.room(2) {
        let origin = Origin { controller: 2, sq: 1, ..Origin::LAYER };
        commands.push(drive.slab_mut().admit(&SubmissionEntry::default(), origin).expect("room"));
    }
    assert!(drive.has_only_reserved_slots() && drive.is_alone(2));
    assert_eq!(rooms(&drive), [0; 4]);
    commands.into_iter().for_each(|command| drive.slab_mut().release(command));
    controllers.into_iter().for_each(|controller| controller.leave(&mut drive));
    assert_eq!(drive.room(0), limit - 24);
}

#[test]
fn a_drive_without_shares_has_all_its_slots() {
    let mut drive = subsystem(vec![small(1)]);
    let limit = drive.slab().limit();
    assert!(!drive.is_shared());
    drive.expect(1);
    assert_eq!((drive.room(0), drive.is_shared()), (limit, false));
    drive.expect(2);
    assert_eq!((drive.room(0), drive.is_shared()), (limit - 8, true));
    drive.expect(100_000);
    assert_eq!(drive.room(0), limit - limit / 2, "no more than half of them are kept");
}

#[test]
fn a_controller_has_its_queues_in_turn() {
    let (mut drive, mut controllers) = shared(vec![small(1)], 1);
    let [controller] = &mut controllers[..] else { panic!("one controller") };
    assert_eq!((controller.vectors(), controller.io_queues(), controller.cntlid()), (129, 128, 1));
    for (wanted, has) in [(0, 1), (1, 1), (64, 64), (128, 128), (129, 128), (u16::MAX, 128)] {
        controller.limit_io_queues(wanted);
        assert_eq!(controller.io_queues(), has);
    }
    controller.active = vec![0, 1, 2];
    let turns: Vec<_> = (0..5).map(|_| controller.rotate()).collect();
    assert_eq!(turns, [1, 2, 0, 1, 2]);
    controller.rotate_behind(0);
    assert_eq!(controller.rotate(), 1);
    controller.active.clear();
    assert_eq!((controller.rotate(), controller.rotate()), (0, 0));
    assert_eq!([controller.switch_on(), controller.switch_on(), controller.is_on()], [false, true, true]);
    assert_eq!([controller.switch_off(), controller.switch_off(), controller.is_on()], [true, false, false]);
    // Deadlines of a drive and of its controller.
    drive.note_deadline();
    controller.note_deadline(&drive);
    assert_eq!((drive.deadline_ns(), controller.deadline_ns(&drive)), (None, None));
    drive.make_due(9);
    drive.make_due(12);
    controller.make_due(8);
    controller.make_due(11);
    assert_eq!([drive.is_due(8), drive.is_due(9)], [false, true]);
    assert_eq!([controller.is_due(7), controller.is_due(8)], [false, true]);
    controller.start_keep_alive(100, 5);
    assert!(controller.is_due(0));
    assert_eq!(controller.deadline_ns(&drive), Some(100_000_005));
    drive.hold(77);
    assert!(drive.is_held() && drive.deadline_ns() == Some(77));
    drive.end_hold(76);
    assert!(drive.is_held());
    drive.end_hold(77);
    assert!(!drive.is_held() && drive.deadline_ns().is_none());
    drive.hold(100);
    drive.resume();
    assert!(!drive.is_held() && drive.is_due(0));
    for (timeout, ns) in
        [(Duration::ZERO, 0), (Duration::from_secs(7), 7_000_000_000), (Duration::MAX, u64::MAX)]
    {
        drive.set_host_timeout(timeout);
        assert_eq!(drive.host_timeout_ns(), ns);
    }
}

/// Checks each obstacle of a drive whose queues would be served by another reactor.
#[test]
fn obstacles_of_a_migration_are_described() {
    let refused = |drive: &crate::model::Subsystem| drive.peer_config().expect_err("an obstacle").to_string();
    let mut drive = subsystem(vec![small(1), small(5)]);
    let config = drive.peer_config().expect("no obstacle");
    let namespaces: Vec<_> =
        config.namespaces.iter().map(|it| (it.config.nsid, it.blocks, it.layers.clone())).collect();
    assert_eq!(namespaces, [(1, 128, vec!["plain"]), (5, 128, vec!["plain"])]);
    drive.hold(5);
    assert_eq!(refused(&drive), "the drive is busy with something that takes all of its queues");
    drive.resume();
    let busy = "the drive is busy with something that takes all of its queues";
    let changes: [fn(&mut crate::model::Subsystem); 4] = [
        |it| it.held_mut().fused.has_work(),
        |it| it.jobs.orders.under_way = Some(UnderWay::Storing { command: None, changes: Vec::new() }),
        |it| it.jobs.management.under_way = Some(under_way(Task::Delete(vec![1]))),
        |it| {
            let purpose = Purpose::Format { nsid: 1, block_size: 512 };
            it.jobs.erasure = Some(Erasure::new(purpose, vec![1], Vec::new(), 0, 0));
        },
    ];
    for change in changes {
        let mut drive = subsystem(vec![small(1)]);
        change(&mut drive);
        assert_eq!(refused(&drive), busy);
    }
    drive.expect(2);
    assert_eq!(refused(&drive), "the drive is for several hosts");
    drive.expect(1);
    drive.lose_writes(1, 0);
    assert_eq!(refused(&drive), "the host was not notified yet that acknowledged writes were lost");
    let read_as_written = {
        use sluice_command::{Opcodes, Passthrough};
        let passthrough = Passthrough { admin: Opcodes::NONE, io: Opcodes::NONE.and(0x81) };
        namespace(2, 512, Characteristics { passthrough, ..Characteristics::target(1 << 20, 512) })
    };
    let registrant =
        RegistrantRecord { host: HostId::Short([1; 8]), name: KnownAs::Socket(1), key: 5, holds: true };
    let record = ReservationRecord {
        registrants: vec![registrant],
        reservation: Some(ReservationType::WriteExclusive),
    };
    let registered = ReservationRecord { reservation: None, ..record.clone() };
    let registered = small(2).reserved(&registered);
    assert!(!registered.is_guarded());
    let reserved = "a namespace is not open to all: it is reserved, detached, or by its ANA group";
    assert_eq!(refused(&subsystem(vec![registered])), reserved);
    let closed = || {
        let mut namespace = small(2);
        namespace.close(sluice_nvme::Status::FORMAT_IN_PROGRESS);
        namespace
    };
    let shut = "a namespace is being formatted, has uncorrectable blocks, or comes from a pool";
    for (second, words) in [
        (read_as_written, "commands go on to its device as hosts write them"),
        (closed(), shut),
        (small(2).created(true), shut),
        (
            small(2).reserved(&record),
            "a namespace is not open to all: it is reserved, detached, or by its ANA group",
        ),
    ] {
        assert_eq!(refused(&subsystem(vec![small(1), second])), words);
    }
}

fn under_way(task: Task) -> Managing {
    Managing { command: None, number: 0, task, stage: TaskStage::Waiting, next_ns: 5, until_ns: 9 }
}

/// Checks which changes of namespaces keep other jobs from their begin.
#[test]
fn a_drive_is_busy_while_namespaces_come_or_go() {
    let creation = Creation { nsid: 2, block_size: 512, blocks: 8, shared: true, ana_group: 1 };
    let attach = || Task::Attach { nsid: 1, attachment: Attachment::ALL, first: None };
    let (attachment, before) = (Attachment::ALL, Attachment::NONE);
    let detach = Task::Detach { nsid: 1, attachment, before, lost: 0 };
    for (task, is_busy, leaving, made) in [
        (Task::Create(creation, None), true, vec![], None),
        (Task::Create(creation, Some(Box::new(small(2)))), true, vec![], Some(2)),
        (Task::Delete(vec![3, 4]), true, vec![3, 4], None),
        (attach(), false, vec![], None),
        (detach, false, vec![1], None),
    ] {
        let mut drive = subsystem(vec![small(1)]);
        assert_eq!(drive.jobs.management.deadline_ns(), None);
        drive.jobs.management.under_way = Some(under_way(task));
        let management = &mut drive.jobs.management;
        assert_eq!(management.under_way.as_ref().map(|it| it.task.leaving().to_vec()), Some(leaving));
        assert_eq!((management.is_busy(), management.deadline_ns()), (is_busy, Some(5)));
        assert_eq!(management.being_created().map(|it| it.nsid()), made);
        management.under_way.iter_mut().for_each(|it| it.stage = TaskStage::Persisting);
        assert_eq!((management.is_busy(), management.deadline_ns()), (is_busy, None));
        let refusal = drive.may_hand_over().err().map(|why| why.to_string());
        let words = "a host creates or deletes a namespace";
        assert_eq!(refusal.as_deref(), is_busy.then_some(words));
    }
}

#[test]
fn a_pool_has_the_bytes_that_no_created_namespace_has() {
    let mut drive = subsystem(vec![small(1), small(2).created(true), small(3).created(false)]);
    assert_eq!((drive.unallocated(), drive.has_volatile_cache()), (0, false));
    for (size, left) in [(0, 0), (128 << 10, 0), (100 << 10, 0), ((128 << 10) + 5, 5)] {
        drive.set_pool(Pool { size, volatile_cache: size > 0 });
        assert_eq!((drive.unallocated(), drive.has_volatile_cache()), (left, size > 0));
    }
}

/// Checks who is notified when an operator changes the paths: controllers whose used groups have another state.
#[test]
fn hosts_are_notified_of_changed_paths() {
    for (count, is_notified) in [(1, false), (2, true)] {
        let (mut drive, controllers) = shared(vec![small(1).in_ana_group(3)], count);
        controllers.iter().for_each(|controller| controller.set_port(&mut drive, "a"));
        let rule = |group, state| vec![AnaRule { port: None, group: Some(group), state }];
        let notices = |drive: &mut crate::model::Subsystem| {
            let collect = |controller: &Controller| drive.collect_mail(controller.number()).len();
            controllers.iter().map(collect).collect::<Vec<_>>()
        };
        notices(&mut drive);
        drive.set_ana(rule(3, AnaState::NonOptimized));
        let expected = vec![usize::from(is_notified); count.into()];
        assert_eq!(
            (notices(&mut drive), drive.get(1).map(|it| it.is_guarded())),
            (expected.clone(), Some(false))
        );
        drive.set_ana(rule(3, AnaState::Inaccessible));
        assert_eq!((notices(&mut drive), drive.get(1).map(|it| it.is_guarded())), (expected, Some(true)));
        drive.set_ana([rule(3, AnaState::Inaccessible), rule(4, AnaState::Change)].concat());
        assert_eq!(notices(&mut drive), vec![0; count.into()], "no namespace is in group 4");
        drive.set_ana(Vec::new());
        assert_eq!(drive.get(1).map(|it| it.is_guarded()), Some(false));
        assert_eq!(drive.hosts()[..2], [HostId::Unnamed(0), HostId::Unnamed(1)]);
        controllers.into_iter().for_each(|controller| controller.leave(&mut drive));
    }
}
