//! Reservations of a namespace that two hosts share: access, notifications, and records.

use crate::host::{Host, PAGE, entry, io};
use crate::model::Model;
use sluice_controller::{Controller, Namespace};
use sluice_nvme::identify::IdentifyNamespace;
use sluice_nvme::log::ReservationNotification;
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::register;
use sluice_nvme::reservation::{ExtendedRegistrant, ReportHeader};
use sluice_nvme::{Cns, FeatureId, LogId, NSID_ALL, SglDescriptor, SglType, Status, SubmissionEntry};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const BLOCKS: usize = 2048;

/// Dword 0 of the event: its log page, and its type.
const LOG_PAGE_AVAILABLE: u32 = 0x0080_0006;

pub(crate) const WRITE_EXCLUSIVE: u32 = 1 << 8;
pub(crate) const EXCLUSIVE_ACCESS: u32 = 2 << 8;
const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u32 = 3 << 8;

const PREEMPT: u32 = 1;
pub(crate) const PREEMPT_AND_ABORT: u32 = 2;
pub(crate) const PERSIST: u32 = 3 << 30;

/// Two hosts of one subsystem, which is stored with the first of them.
pub(crate) struct Two {
    pub(crate) hosts: [Host; 2],
}

impl Two {
    pub(crate) fn new(model: &Model) -> Self {
        Self::with(vec![model.namespace(1)])
    }

    pub(crate) fn with(namespaces: Vec<Namespace>) -> Self {
        let mut first = Host::enabled(namespaces);
        first.create_pair(1, 64);
        Self::of(first)
    }

