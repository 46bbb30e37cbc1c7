//! Execution of reservation commands one after the other: persistence before effect, and the commands that
//! they wait for.

use crate::client::Mood;
use crate::copy::{NAMED, copy, enable_named_ranges};
use crate::host::{Host, MS, PAGE, entry, io};
use crate::model::Model;
use crate::reservation::{
    BLOCKS, EXCLUSIVE_ACCESS, PERSIST, PREEMPT_AND_ABORT, Two, WRITE_EXCLUSIVE, command, compare_and_write,
    ended, report, set_host,
};
use sluice_controller::{
    FormatRecord, FormatState, HostId, KnownAs, PersistentRecord, RegistrantRecord, ReservationRecord,
    ReservationType,
};
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::{FeatureId, NSID_ALL, Status, SubmissionEntry};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Conformance: Base 7.2, a Preempt and Abort ends when its victims' commands have.
#[test]
fn a_preemptor_that_aborts_waits_for_what_its_victim_has_under_way() {
    const KEYS: [u64; 2] = [7, 8];
    for (victim, preemptor) in [(0, 1), (1, 0)] {
        let model = Model::new(BLOCKS);
        let mut two = Two::new(&model);
        (0..2).for_each(|number| two.register(number, KEYS[number]));
        model.disk().hold = true;
        two.on(victim, |host| {
            let buffer = host.allocate(2 * PAGE);
            host.submit(1, io(opcode::WRITE, 0, 1, buffer));
            host.run();
        });
        two.on(preemptor, |host| {
            let keys = [KEYS[preemptor], KEYS[victim]];
            let abort = command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, keys);
            host.submit(1, abort);
        });
        two.run();
        assert_eq!(two.on(preemptor, |host| host.reap(1)), None, "the write may still come");
        // Later commands wait for their turn.
        two.on(victim, |host| {
            let register = command(host, opcode::RESERVATION_REGISTER, 0, [0, 9]);
            host.submit(1, register);
        });
        two.run();
        assert_eq!(two.on(victim, |host| host.take(1)), None);
        two.on(victim, |host| host.answer(1, &model, 1));
        two.run();
        let ended = two.on(victim, |host| host.reap_all(1));
        assert_eq!(ended.iter().map(|it| it.status()).collect::<Vec<_>>(), [Status::SUCCESS; 2]);
        assert_eq!(two.on(preemptor, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
        let registrants = [(preemptor as u32 + 1, KEYS[preemptor], false), (victim as u32 + 1, 9, false)];
        assert!(two.on(preemptor, report).2.iter().map(|it| (u32::from(it.0), it.1, it.2)).eq(registrants));
    }
}

/// Tests that a preemption does not wait for a command of its victim that would take long either.
#[test]
fn a_preemptor_that_aborts_ends_what_its_victim_has_waiting() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.register(0, 7);
    two.register(1, 8);
    (model.disk().hold, model.disk().aborts) = (true, true);
    two.on(0, |host| {
        let buffer = host.allocate(2 * PAGE);
        host.submit(1, io(opcode::WRITE, 0, 1, buffer));
        host.run();
    });
    two.on(1, |host| {
        let abort = command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, [8, 7]);
        host.submit(1, abort);
    });
    (0..2).for_each(|_| two.run());
    assert_eq!(two.on(0, |host| host.reap(1)).map(|it| it.status()), Some(Status::ABORTED_PREEMPT));
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
}

/// Tests that a preemption does not wait for room for a write of its victim either, which there may never be.
#[test]
fn a_preemptor_that_aborts_does_not_wait_for_room() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.register(0, 7);
    two.register(1, 8);
    model.disk().hold = true;
    for number in [0, 1] {
        two.on(number, |host| {
            let buffer = host.allocate(2 * PAGE);
            host.submit(1, io(opcode::WRITE, 0, 1, buffer));
            host.run();
        });
    }
    two.on(1, |host| {
        let abort = command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, [8, 7]);
        host.submit(1, abort);
    });
    two.run();
    // The lack of room is found after the order was taken.
    model.disk().full = true;
    (0..2).for_each(|_| two.run());
    assert_eq!(two.on(0, |host| host.reap(1)).map(|it| it.status()), Some(Status::ABORTED_PREEMPT));
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(model.disk().parked.len(), 1, "the preemptor's own goes on waiting");
}

