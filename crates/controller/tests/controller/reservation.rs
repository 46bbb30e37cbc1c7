//! Reservations of a namespace that two hosts share: what each may do, what it is told, and what is stored first.

use crate::client::Mood;
use crate::copy::{NAMED, copy, enable_named_ranges};
use crate::host::{Host, MS, PAGE, entry, io};
use crate::model::Model;
use sluice_controller::{
    Controller, FormatRecord, FormatState, HostId, Keep, KnownAs, Namespace, RegistrantRecord,
    ReservationRecord, ReservationType,
};
use sluice_nvme::identify::IdentifyNamespace;
use sluice_nvme::log::ReservationNotification;
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::register;
use sluice_nvme::reservation::{ExtendedRegistrant, ReportHeader};
use sluice_nvme::{Cns, FeatureId, LogId, NSID_ALL, Status, SubmissionEntry};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use zerocopy::{FromBytes, IntoBytes};

const BLOCKS: usize = 2048;

/// Dword 0 of a notice: its log page, and that it is there.
const LOG_PAGE_AVAILABLE: u32 = 0x0080_0006;

const WRITE_EXCLUSIVE: u32 = 1 << 8;
const EXCLUSIVE_ACCESS: u32 = 2 << 8;
const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u32 = 3 << 8;

const PREEMPT: u32 = 1;
const PREEMPT_AND_ABORT: u32 = 2;
const PERSIST: u32 = 3 << 30;

/// Two hosts of one subsystem, which lies with the first of them.
struct Two {
    hosts: [Host; 2],
}

impl Two {
    fn new(model: &Model) -> Self {
        Self::with(vec![model.namespace(1)])
    }

    fn with(namespaces: Vec<Namespace>) -> Self {
        let mut first = Host::enabled(namespaces);
        first.create_pair(1, 64);
        Self::of(first)
    }

    fn of(mut first: Host) -> Self {
        let mut second = Host::new(vec![Model::new(8).namespace(1)]);
        second.controller.controller = Controller::new(&mut first.controller.subsystem, 2).expect("room");
        let mut two = Self { hosts: [first, second] };
        two.on(1, |host| {
            host.enable();
            host.create_pair(1, 64);
        });
        for number in [0, 1] {
            assert_eq!(two.on(number, |host| set_host(host, number as u8 + 1)), Status::SUCCESS);
        }
        two
    }

    /// Lets one of them do something.
    fn on<T>(&mut self, number: usize, act: impl FnOnce(&mut Host) -> T) -> T {
        let [first, second] = &mut self.hosts;
        if number == 0 {
            return act(first);
        }
        std::mem::swap(&mut first.controller.subsystem, &mut second.controller.subsystem);
        let result = act(second);
        std::mem::swap(&mut first.controller.subsystem, &mut second.controller.subsystem);
        result
    }

    /// Lets them do what they can.
    fn run(&mut self) {
        for number in [0, 1, 0] {
            self.on(number, Host::run);
        }
    }

    /// A reservation command of one of them.
    fn order(&mut self, number: usize, opcode: u8, cdw10: u32, keys: [u64; 2]) -> Status {
        self.on(number, |host| order(host, opcode, cdw10, keys))
    }

    fn register(&mut self, number: usize, key: u64) {
        assert_eq!(self.order(number, opcode::RESERVATION_REGISTER, 0, [0, key]), Status::SUCCESS);
    }

    fn io(&mut self, number: usize, opcode: u8) -> Status {
        self.on(number, |host| {
            let buffer = host.allocate(2 * PAGE);
            // One range of one block for those that have ranges.
            host.write(buffer + 4, &1u32.to_le_bytes());
            let command = io(opcode, 64, 1, buffer);
            host.io(match opcode {
                opcode::DATASET_MANAGEMENT => SubmissionEntry { cdw10: 0, cdw11: 4, ..command },
                _ => command,
            })
        })
    }
}

fn set_host(host: &mut Host, name: u8) -> Status {
    let buffer = host.allocate(PAGE);
    host.write(buffer, &[name; 16]);
    let cdw10 = FeatureId::HOST_IDENTIFIER.0.into();
    host.admin(SubmissionEntry { cdw10, cdw11: 1, dptr: [buffer, 0], ..entry(admin::SET_FEATURES) }).status()
}