    pub(crate) fn of(mut first: Host) -> Self {
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

    /// Runs an action of one of the hosts with the subsystem.
    pub(crate) fn on<T>(&mut self, number: usize, act: impl FnOnce(&mut Host) -> T) -> T {
        let [first, second] = &mut self.hosts;
        if number == 0 {
            return act(first);
        }
        std::mem::swap(&mut first.controller.subsystem, &mut second.controller.subsystem);
        let result = act(second);
        std::mem::swap(&mut first.controller.subsystem, &mut second.controller.subsystem);
        result
    }

    /// Gives turns to both hosts.
    pub(crate) fn run(&mut self) {
        for number in [0, 1, 0] {
            self.on(number, Host::run);
        }
    }

    /// Executes a reservation command of one of the hosts.
    pub(crate) fn order(&mut self, number: usize, opcode: u8, cdw10: u32, keys: [u64; 2]) -> Status {
        self.on(number, |host| order(host, opcode, cdw10, keys))
    }

    pub(crate) fn register(&mut self, number: usize, key: u64) {
        assert_eq!(self.order(number, opcode::RESERVATION_REGISTER, 0, [0, key]), Status::SUCCESS);
    }

    pub(crate) fn io(&mut self, number: usize, opcode: u8) -> Status {
        self.on(number, |host| {
            let buffer = host.allocate(2 * PAGE);
            // Commands with ranges have one range of one block.
            host.write(buffer + 4, &1u32.to_le_bytes());
            let command = io(opcode, 64, 1, buffer);
            host.io(match opcode {
                opcode::DATASET_MANAGEMENT => SubmissionEntry { cdw10: 0, cdw11: 4, ..command },
                _ => command,
            })
        })
    }
}

pub(crate) fn set_host(host: &mut Host, name: u8) -> Status {
    let buffer = host.allocate(PAGE);
    host.write(buffer, &[name; 16]);
    let cdw10 = FeatureId::HOST_IDENTIFIER.0.into();
    host.admin(SubmissionEntry { cdw10, cdw11: 1, dptr: [buffer, 0], ..entry(admin::SET_FEATURES) }).status()
}

pub(crate) fn command(host: &mut Host, opcode: u8, cdw10: u32, keys: [u64; 2]) -> SubmissionEntry {
    let buffer = host.allocate(PAGE);
    host.write(buffer, keys.as_bytes());
    SubmissionEntry { nsid: 1, cdw10, dptr: [buffer, 0], ..entry(opcode) }
}

fn order(host: &mut Host, opcode: u8, cdw10: u32, keys: [u64; 2]) -> Status {
    let command = command(host, opcode, cdw10, keys);
    host.io(command)
}

/// Returns the Reservation Status data structure: type, generation, and registrants.
pub(crate) fn report(host: &mut Host) -> (u8, u32, Vec<(u8, u64, bool)>) {
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

/// Conformance: Base 7.5, a report has the number of dwords that its host names, and counts as no read.
#[test]
fn a_report_is_as_long_as_its_host_has_room() {
    let mut two = Two::new(&Model::new(BLOCKS));
    two.register(0, 7);
    let whole = two.on(0, |host| {
        let buffer = host.allocate(PAGE);
        let command = entry(opcode::RESERVATION_REPORT);
        let command = SubmissionEntry { nsid: 1, cdw10: 255, cdw11: 1, dptr: [buffer, 0], ..command };
        [128, 1, 16, 17].map(|dwords: u32| {
            host.write(buffer, &[0xee; PAGE]);
            assert_eq!(host.io(SubmissionEntry { cdw10: dwords - 1, ..command }), Status::SUCCESS);
            host.read(buffer, PAGE)
        })
    });
    for (part, bytes) in whole[1..].iter().zip([4, 64, 68]) {
        assert!(part[..bytes] == whole[0][..bytes] && part[bytes..].iter().all(|byte| *byte == 0xee));
    }
    let page = two.on(0, |host| host.log(LogId::SMART_HEALTH, 512).expect("a page"));
    assert_eq!((page[32], page[64], page[80]), (0, 0, 0), "data units and commands");
    // Identifiers of 128 bits are in the extended structure alone, and no command moves more than 1 MiB.
    let mut status = |dwords: u32, cdw11, bytes: u32| {
        two.on(0, |host| {
            let buffer = host.allocate(1 << 20);
            host.reuse_memory();
            let dptr = SglDescriptor::new(SglType::DATA_BLOCK, buffer, bytes).to_dptr();
            let command =
                SubmissionEntry { nsid: 1, flags: 1 << 6, dptr, ..entry(opcode::RESERVATION_REPORT) };
            host.io(SubmissionEntry { cdw10: dwords - 1, cdw11, ..command })
        })
    };
    assert_eq!(status(16, 0, 64), Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT);
    assert_eq!(status(1 << 18, 1, 1 << 20), Status::SUCCESS);
    assert_eq!(status((1 << 18) + 1, 1, (1 << 20) + 4), Status::INVALID_FIELD);
}

/// Conformance: Base 7.2, the keys of a command have 16 bytes, and that of a Release has 8.
#[test]
fn keys_are_read_as_far_as_there_are_any() {
    let mut two = Two::new(&Model::new(BLOCKS));
    for (opcode, keys, bytes) in [
        (opcode::RESERVATION_REGISTER, [0u64, 7], 16),
        (opcode::RESERVATION_ACQUIRE, [7, 0], 16),
        (opcode::RESERVATION_RELEASE, [7, 0], 8),
    ] {
        let cdw10 = if opcode == opcode::RESERVATION_REGISTER { 0 } else { WRITE_EXCLUSIVE };
        // They end with a page, and there is no second one.
        let status = two.on(0, |host| {
            let buffer = host.allocate(PAGE) + (PAGE - bytes) as u64;
            host.write(buffer, &keys.as_bytes()[..bytes]);
            host.io(SubmissionEntry { nsid: 1, cdw10, dptr: [buffer, 0], ..entry(opcode) })
        });
        assert_eq!(status, Status::SUCCESS, "{opcode:#x}");
    }
}

/// Conformance: Base 7.2, a namespace is reserved by a registrant, and what conflicts is completed with Reservation Conflict.
/// Conformance: Base 7.4, the holder alone releases its reservation.
/// Conformance: Base 7.5, registrants and the holder of the reservation can be reported.
#[test]
fn others_are_kept_from_what_one_has_reserved() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.register(0, 7);
    assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [7, 0]), Status::SUCCESS);
    const READS: [u8; 2] = [opcode::READ, opcode::VERIFY];
    // Uncorrectable blocks are written again.
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
    // There are two more, one of which is masked.
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

/// Tests that a Sanitize erases every namespace, whatever its NSID is.
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