/// Tests that a preemption does not wait for client DMA, which may never end. Such a command changes nothing
/// on the drive.
#[test]
fn a_preemptor_that_aborts_does_not_wait_for_the_client_of_its_victim() {
    let model = Model::new(8192);
    let mut two = Two::of(Host::with_client(&model, 12, |chunk| chunk < 16));
    two.register(0, 7);
    two.register(1, 8);
    model.disk().hold = true;
    two.on(0, |host| {
        host.align(1 << 20);
        let buffer = host.allocate(1 << 20) + (512 << 10);
        host.submit(1, io(opcode::READ, 0, 8, buffer));
        host.run();
        host.client.mood = Mood::Silent;
    });
    two.on(1, |host| {
        let abort = command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, [8, 7]);
        host.submit(1, abort);
    });
    two.run();
    assert_eq!(two.on(1, |host| host.reap(1)), None, "the read is under way");
    two.on(0, |host| host.answer(1, &model, 1));
    two.run();
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(0, |host| host.reap(1)), None, "its client has not got it yet");
}

/// Conformance: Base 7.2, a Preempt and Abort ends a Format NVM of its victims that has not begun to erase.
#[test]
fn a_preemptor_that_aborts_ends_what_its_victim_is_about_to_format() {
    let model = Model::new(BLOCKS);
    model.disk().bytes.fill(5);
    let mut two = Two::new(&model);
    two.register(0, 7);
    assert_eq!(two.order(1, opcode::RESERVATION_REGISTER, PERSIST, [0, 8]), Status::SUCCESS);
    let kept = Arc::new(Mutex::new(VecDeque::new()));
    let keep = Arc::clone(&kept);
    two.hosts[0]
        .controller
        .subsystem
        .on_persist(move |what| keep.lock().expect("not poisoned").push_back(what));
    let answer = |two: &mut Two| {
        let what = kept.lock().expect("not poisoned").pop_front().expect("something to store");
        let now_ns = two.hosts[0].now_ns;
        two.hosts[0].controller.subsystem.persisted(what.clone(), true, now_ns);
        two.run();
        what
    };
    two.on(1, |host| {
        let abort = command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, [8, 7]);
        host.submit(1, abort);
        host.run();
    });
    // Its change is not in force yet.
    two.on(0, |host| {
        host.submit(0, SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) });
        host.run();
    });
    assert!(matches!(answer(&mut two), PersistentRecord::Reservations(_)));
    assert_eq!(two.on(1, |host| host.take(1)), None, "the format may still begin");
    let (nsid, block_size) = (1, 512);
    for state in [FormatState::Running, FormatState::Failed] {
        assert_eq!(answer(&mut two), PersistentRecord::Format(FormatRecord { nsid, block_size, state }));
    }
    assert_eq!(two.on(0, |host| host.reap(0)).map(|it| it.status()), Some(Status::ABORTED_PREEMPT));
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert!(model.disk().bytes.iter().all(|&byte| byte == 5));
    assert_eq!(two.io(1, opcode::READ), Status::SUCCESS);
}

/// Sink of records that acknowledges them when a test requests it.
#[derive(Clone, Default)]
struct Persister(Arc<Mutex<VecDeque<PersistentRecord>>>);

impl Persister {
    fn of(two: &mut Two) -> Self {
        let persister = Self::default();
        let Self(asked) = persister.clone();
        let subsystem = &mut two.hosts[0].controller.subsystem;
        subsystem.on_persist(move |what| asked.lock().expect("not poisoned").push_back(what));
        persister
    }

    /// Acknowledges the oldest pending record.
    fn answer(&self, two: &mut Two) {
        self.answer_but(two, 0);
    }

    /// Acknowledges all pending records but the last `count`.
    fn answer_but(&self, two: &mut Two, at: usize) {
        let what = self.0.lock().expect("not poisoned").remove(at).expect("something to store");
        let now_ns = two.hosts[0].now_ns;
        two.hosts[0].controller.subsystem.persisted(what, true, now_ns);
        two.run();
    }
}