fn command(host: &mut Host, opcode: u8, cdw10: u32, keys: [u64; 2]) -> SubmissionEntry {
    let buffer = host.allocate(PAGE);
    host.write(buffer, keys.as_bytes());
    SubmissionEntry { nsid: 1, cdw10, dptr: [buffer, 0], ..entry(opcode) }
}

fn order(host: &mut Host, opcode: u8, cdw10: u32, keys: [u64; 2]) -> Status {
    let command = command(host, opcode, cdw10, keys);
    host.io(command)
}

/// The Reservation Status data structure: type, generation, and who is registered.
fn report(host: &mut Host) -> (u8, u32, Vec<(u8, u64, bool)>) {
    let buffer = host.allocate(PAGE);
    let (cdw10, dptr) = (PAGE as u32 / 4 - 1, [buffer, 0]);
    let command = SubmissionEntry { nsid: 1, cdw10, cdw11: 1, dptr, ..entry(opcode::RESERVATION_REPORT) };
    assert_eq!(host.io(command), Status::SUCCESS);
    let bytes = host.read(buffer, PAGE);
    let (header, _) = ReportHeader::read_from_prefix(&bytes).expect("a header");
    let registrants = bytes[64..].chunks(64).take(header.registrants().into()).map(|bytes| {
        let it = ExtendedRegistrant::read_from_bytes(bytes).expect("a registrant");
        (it.host[0], it.key, it.status == 1)
    });
    (header.rtype, header.generation(), registrants.collect())
}

/// Conformance: Base 7.2, a namespace is reserved by a registrant, and what conflicts is completed with Reservation Conflict.
/// Conformance: Base 7.4, the holder releases its reservation, and nobody else does.
/// Conformance: Base 7.5, who is registered and who holds the reservation can be reported.
#[test]
fn others_are_kept_from_what_one_has_reserved() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.register(0, 7);
    assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [7, 0]), Status::SUCCESS);
    const READS: [u8; 2] = [opcode::READ, opcode::VERIFY];
    // What is marked is written again.
    const WRITES: [u8; 6] = [
        opcode::WRITE_UNCORRECTABLE,
        opcode::WRITE,
        opcode::WRITE_ZEROES,
        opcode::FLUSH,
        opcode::DATASET_MANAGEMENT,
        opcode::COPY,
    ];
    let copy_is_empty = |opcode, status| opcode == opcode::COPY && status != Status::RESERVATION_CONFLICT;
    for (kind, may_read) in [(WRITE_EXCLUSIVE, true), (EXCLUSIVE_ACCESS, false)] {
        assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, PREEMPT | kind, [7, 7]), Status::SUCCESS);
        for opcode in READS {
            let expected = if may_read { Status::SUCCESS } else { Status::RESERVATION_CONFLICT };
            assert_eq!(two.io(1, opcode), expected, "{opcode:#x}");
        }
        let seen = model.take_seen().len();
        assert!(seen <= READS.len());
        for opcode in WRITES {
            assert_eq!(two.io(1, opcode), Status::RESERVATION_CONFLICT, "{opcode:#x}");
        }
        assert!(model.take_seen().is_empty(), "nothing of it came to the target");
        for opcode in READS.into_iter().chain(WRITES) {
            let status = two.io(0, opcode);
            assert!(status.is_success() || copy_is_empty(opcode, status), "{opcode:#x}: {status:?}");
        }
        model.take_seen();
    }
    let format = SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) };
    assert_eq!(two.on(1, |host| host.admin(format).status()), Status::RESERVATION_CONFLICT);
    assert_eq!(two.on(1, report), (2, 3, vec![(1, 7, true)]));
    assert_eq!(
        two.order(1, opcode::RESERVATION_RELEASE, EXCLUSIVE_ACCESS, [7, 0]),
        Status::RESERVATION_CONFLICT
    );
    assert_eq!(two.order(0, opcode::RESERVATION_RELEASE, EXCLUSIVE_ACCESS, [7, 0]), Status::SUCCESS);
    assert_eq!(two.io(1, opcode::WRITE), Status::SUCCESS);
}