/// Submits a Compare and Write of block 8, which finds the expected data.
pub(crate) fn compare_and_write(host: &mut Host) -> [SubmissionEntry; 2] {
    [(opcode::COMPARE, 1), (opcode::WRITE, 2)].map(|(opcode, fuse)| {
        let buffer = host.allocate(PAGE);
        SubmissionEntry { flags: fuse, ..io(opcode, 8, 1, buffer) }
    })
}

pub(crate) fn ended(host: &mut Host, cq: u16) -> Vec<Status> {
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
    // Until a host registers the identifier, any host may use it. A host may use its own on each of its
    // paths.
    assert!(connects(&mut two, 0, NAMES[0]) && connects(&mut two, 1, NAMES[0]));
    two.register(0, 7);
    assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, EXCLUSIVE_ACCESS, [7, 0]), Status::SUCCESS);
    assert_eq!(two.io(1, opcode::WRITE), Status::SUCCESS);
    assert!(!connects(&mut two, 1, NAMES[1]));
    assert_eq!(two.io(1, opcode::WRITE), Status::RESERVATION_CONFLICT);
    let unregister = 1;
    assert_eq!(two.order(1, opcode::RESERVATION_REGISTER, unregister, [7, 0]), Status::RESERVATION_CONFLICT);
    // A host that had the identifier before it was registered is not the registrant, either.
    assert_eq!(two.order(0, opcode::RESERVATION_REGISTER, unregister, [7, 0]), Status::SUCCESS);
    assert!(connects(&mut two, 1, NAMES[1]));
    two.register(0, 7);
    assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, EXCLUSIVE_ACCESS, [7, 0]), Status::SUCCESS);
    assert_eq!(two.io(1, opcode::READ), Status::RESERVATION_CONFLICT);
    assert_eq!(two.io(0, opcode::READ), Status::SUCCESS);
}

/// Tests a guest on another socket that reads the identifier of a registrant from a report, and uses it after
/// a reset.
#[test]
fn a_guest_on_another_socket_cannot_be_the_registrant() {
    let says_it = |two: &mut Two| {
        let before = two.on(1, |host| {
            host.write_register(register::CC, 0);
            host.run();
            host.enable();
            host.create_pair(1, 64);
            set_host(host, 1)
        });
        (before, two.order(1, opcode::RESERVATION_REGISTER, 1, [7, 0]), two.io(1, opcode::WRITE))
    };
    let mut answers = Vec::new();
    for one_guest in [false, true] {
        let model = Model::new(BLOCKS);
        let mut two = Two::new(&model);
        two.hosts[0].controller.subsystem.set_one_guest(one_guest);
        two.register(0, 7);
        assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [7, 0]), Status::SUCCESS);
        answers.push(says_it(&mut two));
        let holders = two.on(0, report).2;
        assert_eq!(holders.len(), usize::from(!one_guest), "{holders:?}");
    }
    let conflict = Status::RESERVATION_CONFLICT;
    assert_eq!(answers[0], (Status::INVALID_FIELD, conflict, conflict));
    assert_eq!(answers[1], (Status::SUCCESS, Status::SUCCESS, Status::SUCCESS));
}

/// Tests the other order: the guest uses the identifier before the registrant has registered it.
#[test]
fn an_identifier_that_was_said_before_is_of_the_socket_that_registers_it() {
    let model = Model::new(BLOCKS);
    let mut two = Two::new(&model);
    two.on(1, |host| {
        host.write_register(register::CC, 0);
        host.run();
        host.enable();
        host.create_pair(1, 64);
        assert_eq!(set_host(host, 1), Status::SUCCESS, "it is free");
    });
    two.register(0, 7);
    assert_eq!(two.order(0, opcode::RESERVATION_ACQUIRE, WRITE_EXCLUSIVE, [7, 0]), Status::SUCCESS);
    assert_eq!(two.io(1, opcode::WRITE), Status::RESERVATION_CONFLICT);
    assert_eq!(two.order(1, opcode::RESERVATION_RELEASE, 1 << 8, [7, 0]), Status::RESERVATION_CONFLICT);
    assert_eq!(two.io(0, opcode::WRITE), Status::SUCCESS);
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