/// Resets the controller from outside, which is over at once.
fn reset(host: &mut Host) {
    host.controller.reset();
    host.run();
    assert!(host.controller.is_quiescent());
    host.enable();
    host.create_pair(1, 64);
}

/// Tests that a host with many records does not keep other hosts from fencing it.
#[test]
fn hosts_take_turns_with_what_is_stored() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.register(1, 8);
    assert_eq!(two.order(0, opcode::RESERVATION_REGISTER, PERSIST, [0, 7]), Status::SUCCESS);
    let persister = Persister::of(&mut two);
    two.on(0, |host| {
        for key in 1..=40 {
            let replace = command(host, opcode::RESERVATION_REGISTER, 2 | 1 << 3, [0, key]);
            host.submit(1, replace);
        }
        host.run();
    });
    two.on(1, |host| {
        let acquire = command(host, opcode::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [8, 0]);
        host.submit(1, acquire);
    });
    two.run();
    for _ in 0..2 {
        assert_eq!(two.on(1, |host| host.take(1)), None);
        persister.answer(&mut two);
    }
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(0, |host| host.reap_all(1)).len(), 1);
}

/// Orders that change nothing still look at every namespace, so a turn executes only a few of them.
#[test]
fn many_orders_that_change_nothing_take_several_turns() {
    const NAMESPACES: u32 = 16;
    let models: Vec<Model> = (0..NAMESPACES).map(|_| Model::new(8)).collect();
    let namespaces = (1..).zip(&models).map(|(nsid, model)| model.namespace(nsid)).collect();
    let mut two = Two::with(namespaces);
    let cdw10 = FeatureId::RESERVATION_PERSISTENCE.0.into();
    let order = SubmissionEntry { nsid: NSID_ALL, cdw10, ..entry(admin::SET_FEATURES) };
    two.on(1, |host| {
        (0..24).for_each(|_| _ = host.put(0, order));
        host.ring(0);
        let (mut most, mut done) = (0, 0);
        while host.turn() > 0 {
            let ended = host.reap_all(0).len();
            (most, done) = (most.max(ended), done + ended);
        }
        assert_eq!(done, 24);
        assert!(most <= 8, "{most}");
    });
    // The same holds for orders that have waited for a record.
    let persister = Persister::of(&mut two);
    two.on(0, |host| {
        let register = command(host, opcode::RESERVATION_REGISTER, PERSIST, [0, 7]);
        host.submit(1, register);
        host.run();
    });
    two.on(1, |host| {
        (0..24).for_each(|_| _ = host.put(0, SubmissionEntry { nsid: 2, ..order }));
        host.ring(0);
        host.run();
        assert_eq!(host.take(0), None);
    });
    let what = persister.0.lock().expect("not poisoned").pop_front().expect("something to store");
    two.hosts[0].controller.subsystem.persisted(what, true, 1);
    let (mut most, mut done) = (0, 0);
    while two.on(0, Host::turn) + two.on(1, Host::turn) > 0 {
        let ended = two.on(1, |host| host.reap_all(0).len());
        (most, done) = (most.max(ended), done + ended);
    }
    assert_eq!(done, 24);
    assert!(most <= 12, "{most}");
}

#[test]
fn a_reset_waits_for_nothing_that_is_being_stored() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.register(1, 8);
    let persister = Persister::of(&mut two);
    two.on(0, |host| {
        let register = command(host, opcode::RESERVATION_REGISTER, PERSIST, [0, 7]);
        let acquire = command(host, opcode::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [7, 0]);
        for entry in [register, acquire] {
            host.submit(1, entry);
        }
        host.run();
        assert_eq!(host.take(1), None);
        reset(host);
        assert_eq!(host.controller.in_flight(), 0);
    });
    two.on(1, |host| {
        let acquire = command(host, opcode::RESERVATION_ACQUIRE, EXCLUSIVE_ACCESS, [8, 0]);
        host.submit(1, acquire);
        host.run();
        assert_eq!(report(host).2, [(2, 8, false)], "nothing is so before it is stored");
    });
    // A change that has begun goes on, and waiting ones are dropped: others come next.
    persister.answer(&mut two);
    assert_eq!(two.on(1, report).2, [(2, 8, false), (1, 7, false)]);
    persister.answer(&mut two);
    assert_eq!(two.on(1, |host| host.reap_all(1)).len(), 1);
    assert_eq!(two.on(1, report), (2, 2, vec![(2, 8, true), (1, 7, false)]));
    assert_eq!(two.on(0, |host| host.take(1)), None, "nobody of the next life has asked for anything");
}