/// Conformance: Base 5.16.1.24, a host whose registration or reservation is taken finds a Reservation Notification log page, and an event.
/// Conformance: Base 8.19, notifications that a host has masked are not made.
#[test]
fn a_host_hears_what_happened_to_its_registration() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.register(0, 7);
    two.register(1, 8);
    two.on(0, |host| host.submit(0, entry(admin::ASYNC_EVENT_REQUEST)));
    let acquire = opcode::RESERVATION_ACQUIRE;
    assert_eq!(two.order(0, acquire, WRITE_EXCLUSIVE_REGISTRANTS_ONLY, [7, 0]), Status::SUCCESS);
    assert_eq!(two.order(1, acquire, EXCLUSIVE_ACCESS, [8, 0]), Status::RESERVATION_CONFLICT);
    assert_eq!(two.order(1, acquire, PREEMPT | EXCLUSIVE_ACCESS, [8, 7]), Status::SUCCESS);
    two.run();
    let event = two.on(0, |host| host.reap(0)).expect("an event");
    assert_eq!(event.dw0, LOG_PAGE_AVAILABLE);
    let page = |host: &mut Host| {
        let bytes = host.log(LogId::RESERVATION_NOTIFICATION, 64).expect("a page");
        ReservationNotification::read_from_bytes(&bytes).expect("a whole page")
    };
    let first = two.on(0, page);
    assert_eq!((first.count, first.kind, first.available, first.nsid), (1, 1, 0, 1));
    assert_eq!(two.on(0, page).count, 0, "it was read");
    assert_eq!(two.on(1, page).count, 0, "it is not about this host");
    assert_eq!(two.io(0, opcode::READ), Status::RESERVATION_CONFLICT);
    // Two more, of which one is masked.
    two.on(0, |host| {
        let cdw10 = FeatureId::RESERVATION_NOTIFICATION_MASK.0.into();
        let set = SubmissionEntry { nsid: NSID_ALL, cdw10, cdw11: 1 << 2, ..entry(admin::SET_FEATURES) };
        assert_eq!(host.admin(set).status(), Status::SUCCESS);
        let get = SubmissionEntry { nsid: 1, cdw10, ..entry(admin::GET_FEATURES) };
        assert_eq!(host.dw0(get), Ok(1 << 2));
    });
    two.register(0, 9);
    let all_registrants = 6 << 8;
    assert_eq!(two.order(1, acquire, PREEMPT | all_registrants, [8, 8]), Status::SUCCESS);
    assert_eq!(two.order(1, opcode::RESERVATION_RELEASE, 1, [8, 0]), Status::SUCCESS);
    two.run();
    let last = two.on(0, page);
    assert_eq!((last.count, last.kind), (2, 3), "Reservation Preempted, and not that it was released");
    assert_eq!(two.on(0, report), (0, 6, vec![]));
}

/// Conformance: Base 7.2, a Preempt and Abort ends when its victims' commands have.
#[test]
fn a_preemptor_that_aborts_waits_for_what_its_victim_has_under_way() {
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
    });
    two.run();
    assert_eq!(two.on(1, |host| host.reap(1)), None, "the write may still come");
    // Whoever comes after waits its turn.
    two.on(0, |host| {
        let register = command(host, opcode::RESERVATION_REGISTER, 0, [0, 9]);
        host.submit(1, register);
    });
    two.run();
    assert_eq!(two.on(0, |host| host.take(1)), None);
    two.on(0, |host| host.answer(1, &model, 1));
    two.run();
    let ended = two.on(0, |host| host.reap_all(1));
    assert_eq!(ended.iter().map(|it| it.status()).collect::<Vec<_>>(), [Status::SUCCESS; 2]);
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(1, report).2, [(2, 8, false), (1, 9, false)]);
}

/// Nor for the room that a write of its victim waits for, which there may never be.
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
    // It is found that there is none after the order was taken.
    model.disk().full = true;
    (0..2).for_each(|_| two.run());
    assert_eq!(two.on(0, |host| host.reap(1)).map(|it| it.status()), Some(Status::ABORTED_PREEMPT));
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(model.disk().parked.len(), 1, "the preemptor's own goes on waiting");
}