#[test]
fn a_reset_of_a_preemptor_does_not_wait_for_what_its_victim_has_under_way() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.register(0, 7);
    two.register(1, 8);
    model.disk().hold = true;
    two.on(0, |host| {
        let buffer = host.allocate(2 * PAGE);
        host.submit(1, io(opcode::WRITE, 0, 1, buffer));
        host.run();
    });
    two.on(1, |host| {
        let abort = command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, [8, 7]);
        host.submit(1, abort);
        host.run();
        assert_eq!(host.take(1), None);
        reset(host);
        // The next command of its host still comes after the write.
        let register = command(host, opcode::RESERVATION_REGISTER, 0, [0, 9]);
        host.submit(1, register);
    });
    two.run();
    assert_eq!(two.on(1, |host| host.take(1)), None);
    two.on(0, |host| host.answer(1, &model, 1));
    two.run();
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(1, report).2, [(2, 8, false), (0, 9, false)]);
}

/// Tests that no format of a namespace begins to erase while a preempting command is there.
#[test]
fn nobody_waits_for_the_format_of_a_victim_whose_preemptor_was_reset_before() {
    let (model, other) = (Model::new(BLOCKS), Model::new(BLOCKS));
    let mut two = Two::with(vec![model.namespace(1), other.namespace(2)]);
    two.register(0, 7);
    assert_eq!(two.order(1, opcode::RESERVATION_REGISTER, PERSIST, [0, 8]), Status::SUCCESS);
    let persister = Persister::of(&mut two);
    two.on(1, |host| {
        let abort = command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, [8, 7]);
        host.submit(1, abort);
        host.run();
        reset(host);
    });
    model.disk().hold = true;
    two.on(0, |host| {
        host.submit(0, SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) });
        host.run();
    });
    persister.answer_but(&mut two, 1);
    assert_eq!(model.disk().parked.len(), 1, "it erases");
    persister.answer(&mut two);
    two.on(1, |host| {
        let register = command(host, opcode::RESERVATION_REGISTER, 0, [0, 9]);
        assert_eq!(host.io(SubmissionEntry { nsid: 2, ..register }), Status::SUCCESS);
        assert_eq!(host.io(register), Status::FORMAT_IN_PROGRESS);
    });
    model.disk().hold = false;
    two.on(0, |host| host.answer(1, &model, 1));
    two.run();
    persister.answer(&mut two);
    assert_eq!(two.on(0, |host| host.reap(0)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(1, report).2, [(2, 8, false)]);
}

/// Drains the drive while the preemption is being stored.
#[test]
fn a_paused_format_that_is_preempted_ends_without_having_begun() {
    let model = Model::new(BLOCKS);
    model.disk().bytes.fill(5);
    let mut two = Two::new(&model);
    two.register(0, 7);
    assert_eq!(two.order(1, opcode::RESERVATION_REGISTER, PERSIST, [0, 8]), Status::SUCCESS);
    let persister = Persister::of(&mut two);
    two.on(1, |host| {
        let abort = command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, [8, 7]);
        host.submit(1, abort);
        host.run();
    });
    two.on(0, |host| {
        host.submit(0, SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) });
        host.run();
    });
    // The format is to begin, and waits for the preemptor's command.
    persister.answer_but(&mut two, 1);
    for number in [0, 1] {
        two.on(number, |host| host.controller.pause());
    }
    // The change is persisted, and then the failure of the format.
    for _ in 0..2 {
        two.hosts.iter_mut().for_each(|host| host.now_ns += MS);
        persister.answer(&mut two);
    }
    for (number, cq, status) in [(0, 0, Status::ABORTED_PREEMPT), (1, 1, Status::SUCCESS)] {
        let ended = two.on(number, |host| host.take(cq).map(|it| it.status()));
        assert_eq!(ended, Some(status), "host {number}");
        assert_eq!(two.on(number, |host| host.controller.unfinished()), 0, "host {number}");
    }
    assert!(model.disk().bytes.iter().all(|&byte| byte == 5));
}

#[test]
fn an_unnamed_host_is_forgotten_with_what_was_being_stored_when_it_was_reset() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.on(0, reset);
    let persister = Persister::of(&mut two);
    // This is the host's own change, which is not in force.
    two.on(0, |host| {
        let register = command(host, opcode::RESERVATION_REGISTER, PERSIST, [0, 7]);
        host.submit(1, register);
        host.run();
        assert_eq!(host.take(1), None);
        reset(host);
    });
    persister.answer(&mut two);
    assert_eq!(two.on(1, report), (0, 1, vec![]));
    // This is another host's change. A host without a name has no record.
    two.register(0, 7);
    two.on(1, |host| {
        let register = command(host, opcode::RESERVATION_REGISTER, 0, [0, 8]);
        host.submit(1, register);
        host.run();
        assert_eq!(host.take(1), None);
    });
    two.on(0, |host| {
        (0..3).for_each(|_| reset(host));
        // This is a new registration, with another key.
        let register = command(host, opcode::RESERVATION_REGISTER, 0, [0, 9]);
        host.submit(1, register);
        host.run();
        assert_eq!(host.take(1), None);
    });
    persister.answer(&mut two);
    assert_eq!(two.on(0, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(1, report).2, [(2, 8, false), (0, 9, false)]);
}

/// Tests that a preemption waits for a Copy that reads another namespace, since it may write this one next.
#[test]
fn a_preemptor_that_aborts_waits_for_a_copy_that_reads_elsewhere() {
    let (model, other) = (Model::new(BLOCKS), Model::new(BLOCKS));
    let mut two = Two::with(vec![model.namespace(1), other.namespace(2)]);
    two.register(0, 7);
    two.register(1, 8);
    two.on(0, enable_named_ranges);
    other.disk().hold = true;
    two.on(0, |host| {
        let command = copy(host, NAMED, 0, &[(2, 0, 8)]);
        host.submit(1, command);
        host.run();
    });
    two.on(1, |host| {
        let abort = command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, [8, 7]);
        host.submit(1, abort);
    });
    two.run();
    assert_eq!(two.on(1, |host| host.reap(1)), None, "the copy is still to be written");
    two.on(0, |host| host.answer(2, &other, 1));
    two.run();
    assert_eq!(two.on(0, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
}

/// Tests that a preemption does not wait for a victim whose second half never comes, or whose pair waits for
/// another command.
#[test]
fn a_preemptor_that_aborts_does_not_wait_for_a_pair_that_has_not_begun() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.register(0, 7);
    two.register(1, 8);
    assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [7, 0]), Status::SUCCESS);
    model.disk().hold = true;
    two.on(0, |host| {
        host.create_pair(2, 16);
        let [first, second] = compare_and_write(host);
        host.submit(2, first);
        let buffer = host.allocate(PAGE);
        for entry in [io(opcode::READ, 8, 1, buffer), first, second] {
            host.put(1, entry);
        }
        host.ring(1);
        host.run();
    });
    two.on(1, |host| {
        let abort = command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, [8, 7]);
        host.submit(1, abort);
    });
    two.run();
    assert_eq!(two.on(1, |host| host.reap(1)), None, "the read is under way");
    two.on(0, |host| host.answer(1, &model, 1));
    two.run();
    assert_eq!(two.on(1, |host| ended(host, 1)), [Status::SUCCESS]);
    assert_eq!(
        two.on(0, |host| ended(host, 1)),
        [Status::SUCCESS, Status::ABORTED_FAILED_FUSED, Status::RESERVATION_CONFLICT]
    );
    assert_eq!(two.on(0, |host| ended(host, 2)), [], "its second may still come");
    assert_eq!(two.on(0, |host| host.delete_sq(2)), Status::SUCCESS);
    assert_eq!(two.on(0, |host| ended(host, 2)), [Status::ABORTED_MISSING_FUSED]);
    assert_eq!(two.on(0, |host| host.controller.in_flight()), 0);
}