/// It may never answer, and what it is brought changes nothing on the drive.
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
    two.hosts[0].controller.subsystem.on_keep(move |what| keep.lock().expect("not poisoned").push_back(what));
    let answer = |two: &mut Two| {
        let what = kept.lock().expect("not poisoned").pop_front().expect("something to store");
        let now_ns = two.hosts[0].now_ns;
        two.hosts[0].controller.subsystem.kept(what.clone(), true, now_ns);
        two.run();
        what
    };
    two.on(1, |host| {
        let abort = command(host, opcode::RESERVATION_ACQUIRE, PREEMPT_AND_ABORT | WRITE_EXCLUSIVE, [8, 7]);
        host.submit(1, abort);
        host.run();
    });
    // What it changes is not so yet.
    two.on(0, |host| {
        host.submit(0, SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) });
        host.run();
    });
    assert!(matches!(answer(&mut two), Keep::Reservations(_)));
    assert_eq!(two.on(1, |host| host.take(1)), None, "the format may still begin");
    let (nsid, block_size) = (1, 512);
    for state in [FormatState::Running, FormatState::Failed] {
        assert_eq!(answer(&mut two), Keep::Format(FormatRecord { nsid, block_size, state }));
    }
    assert_eq!(two.on(0, |host| host.reap(0)).map(|it| it.status()), Some(Status::ABORTED_PREEMPT));
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert!(model.disk().bytes.iter().all(|&byte| byte == 5));
    assert_eq!(two.io(1, opcode::READ), Status::SUCCESS);
}

/// Somebody who remembers what hosts want when a test says so.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<VecDeque<Keep>>>);

impl Keeper {
    fn of(two: &mut Two) -> Self {
        let keeper = Self::default();
        let Self(asked) = keeper.clone();
        let subsystem = &mut two.hosts[0].controller.subsystem;
        subsystem.on_keep(move |what| asked.lock().expect("not poisoned").push_back(what));
        keeper
    }

    /// The oldest that was asked for is remembered.
    fn answer(&self, two: &mut Two) {
        self.answer_but(two, 0);
    }

    /// The oldest but so many.
    fn answer_but(&self, two: &mut Two, at: usize) {
        let what = self.0.lock().expect("not poisoned").remove(at).expect("something to store");
        let now_ns = two.hosts[0].now_ns;
        two.hosts[0].controller.subsystem.kept(what, true, now_ns);
        two.run();
    }
}

/// A reset from outside, which is over at once.
fn reset(host: &mut Host) {
    host.controller.reset();
    host.run();
    assert!(host.controller.is_quiescent());
    host.enable();
    host.create_pair(1, 64);
}

/// A host that wants much remembered keeps nobody from fencing it.
#[test]
fn hosts_take_turns_with_what_is_stored() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.register(1, 8);
    assert_eq!(two.order(0, opcode::RESERVATION_REGISTER, PERSIST, [0, 7]), Status::SUCCESS);
    let keeper = Keeper::of(&mut two);
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
        keeper.answer(&mut two);
    }
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(0, |host| host.reap_all(1)).len(), 1);
}

/// Orders that change nothing look at every namespace all the same: a turn has a few of them.
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
    // So it is with those that have waited for another that is stored.
    let keeper = Keeper::of(&mut two);
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
    let what = keeper.0.lock().expect("not poisoned").pop_front().expect("something to store");
    two.hosts[0].controller.subsystem.kept(what, true, 1);
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
    let keeper = Keeper::of(&mut two);
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
    // What was begun goes on, and what waited does not begin: others come next.
    keeper.answer(&mut two);
    assert_eq!(two.on(1, report).2, [(2, 8, false), (1, 7, false)]);
    keeper.answer(&mut two);
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
        // What its host asks for next still comes after the write.
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