/// Conformance: Base 7.3, registrants of a reservation are kept, through power loss if the host asked for it.
#[test]
fn what_persists_is_stored_before_the_host_is_told() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&kept);
    two.hosts[0].controller.subsystem.on_persist(move |what| keep.lock().expect("not poisoned").push(what));
    // Without Persist Through Power Loss there is nothing to store.
    two.register(1, 8);
    assert!(kept.lock().expect("not poisoned").is_empty());
    let host = |number| HostId::Extended([number; 16]);
    let registrant = |number: u8, key, holds| {
        let name = KnownAs::Socket(number.into());
        RegistrantRecord { host: host(number), name, key, holds }
    };
    let register = |host: &mut Host| {
        let register = command(host, opcode::RESERVATION_REGISTER, PERSIST, [0, 7]);
        host.submit(1, register);
        host.run();
        assert_eq!(host.take(1), None, "it is not stored yet");
    };
    two.on(0, register);
    // Another host's order waits for the outcome of this one.
    two.on(1, |host| {
        let acquire = command(host, opcode::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [8, 0]);
        host.submit(1, acquire);
    });
    two.run();
    assert_eq!(two.on(1, |host| host.take(1)), None);
    let registrants = vec![registrant(2, 8, false), registrant(1, 7, false)];
    let record = ReservationRecord { registrants, reservation: None };
    let stored = kept.lock().expect("not poisoned").pop().expect("something to store");
    assert_eq!(stored, PersistentRecord::Reservations(vec![(1, Some(record))]));
    two.hosts[0].controller.subsystem.persisted(stored, false, 1);
    two.run();
    assert_eq!(two.on(0, |host| host.reap(1)).map(|it| it.status()), Some(Status::INTERNAL_ERROR));
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(0, report).2, [(2, 8, true)]);
    // This time the record is persisted.
    two.on(0, register);
    let registrants = vec![registrant(2, 8, true), registrant(1, 7, false)];
    let reservation = Some(ReservationType::WriteExclusive);
    let record = ReservationRecord { registrants, reservation };
    let stored = kept.lock().expect("not poisoned").pop().expect("something to store");
    assert_eq!(stored, PersistentRecord::Reservations(vec![(1, Some(record.clone()))]));
    two.hosts[0].controller.subsystem.persisted(stored, true, 1);
    two.run();
    assert_eq!(two.on(0, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    // The subsystem is created again.
    let mut host = Host::enabled(vec![model.namespace(1).reserved(&record)]);
    host.create_pair(1, 64);
    set_host(&mut host, 1);
    assert_eq!(report(&mut host), (1, 0, vec![(2, 8, true), (1, 7, false)]));
    let buffer = host.allocate(2 * PAGE);
    assert_eq!(host.io(io(opcode::WRITE, 0, 1, buffer)), Status::RESERVATION_CONFLICT);
    assert_eq!(host.io(io(opcode::READ, 0, 1, buffer)), Status::SUCCESS);
    // With persistence off, the record is removed.
    two.on(1, |host| {
        let cdw10 = FeatureId::RESERVATION_PERSISTENCE.0.into();
        host.submit(0, SubmissionEntry { nsid: NSID_ALL, cdw10, ..entry(admin::SET_FEATURES) });
        host.run();
        assert_eq!(host.take(0), None);
    });
    let stored = kept.lock().expect("not poisoned").pop().expect("something to store");
    assert_eq!(stored, PersistentRecord::Reservations(vec![(1, None)]));
    two.hosts[0].controller.subsystem.persisted(stored, true, 1);
    two.run();
    assert_eq!(two.on(1, |host| host.reap(0)).map(|it| it.status()), Some(Status::SUCCESS));
}