/// While a preemptor's command is there no format of that namespace begins to erase.
#[test]
fn nobody_waits_for_the_format_of_a_victim_whose_preemptor_was_reset_before() {
    let (model, other) = (Model::new(BLOCKS), Model::new(BLOCKS));
    let mut two = Two::with(vec![model.namespace(1), other.namespace(2)]);
    two.register(0, 7);
    assert_eq!(two.order(1, opcode::RESERVATION_REGISTER, PERSIST, [0, 8]), Status::SUCCESS);
    let keeper = Keeper::of(&mut two);
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
    keeper.answer_but(&mut two, 1);
    assert_eq!(model.disk().parked.len(), 1, "it erases");
    keeper.answer(&mut two);
    two.on(1, |host| {
        let register = command(host, opcode::RESERVATION_REGISTER, 0, [0, 9]);
        assert_eq!(host.io(SubmissionEntry { nsid: 2, ..register }), Status::SUCCESS);
        assert_eq!(host.io(register), Status::FORMAT_IN_PROGRESS);
    });
    model.disk().hold = false;
    two.on(0, |host| host.answer(1, &model, 1));
    two.run();
    keeper.answer(&mut two);
    assert_eq!(two.on(0, |host| host.reap(0)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(1, report).2, [(2, 8, false)]);
}

/// The drive is drained while the preemption is being stored.
#[test]
fn a_paused_format_that_is_preempted_ends_without_having_begun() {
    let model = Model::new(BLOCKS);
    model.disk().bytes.fill(5);
    let mut two = Two::new(&model);
    two.register(0, 7);
    assert_eq!(two.order(1, opcode::RESERVATION_REGISTER, PERSIST, [0, 8]), Status::SUCCESS);
    let keeper = Keeper::of(&mut two);
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
    keeper.answer_but(&mut two, 1);
    for number in [0, 1] {
        two.on(number, |host| host.controller.pause());
    }
    // What is changed is stored, and then that the format has failed.
    for _ in 0..2 {
        two.hosts.iter_mut().for_each(|host| host.now_ns += MS);
        keeper.answer(&mut two);
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
    let keeper = Keeper::of(&mut two);
    // Of its own, which is in force for nobody.
    two.on(0, |host| {
        let register = command(host, opcode::RESERVATION_REGISTER, PERSIST, [0, 7]);
        host.submit(1, register);
        host.run();
        assert_eq!(host.take(1), None);
        reset(host);
    });
    keeper.answer(&mut two);
    assert_eq!(two.on(1, report), (0, 1, vec![]));
    // Of another's. There is nothing to store of one that has no name.
    two.register(0, 7);
    two.on(1, |host| {
        let register = command(host, opcode::RESERVATION_REGISTER, 0, [0, 8]);
        host.submit(1, register);
        host.run();
        assert_eq!(host.take(1), None);
    });
    two.on(0, |host| {
        (0..3).for_each(|_| reset(host));
        // A new one, with another key.
        let register = command(host, opcode::RESERVATION_REGISTER, 0, [0, 9]);
        host.submit(1, register);
        host.run();
        assert_eq!(host.take(1), None);
    });
    keeper.answer(&mut two);
    assert_eq!(two.on(0, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(1, report).2, [(2, 8, false), (0, 9, false)]);
}

/// What a Copy reads may be of another namespace; what it writes next is of this one.
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

/// A Sanitize erases every namespace, whichever its NSID names.
#[test]
fn nothing_is_sanitized_while_another_has_reserved_some_of_it() {
    let (model, other) = (Model::new(BLOCKS), Model::new(BLOCKS));
    let mut two = Two::with(vec![model.namespace(1), other.namespace(2)]);
    two.register(0, 7);
    assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, EXCLUSIVE_ACCESS, [7, 0]), Status::SUCCESS);
    for nsid in [0, 1, 2, 3, NSID_ALL] {
        let block_erase = SubmissionEntry { nsid, cdw10: 2, ..entry(admin::SANITIZE) };
        assert_eq!(
            two.on(1, |host| host.admin(block_erase).status()),
            Status::RESERVATION_CONFLICT,
            "{nsid}"
        );
    }
}

/// A Compare and Write of block 8, which finds what it expects.
fn compare_and_write(host: &mut Host) -> [SubmissionEntry; 2] {
    [(opcode::COMPARE, 1), (opcode::WRITE, 2)].map(|(opcode, fuse)| {
        let buffer = host.allocate(PAGE);
        SubmissionEntry { flags: fuse, ..io(opcode, 8, 1, buffer) }
    })
}

fn ended(host: &mut Host, cq: u16) -> Vec<Status> {
    host.run();
    host.reap_all(cq).into_iter().map(|it| it.status()).collect()
}

#[test]
fn a_fused_pair_conflicts_as_each_of_its_commands_does() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.register(0, 7);
    let (conflict, other) = (Status::RESERVATION_CONFLICT, Status::ABORTED_FAILED_FUSED);
    for (kind, statuses) in [(WRITE_EXCLUSIVE, [other, conflict]), (EXCLUSIVE_ACCESS, [conflict, other])] {
        assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, kind, [7, 0]), Status::SUCCESS);
        model.take_seen();
        for (number, statuses) in [(1, statuses), (0, [Status::SUCCESS; 2])] {
            let ended = two.on(number, |host| {
                for entry in compare_and_write(host) {
                    host.put(1, entry);
                }
                host.ring(1);
                ended(host, 1)
            });
            assert_eq!(ended, statuses, "host {number}");
            assert_eq!(model.take_seen().is_empty(), number == 1, "host {number}");
        }
        assert_eq!(two.order(0, opcode::RESERVATION_RELEASE, kind, [7, 0]), Status::SUCCESS);
    }
}

/// A victim whose second never comes, or whose pair waits for another command, is no reason to wait.
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
    two.hosts[0].controller.subsystem.on_keep(move |what| keep.lock().expect("not poisoned").push(what));
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
    // Another's order waits until it is known what comes of this one.
    two.on(1, |host| {
        let acquire = command(host, opcode::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [8, 0]);
        host.submit(1, acquire);
    });
    two.run();
    assert_eq!(two.on(1, |host| host.take(1)), None);
    let registrants = vec![registrant(2, 8, false), registrant(1, 7, false)];
    let record = ReservationRecord { registrants, reservation: None };
    let stored = kept.lock().expect("not poisoned").pop().expect("something to store");
    assert_eq!(stored, Keep::Reservations(vec![(1, Some(record))]));
    two.hosts[0].controller.subsystem.kept(stored, false, 1);
    two.run();
    assert_eq!(two.on(0, |host| host.reap(1)).map(|it| it.status()), Some(Status::INTERNAL_ERROR));
    assert_eq!(two.on(1, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    assert_eq!(two.on(0, report).2, [(2, 8, true)]);
    // Once more, with better luck.
    two.on(0, register);
    let registrants = vec![registrant(2, 8, true), registrant(1, 7, false)];
    let reservation = Some(ReservationType::WriteExclusive);
    let record = ReservationRecord { registrants, reservation };
    let stored = kept.lock().expect("not poisoned").pop().expect("something to store");
    assert_eq!(stored, Keep::Reservations(vec![(1, Some(record.clone()))]));
    two.hosts[0].controller.subsystem.kept(stored, true, 1);
    two.run();
    assert_eq!(two.on(0, |host| host.reap(1)).map(|it| it.status()), Some(Status::SUCCESS));
    // The next life of the subsystem.
    let mut host = Host::enabled(vec![model.namespace(1).reserved(&record)]);
    host.create_pair(1, 64);
    set_host(&mut host, 1);
    assert_eq!(report(&mut host), (1, 0, vec![(2, 8, true), (1, 7, false)]));
    let buffer = host.allocate(2 * PAGE);
    assert_eq!(host.io(io(opcode::WRITE, 0, 1, buffer)), Status::RESERVATION_CONFLICT);
    assert_eq!(host.io(io(opcode::READ, 0, 1, buffer)), Status::SUCCESS);
    // With persistence off, the record goes.
    two.on(1, |host| {
        let cdw10 = FeatureId::RESERVATION_PERSISTENCE.0.into();
        host.submit(0, SubmissionEntry { nsid: NSID_ALL, cdw10, ..entry(admin::SET_FEATURES) });
        host.run();
        assert_eq!(host.take(0), None);
    });
    let stored = kept.lock().expect("not poisoned").pop().expect("something to store");
    assert_eq!(stored, Keep::Reservations(vec![(1, None)]));
    two.hosts[0].controller.subsystem.kept(stored, true, 1);
    two.run();
    assert_eq!(two.on(1, |host| host.reap(0)).map(|it| it.status()), Some(Status::SUCCESS));
}

/// Conformance: Base 8.19, registrations of a host without an identifier end with a reset of its controller.
#[test]
fn a_host_says_who_it_is_once_and_what_an_unnamed_one_had_ends_with_a_reset() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let page = host.identify(Cns::NAMESPACE, 1).expect("a page");
    assert_eq!(IdentifyNamespace::read_from_bytes(&page).expect("a whole page").rescap, 0xff);
    assert_eq!(order(&mut host, opcode::RESERVATION_REGISTER, 0, [0, 7]), Status::SUCCESS);
    assert_eq!(order(&mut host, opcode::RESERVATION_ACQUIRE, EXCLUSIVE_ACCESS, [7, 0]), Status::SUCCESS);
    assert_eq!(report(&mut host), (2, 1, vec![(0, 7, true)]));
    host.write_register(register::CC, 0);
    host.run();
    host.enable();
    host.create_pair(1, 64);
    assert_eq!(report(&mut host), (0, 1, vec![]));
    assert_eq!(set_host(&mut host, 5), Status::SUCCESS);
    assert_eq!(set_host(&mut host, 5), Status::SUCCESS);
    assert_eq!(set_host(&mut host, 6), Status::COMMAND_SEQUENCE_ERROR);
    let cdw10 = FeatureId::HOST_IDENTIFIER.0.into();
    let get = |cdw11| SubmissionEntry { cdw10, cdw11, ..entry(admin::GET_FEATURES) };
    assert_eq!(host.admin_read(get(1), 16), Ok(vec![5; 16]));
    assert_eq!(host.admin_read(get(0), 8), Err(Status::INVALID_FIELD));
    // A name outlives a reset only where it is registered, and so does its reservation.
    assert_eq!(order(&mut host, opcode::RESERVATION_REGISTER, 0, [0, 7]), Status::SUCCESS);
    host.write_register(register::CC, 0);
    host.run();
    host.enable();
    host.create_pair(1, 64);
    assert_eq!(host.admin_read(get(0), 8), Ok(vec![0; 8]));
    assert_eq!(report(&mut host), (0, 2, vec![(5, 7, false)]));
}

/// Conformance: Base 8.19, a host that says the identifier of a registrant with another name is not that registrant.
#[test]
fn an_identifier_is_of_the_name_that_registered_it() {
    const NAMES: [&str; 2] = ["nqn.2026-01.test:a", "nqn.2026-01.test:b"];
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    let connects = |two: &mut Two, number: usize, name: &str| {
        let [first, second] = &mut two.hosts;
        let subsystem = &mut first.controller.subsystem;
        match number {
            0 => first.controller.controller.set_host(subsystem, name, [9; 16]),
            _ => second.controller.controller.set_host(subsystem, name, [9; 16]),
        }
    };
    // Until somebody registers it, it is anybody's; as it is of a host by each of its ways.
    assert!(connects(&mut two, 0, NAMES[0]) && connects(&mut two, 1, NAMES[0]));
    two.register(0, 7);
    assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, EXCLUSIVE_ACCESS, [7, 0]), Status::SUCCESS);
    assert_eq!(two.io(1, opcode::WRITE), Status::SUCCESS);
    assert!(!connects(&mut two, 1, NAMES[1]));
    assert_eq!(two.io(1, opcode::WRITE), Status::RESERVATION_CONFLICT);
    let unregister = 1;
    assert_eq!(two.order(1, opcode::RESERVATION_REGISTER, unregister, [7, 0]), Status::RESERVATION_CONFLICT);
    // One that was there before it was registered is not the registrant, either.
    assert_eq!(two.order(0, opcode::RESERVATION_REGISTER, unregister, [7, 0]), Status::SUCCESS);
    assert!(connects(&mut two, 1, NAMES[1]));
    two.register(0, 7);
    assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, EXCLUSIVE_ACCESS, [7, 0]), Status::SUCCESS);
    assert_eq!(two.io(1, opcode::READ), Status::RESERVATION_CONFLICT);
    assert_eq!(two.io(0, opcode::READ), Status::SUCCESS);
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let model = Model::new(BLOCKS);
    let mut host = Host::with_io(&model);
    let nowhere = host.nowhere();
    let register = SubmissionEntry { nsid: 1, dptr: [nowhere, 0], ..entry(opcode::RESERVATION_REGISTER) };
    assert!(!host.io(register).is_success());
    assert_eq!(order(&mut host, opcode::RESERVATION_REGISTER, 5, [0, 7]), Status::INVALID_FIELD);
    assert_eq!(order(&mut host, opcode::RESERVATION_REGISTER, 0, [0, 0]), Status::INVALID_FIELD);
    assert_eq!(
        order(&mut host, opcode::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [0, 0]),
        Status::RESERVATION_CONFLICT
    );
    let elsewhere = SubmissionEntry { nsid: 2, ..entry(opcode::RESERVATION_REPORT) };
    assert_eq!(host.io(elsewhere), Status::INVALID_FIELD);
    let endless = SubmissionEntry { nsid: 1, cdw10: u32::MAX, ..entry(opcode::RESERVATION_REPORT) };
    assert_eq!(host.io(endless), Status::INVALID_FIELD);
}
