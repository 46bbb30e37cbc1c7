//! Namespace Management and Namespace Attachment: namespaces of a pool, their controllers, and notices for
//! other hosts.

mod table;

use crate::host::{CC_ENABLED, Host, MS, PAGE, entry, io, prps};
use crate::model::Model;
use crate::shared::Pair;
use sluice_command::Characteristics;
use sluice_controller::{
    AnaRule, Attached, Attachment, KnownAs, PERSIST_INTERVAL_NS, PersistentRecord, Pool,
};
use sluice_nvme::identify::{IdentifyController, IdentifyNamespace, SIZE};
use sluice_nvme::opcode::{admin, io as opcode};
use sluice_nvme::register::{self, csts};
use sluice_nvme::{AnaState, Cns, LogId, NSID_ALL, Status, SubmissionEntry};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const POOL: u64 = 64 << 10;

const NAMESPACE_CHANGED: u32 = 0x0004_0002;

/// Control plane that persists the changes of hosts, and builds their namespaces.
#[derive(Clone, Default)]
pub(crate) struct Daemon {
    pub(crate) asked: Arc<Mutex<Vec<PersistentRecord>>>,
    /// Disks of the namespaces that were built, by NSID.
    disks: Arc<Mutex<BTreeMap<u32, Model>>>,
    /// Whether they are built with a volatile cache.
    cached: bool,
}

impl Daemon {
    /// Creates a drive of this control plane, beside the subsystem of a host.
    fn of(host: &mut Host) -> Self {
        let daemon = Self::default();
        let asked = Arc::clone(&daemon.asked);
        host.controller.subsystem.on_persist(move |what| asked.lock().expect("not poisoned").push(what));
        host.controller.subsystem.set_pool(Pool { size: POOL, volatile_cache: false });
        daemon
    }

    /// Advances the time by one check of the drive after the other, and persists all records meanwhile.
    pub(crate) fn remember(&self, pair: &mut Pair, looks: u32) {
        for _ in 0..looks {
            pair.hosts_wait(2 * MS);
            self.answer(pair.host(0), true);
        }
        pair.run();
    }

    /// Acknowledges all pending records, and returns them.
    pub(crate) fn answer(&self, host: &mut Host, well: bool) -> Vec<PersistentRecord> {
        let asked = std::mem::take(&mut *self.asked.lock().expect("not poisoned"));
        for what in &asked {
            if let (PersistentRecord::Creation(creation), true) = (what, well) {
                let plain = Characteristics::target(creation.bytes(), 512);
                let model = Model::with(Characteristics { volatile_cache: self.cached, ..plain });
                let namespace = model.namespace_of_blocks(creation.nsid, creation.block_size);
                let namespace = namespace.created(creation.shared).in_ana_group(creation.ana_group);
                host.controller.subsystem.made(*creation, namespace).expect("room for its commands");
                self.disks.lock().expect("not poisoned").insert(creation.nsid, model);
            }
            host.controller.subsystem.persisted(what.clone(), well, host.now_ns);
        }
        asked
    }

    pub(crate) fn disk(&self, nsid: u32) -> Model {
        self.disks.lock().expect("not poisoned")[&nsid].clone()
    }
}

/// Returns two hosts of a drive with a pool and one configured namespace.
pub(crate) fn pair() -> (Pair, Daemon) {
    pair_on(&Model::new(64))
}

/// Returns the same with this model in the configured namespace.
pub(crate) fn pair_on(model: &Model) -> (Pair, Daemon) {
    let mut pair = Pair::new(model);
    let daemon = Daemon::of(pair.host(0));
    pair.host(0).controller.subsystem.expect(2);
    for number in 0..2 {
        let host = pair.host(number);
        host.enable();
        host.create_pair(1, 64);
    }
    (pair, daemon)
}

/// Returns the data for the creation of a namespace.
pub(crate) fn wanted(blocks: u64) -> IdentifyNamespace {
    let mut data = IdentifyNamespace::new_zeroed();
    (data.nsze, data.ncap, data.nmic) = (blocks, blocks, 1);
    data
}

/// Checks that namespaces of all groups are created, and deleted through a controller without a way to them.
#[test]
fn a_namespace_needs_no_way_to_be_managed() {
    let (mut pair, daemon) = pair();
    for (group, expected) in [
        (0, Ok(2)),
        (1, Ok(3)),
        (32, Ok(4)),
        (33, Err(Status::ANA_GROUP_IDENTIFIER_INVALID)),
        (u32::MAX, Err(Status::ANA_GROUP_IDENTIFIER_INVALID)),
    ] {
        let mut data = wanted(8);
        data.anagrpid = group;
        assert_eq!(create(&mut pair, &daemon, &data), expected, "group {group}");
    }
    let rule = AnaRule { port: None, group: None, state: AnaState::Inaccessible };
    pair.host(0).controller.subsystem.set_ana(vec![rule]);
    let Attached { controller, subsystem } = &mut pair.host(0).controller;
    controller.set_port(subsystem, "a");
    assert_eq!(attach(&mut pair, &daemon, 4, &[1], true), Status::SUCCESS);
    assert_eq!(read(pair.host(0), 4), Status::ASYMMETRIC_ACCESS_INACCESSIBLE);
    let format = SubmissionEntry { nsid: 4, ..entry(admin::FORMAT_NVM) };
    assert_eq!(run(&mut pair, &daemon, 0, format).0, Status::ASYMMETRIC_ACCESS_INACCESSIBLE);
    assert_eq!(run(&mut pair, &daemon, 0, deletion(4)).0, Status::SUCCESS);
}

/// Checks that no namespace is created or deleted beside a format, and that it may be attached.
#[test]
fn a_format_holds_up_creations_and_deletions_alone() {
    let model = Model::new(64);
    let (mut pair, daemon) = pair_on(&model);
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    model.disk().hold = true;
    pair.host(0).submit(0, SubmissionEntry { nsid: 1, ..entry(admin::FORMAT_NVM) });
    daemon.remember(&mut pair, 3);
    assert_eq!(run(&mut pair, &daemon, 1, deletion(2)).0, Status::FORMAT_IN_PROGRESS);
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Err(Status::FORMAT_IN_PROGRESS));
    assert_eq!(attach(&mut pair, &daemon, 2, &[2], true), Status::SUCCESS);
    assert!(pair.host(0).controller.subsystem.delete_namespace(2, 0).is_err());
}

/// Waits for a flush, since a namespace that goes with a flush of a shutdown would keep the shutdown from
/// ending.
#[test]
fn a_namespace_goes_behind_the_flush_of_a_shutdown() {
    let (mut pair, mut daemon) = pair();
    daemon.cached = true;
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    let disk = daemon.disk(2);
    disk.disk().hold = true;
    pair.host(0).write_register(register::CC, CC_ENABLED | 1 << 14);
    pair.run();
    pair.host(1).submit(0, deletion(2));
    pair.run();
    let asked = daemon.answer(pair.host(1), true);
    assert!(!asked.iter().any(|what| matches!(what, PersistentRecord::Deletion(_))), "{asked:?}");
    pair.host(0).answer(2, &disk, 1);
    daemon.remember(&mut pair, 8);
    assert_eq!(pair.host(0).csts() & csts::SHST_MASK, csts::SHST_COMPLETE);
    assert_eq!(pair.host(1).reap(0).map(|completion| completion.status()), Some(Status::SUCCESS));
}

fn with_data(host: &mut Host, data: &[u8], entry: SubmissionEntry) -> SubmissionEntry {
    let buffer = host.allocate(SIZE);
    host.write(buffer, data);
    SubmissionEntry { dptr: prps(buffer, SIZE), ..entry }
}

fn creation(host: &mut Host, data: &IdentifyNamespace) -> SubmissionEntry {
    with_data(host, data.as_bytes(), entry(admin::NAMESPACE_MANAGEMENT))
}

pub(crate) fn deletion(nsid: u32) -> SubmissionEntry {
    SubmissionEntry { nsid, cdw10: 1, ..entry(admin::NAMESPACE_MANAGEMENT) }
}

pub(crate) fn attachment(host: &mut Host, nsid: u32, cntlids: &[u16], attach: bool) -> SubmissionEntry {
    let mut list = vec![cntlids.len() as u16];
    list.extend(cntlids);
    let mut data = vec![0; SIZE];
    data[..list.len() * 2].copy_from_slice(list.as_bytes());
    let cdw10 = u32::from(!attach);
    with_data(host, &data, SubmissionEntry { nsid, cdw10, ..entry(admin::NAMESPACE_ATTACHMENT) })
}

/// Executes a command of one of the hosts, and returns its status and dword 0.
pub(crate) fn run(pair: &mut Pair, daemon: &Daemon, number: usize, entry: SubmissionEntry) -> (Status, u32) {
    pair.host(number).reuse_memory();
    pair.host(number).submit(0, entry);
    for _ in 0..8 {
        pair.run();
        let host = pair.host(number);
        if let Some(completion) = host.reap(0) {
            daemon.answer(host, true);
            return (completion.status(), completion.dw0);
        }
        if daemon.answer(host, true).is_empty() {
            // The rate of records is limited.
            pair.hosts_wait(PERSIST_INTERVAL_NS);
        }
    }
    panic!("a command waits for nothing");
}

pub(crate) fn create(pair: &mut Pair, daemon: &Daemon, data: &IdentifyNamespace) -> Result<u32, Status> {
    let entry = creation(pair.host(0), data);
    match run(pair, daemon, 0, entry) {
        (Status::SUCCESS, nsid) => Ok(nsid),
        (status, _) => Err(status),
    }
}

pub(crate) fn attach(pair: &mut Pair, daemon: &Daemon, nsid: u32, cntlids: &[u16], attach: bool) -> Status {
    let entry = attachment(pair.host(0), nsid, cntlids, attach);
    run(pair, daemon, 0, entry).0
}

pub(crate) fn list(host: &mut Host, cns: Cns) -> Vec<u32> {
    let page = host.identify(cns, 0).expect("a list");
    let (nsids, _) = page.as_chunks::<4>();
    nsids.iter().map(|nsid| u32::from_le_bytes(*nsid)).take_while(|nsid| *nsid != 0).collect()
}

fn capacities(host: &mut Host) -> (u64, u64) {
    let page = host.identify(Cns::CONTROLLER, 0).expect("a page");
    let page = IdentifyController::read_from_bytes(&page).expect("a whole page");
    assert_eq!(page.oacs & 1 << 3, 1 << 3);
    (page.tnvmcap[0], page.unvmcap[0])
}

pub(crate) fn read(host: &mut Host, nsid: u32) -> Status {
    let buffer = host.allocate(PAGE);
    host.io(SubmissionEntry { nsid, ..io(opcode::READ, 0, 1, buffer) })
}

/// Returns the event that a host receives, if there is one.
pub(crate) fn event(pair: &mut Pair, number: usize) -> Option<(u32, Vec<u8>)> {
    pair.host(number).submit(0, entry(admin::ASYNC_EVENT_REQUEST));
    pair.run();
    let event = pair.host(number).reap(0).map(|completion| completion.dw0)?;
    Some((event, pair.host(number).log(LogId::CHANGED_NAMESPACE_LIST, 8).expect("a list")))
}

#[test]
fn without_a_pool_there_are_no_such_commands() {
    let mut host = Host::enabled(vec![Model::new(8).namespace(1)]);
    let create = creation(&mut host, &wanted(8));
    assert_eq!(host.admin(create).status(), Status::INVALID_OPCODE);
    let detach = attachment(&mut host, 1, &[1], false);
    assert_eq!(host.admin(detach).status(), Status::INVALID_OPCODE);
    assert_eq!(host.identify(Cns::NAMESPACE, NSID_ALL), Err(Status::INVALID_NAMESPACE));
}

/// Conformance: Base 5.23, namespaces are created and deleted in band.
#[test]
fn a_host_creates_a_namespace_and_deletes_it() {
    let (mut pair, daemon) = pair();
    let all = 64 * 512 + POOL;
    assert_eq!(capacities(pair.host(0)), (all, POOL));
    let formats = pair.host(0).identify(Cns::NAMESPACE, NSID_ALL).expect("what all have in common");
    let formats = IdentifyNamespace::read_from_bytes(&formats).expect("a whole page");
    assert_eq!((formats.nlbaf, formats.lbaf[0].lbads, formats.lbaf[1].lbads), (1, 9, 12));
    let mut data = wanted(4);
    data.flbas = 1;
    assert_eq!(create(&mut pair, &daemon, &data), Ok(2));
    assert_eq!(capacities(pair.host(1)), (all, POOL - 4 * 4096));
    // It exists, and no controller has it.
    let host = pair.host(0);
    assert_eq!(
        (list(host, Cns::ALLOCATED_NAMESPACES), list(host, Cns::ACTIVE_NAMESPACES)),
        (vec![1, 2], vec![1])
    );
    assert_eq!(host.identify(Cns::NAMESPACE, 2), Ok(vec![0; PAGE]));
    assert_eq!(host.identify(Cns::NAMESPACE_DESCRIPTORS, 2), Err(Status::INVALID_FIELD));
    assert_eq!(host.identify(Cns::ATTACHED_CONTROLLERS, 2), Ok(vec![0; PAGE]));
    let page = host.identify(Cns::ALLOCATED_NAMESPACE, 2).expect("a page");
    let page = IdentifyNamespace::read_from_bytes(&page).expect("a whole page");
    assert_eq!((page.nsze, page.flbas, page.nmic, page.nvmcap[0]), (4, 1, 1, 4 * 4096));
    assert_eq!(read(host, 2), Status::INVALID_FIELD);
    let buffer = host.allocate(PAGE);
    let report = SubmissionEntry { nsid: 2, cdw10: 1, ..io(opcode::RESERVATION_REPORT, 0, 1, buffer) };
    assert_eq!(host.io(report), Status::INVALID_FIELD);
    assert_eq!(run(&mut pair, &daemon, 1, deletion(2)).0, Status::SUCCESS);
    assert_eq!(capacities(pair.host(0)), (all, POOL));
    assert_eq!(list(pair.host(0), Cns::ALLOCATED_NAMESPACES), [1]);
    assert_eq!(pair.host(0).identify(Cns::ALLOCATED_NAMESPACE, 2), Ok(vec![0; PAGE]));
    assert_eq!(run(&mut pair, &daemon, 0, deletion(2)).0, Status::INVALID_FIELD);
}

/// Conformance: Base 5.22, namespaces are attached and detached in band, and the other controllers are told.
#[test]
fn a_namespace_is_there_for_whom_it_is_attached_to() {
    let (mut pair, daemon) = pair();
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[2], true), Status::SUCCESS);
    // Only the controller that has it now is notified, and not the one of the command.
    assert_eq!(event(&mut pair, 1), Some((NAMESPACE_CHANGED, vec![2, 0, 0, 0, 0, 0, 0, 0])));
    assert_eq!(event(&mut pair, 0), None);
    assert_eq!(list(pair.host(0), Cns::ACTIVE_NAMESPACES), [1]);
    assert_eq!(list(pair.host(1), Cns::ACTIVE_NAMESPACES), [1, 2]);
    let controllers = pair.host(0).identify(Cns::ATTACHED_CONTROLLERS, 2).expect("a list");
    assert_eq!(controllers[..6], [1, 0, 2, 0, 0, 0]);
    assert_eq!((read(pair.host(0), 2), read(pair.host(1), 2)), (Status::INVALID_FIELD, Status::SUCCESS));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::SUCCESS);
    assert_eq!((read(pair.host(0), 2), read(pair.host(1), 2)), (Status::SUCCESS, Status::SUCCESS));
    let changed = pair.host(1).log(LogId::CHANGED_NAMESPACE_LIST, 8);
    assert_eq!(changed, Ok(vec![0; 8]), "it had the namespace before");
    assert_eq!(attach(&mut pair, &daemon, 2, &[2], false), Status::SUCCESS);
    assert_eq!(event(&mut pair, 1), Some((NAMESPACE_CHANGED, vec![2, 0, 0, 0, 0, 0, 0, 0])));
    assert_eq!((read(pair.host(0), 2), read(pair.host(1), 2)), (Status::SUCCESS, Status::INVALID_FIELD));
    // A configured namespace is attached to all, until a host detaches it.
    assert_eq!(attach(&mut pair, &daemon, 1, &[1, 2], false), Status::SUCCESS);
    assert_eq!(list(pair.host(1), Cns::ACTIVE_NAMESPACES), [0; 0]);
    assert_eq!(read(pair.host(1), 1), Status::INVALID_FIELD);
    // Controllers with the deleted namespace are notified.
    assert_eq!(attach(&mut pair, &daemon, 2, &[2], true), Status::SUCCESS);
    assert!(event(&mut pair, 1).is_some());
    assert_eq!(run(&mut pair, &daemon, 0, deletion(2)).0, Status::SUCCESS);
    assert_eq!(event(&mut pair, 1), Some((NAMESPACE_CHANGED, vec![2, 0, 0, 0, 0, 0, 0, 0])));
}

/// Conformance: Base 5.23, a namespace that cannot be created is refused with the reason.
#[test]
fn what_cannot_be_created_is_refused_with_the_reason() {
    type Change = fn(&mut IdentifyNamespace);
    let (mut pair, daemon) = pair();
    let cases: [(Change, Status); 11] = [
        (|it| it.nsze = 0, Status::INVALID_FIELD),
        (|it| it.ncap = 9, Status::INVALID_FIELD),
        (|it| it.ncap = 7, Status::THIN_PROVISIONING_NOT_SUPPORTED),
        (|it| (it.nsze, it.ncap) = (POOL / 512 + 1, POOL / 512 + 1), Status::NAMESPACE_INSUFFICIENT_CAPACITY),
        (|it| (it.nsze, it.ncap) = (u64::MAX, u64::MAX), Status::NAMESPACE_INSUFFICIENT_CAPACITY),
        (|it| it.flbas = 2, Status::INVALID_FORMAT),
        (|it| it.flbas = 1 << 5, Status::INVALID_FORMAT),
        (|it| it.dps = 1, Status::INVALID_FORMAT),
        (|it| it.nmic = 2, Status::INVALID_FIELD),
        (|it| it.anagrpid = 33, Status::ANA_GROUP_IDENTIFIER_INVALID),
        (|it| it.endgid = 1, Status::INVALID_FIELD),
    ];
    for (number, (change, status)) in cases.into_iter().enumerate() {
        let mut data = wanted(8);
        change(&mut data);
        assert_eq!(create(&mut pair, &daemon, &data), Err(status), "case {number}");
    }
    let entry = creation(pair.host(0), &wanted(8));
    let other_command_set = SubmissionEntry { cdw11: 2 << 24, ..entry };
    assert_eq!(run(&mut pair, &daemon, 0, other_command_set).0, Status::COMMAND_SET_NOT_SUPPORTED);
    let named = SubmissionEntry { nsid: 5, ..entry };
    assert_eq!(run(&mut pair, &daemon, 0, named).0, Status::INVALID_FIELD);
    let selected = SubmissionEntry { cdw10: 2, ..entry };
    assert_eq!(run(&mut pair, &daemon, 0, selected).0, Status::INVALID_FIELD);
    // The number of NSIDs is limited.
    let most = (2..=128).map(|nsid| assert_eq!(create(&mut pair, &daemon, &wanted(1)), Ok(nsid))).count();
    assert_eq!(most, 127);
    assert_eq!(create(&mut pair, &daemon, &wanted(1)), Err(Status::NAMESPACE_IDENTIFIER_UNAVAILABLE));
    // Hosts cannot delete configured namespaces.
    for nsid in [1, NSID_ALL] {
        assert_eq!(run(&mut pair, &daemon, 0, deletion(nsid)).0, Status::OPERATION_DENIED);
    }
    for nsid in [0, 129, NSID_ALL - 1] {
        assert_eq!(run(&mut pair, &daemon, 0, deletion(nsid)).0, Status::INVALID_NAMESPACE);
    }
}

/// Conformance: Base 5.22, what cannot be attached or detached is refused with the reason, and nothing of it happens.
#[test]
fn what_cannot_be_attached_is_refused_with_the_reason() {
    let (mut pair, daemon) = pair();
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    for list in [&[][..], &[3], &[1, 3], &[2, 1], &[1, 1]] {
        assert_eq!(attach(&mut pair, &daemon, 2, list, true), Status::CONTROLLER_LIST_INVALID, "{list:?}");
    }
    let long = attachment(pair.host(0), 2, &[1], true);
    pair.host(0).write(long.dptr[0], &2048u16.to_le_bytes());
    assert_eq!(run(&mut pair, &daemon, 0, long).0, Status::CONTROLLER_LIST_INVALID);
    assert_eq!(attach(&mut pair, &daemon, 3, &[1], true), Status::INVALID_FIELD);
    for nsid in [0, 129, NSID_ALL] {
        assert_eq!(attach(&mut pair, &daemon, nsid, &[1], true), Status::INVALID_NAMESPACE);
    }
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], false), Status::NAMESPACE_NOT_ATTACHED);
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::SUCCESS);
    assert_eq!(attach(&mut pair, &daemon, 2, &[1, 2], true), Status::NAMESPACE_ALREADY_ATTACHED);
    assert_eq!(attach(&mut pair, &daemon, 2, &[1, 2], false), Status::NAMESPACE_NOT_ATTACHED);
    assert_eq!(list(pair.host(1), Cns::ACTIVE_NAMESPACES), [1]);
}

/// Tests that a private namespace whose controller is gone goes to another controller of the same host, which
/// is notified.
#[test]
fn a_private_namespace_goes_to_another_controller_of_its_host() {
    let (mut pair, daemon) = pair();
    let name = |pair: &mut Pair, number, nqn| {
        let host = pair.host(number);
        host.controller.controller.set_host(&mut host.controller.subsystem, nqn, [0; 16]);
    };
    let be_there = |pair: &mut Pair, number, present| {
        let host = pair.host(number);
        host.controller.controller.set_present(&mut host.controller.subsystem, present);
    };
    (0..2).for_each(|number| name(&mut pair, number, "a"));
    let mut private = wanted(8);
    private.nmic = 0;
    assert_eq!(create(&mut pair, &daemon, &private), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::SUCCESS);
    let lists = |pair: &mut Pair| [0, 1].map(|number| list(pair.host(number), Cns::ACTIVE_NAMESPACES));
    assert_eq!(lists(&mut pair), [vec![1, 2], vec![1]]);
    be_there(&mut pair, 0, false);
    assert_eq!(lists(&mut pair)[1], [1, 2]);
    assert_eq!(event(&mut pair, 1), Some((NAMESPACE_CHANGED, vec![2, 0, 0, 0, 0, 0, 0, 0])));
    assert_eq!(read(pair.host(1), 2), Status::SUCCESS);
    // A controller that comes back has to wait; one of another name gets nothing.
    be_there(&mut pair, 0, true);
    assert_eq!(lists(&mut pair), [vec![1], vec![1, 2]]);
    name(&mut pair, 1, "b");
    assert_eq!(lists(&mut pair), [vec![1, 2], vec![1]]);
    be_there(&mut pair, 0, false);
    assert_eq!(lists(&mut pair)[1], [1]);
}

/// Conformance: Base 5.22, a private namespace is attached to one controller at a time.
#[test]
fn a_private_namespace_has_one_controller() {
    let (mut pair, daemon) = pair();
    let mut private = wanted(8);
    private.nmic = 0;
    assert_eq!(create(&mut pair, &daemon, &private), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1, 2], true), Status::NAMESPACE_IS_PRIVATE);
    assert_eq!(attach(&mut pair, &daemon, 2, &[2], true), Status::SUCCESS);
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::NAMESPACE_IS_PRIVATE);
    assert_eq!(attach(&mut pair, &daemon, 2, &[2], false), Status::SUCCESS);
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::SUCCESS);
    let page = pair.host(0).identify(Cns::NAMESPACE, 2).expect("a page");
    assert_eq!(IdentifyNamespace::read_from_bytes(&page).expect("a page").nmic, 0);
}

/// Tests that a change that was not persisted does not happen, and that the next request goes on.
#[test]
fn what_cannot_be_remembered_is_not_done() {
    let (mut pair, daemon) = pair();
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::SUCCESS);
    let create = creation(pair.host(0), &wanted(8));
    let attach = attachment(pair.host(0), 2, &[2], true);
    let detach = attachment(pair.host(0), 2, &[1], false);
    for entry in [create, attach, detach, deletion(2)] {
        pair.host(0).submit(0, entry);
        // They are executed one after the other.
        pair.host(0).submit(0, create);
        pair.run();
        assert_eq!(daemon.asked.lock().expect("not poisoned").len(), 1);
        for _ in 0..2 {
            assert_eq!(daemon.answer(pair.host(0), false).len(), 1);
            pair.run();
            assert_eq!(pair.host(0).reap(0).map(|it| it.status()), Some(Status::INTERNAL_ERROR));
        }
        assert_eq!(list(pair.host(0), Cns::ALLOCATED_NAMESPACES), [1, 2]);
        assert_eq!(list(pair.host(0), Cns::ACTIVE_NAMESPACES), [1, 2]);
        assert_eq!(list(pair.host(1), Cns::ACTIVE_NAMESPACES), [1]);
        assert_eq!(read(pair.host(0), 2), Status::SUCCESS);
    }
}

/// Tests that a reset takes the command, but not a change that has begun; a change that has not begun is
/// dropped.
#[test]
fn what_was_begun_goes_on_after_a_reset() {
    let (mut pair, daemon) = pair();
    let create = creation(pair.host(0), &wanted(8));
    pair.host(0).submit(0, create);
    pair.host(0).submit(0, create);
    pair.run();
    pair.host(0).controller.reset();
    pair.run();
    assert!(pair.host(0).controller.is_quiescent());
    assert_eq!(daemon.answer(pair.host(0), true).len(), 1);
    pair.run();
    assert_eq!(daemon.answer(pair.host(1), true), []);
    assert_eq!(list(pair.host(1), Cns::ALLOCATED_NAMESPACES), [1, 2]);
}

/// Tests that an index of an LBA format is the same block size in every namespace, and in the choice for a
/// new one.
#[test]
fn a_format_has_one_index() {
    let of_4096 = Model::with(Characteristics::target(1 << 15, 4096));
    let namespaces = vec![of_4096.namespace_of_blocks(1, 4096), Model::new(64).namespace(2)];
    let mut host = Host::enabled(namespaces);
    let daemon = Daemon::of(&mut host);
    drop(daemon);
    let mut sizes = |nsid| {
        let page = host.identify(Cns::NAMESPACE, nsid).expect("a page");
        let page = IdentifyNamespace::read_from_bytes(&page).expect("a whole page");
        (page.nlbaf, page.flbas, [0, 1, 2].map(|index| page.lbaf[index].lbads))
    };
    assert_eq!(sizes(NSID_ALL), (1, 0, [9, 12, 0]));
    assert_eq!(sizes(1), (1, 1, [0, 12, 0]), "the first is not available");
    assert_eq!(sizes(2), (1, 0, [9, 12, 0]));
    let format = |cdw10| SubmissionEntry { nsid: 1, cdw10, ..entry(admin::FORMAT_NVM) };
    assert_eq!(host.admin(format(0)).status(), Status::INVALID_FORMAT);
}

/// Conformance: Base 5.17.2, the structures of allocated namespaces are there by command set, too.
#[test]
fn allocated_namespaces_are_listed_by_command_set() {
    let (mut pair, daemon) = pair();
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    let mut identify = |cns: Cns, nsid, csi: u32| {
        let cdw10 = u32::from(cns.0);
        let entry = SubmissionEntry { nsid, cdw10, cdw11: csi << 24, ..entry(admin::IDENTIFY) };
        pair.host(0).admin_read(entry, PAGE)
    };
    let nvm = identify(Cns::COMMAND_SET_ALLOCATED_NAMESPACES, 0, 0).expect("a list");
    assert_eq!(nvm[..12], [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    let after = identify(Cns::COMMAND_SET_ALLOCATED_NAMESPACES, 1, 0).expect("a list");
    assert_eq!(after[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    // The reply is that for an attached one (CNS 05h): zeros.
    for nsid in [1, 2, 3] {
        assert_eq!(identify(Cns::COMMAND_SET_ALLOCATED_NAMESPACE, nsid, 0), Ok(vec![0; PAGE]));
    }
    assert_eq!(identify(Cns::COMMAND_SET_ALLOCATED_NAMESPACE, 0, 0), Err(Status::INVALID_NAMESPACE));
    for cns in [Cns::COMMAND_SET_ALLOCATED_NAMESPACES, Cns::COMMAND_SET_ALLOCATED_NAMESPACE] {
        assert_eq!(identify(cns, 1, 2), Err(Status::INVALID_FIELD), "zoned namespaces");
    }
}

/// Tests that a controller that comes again has the namespaces that were attached to its name; others do not.
#[test]
fn attachments_are_remembered_by_name() {
    let (mut pair, daemon) = pair();
    let name = |pair: &mut Pair, number, nqn| {
        let host = pair.host(number);
        host.controller.controller.set_host(&mut host.controller.subsystem, nqn, [0; 16]);
    };
    name(&mut pair, 1, "a");
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    let entry = attachment(pair.host(0), 2, &[2], true);
    pair.host(0).submit(0, entry);
    pair.run();
    let listed = vec![KnownAs::Nqn("a".into())];
    let kept = PersistentRecord::Attachment { nsid: 2, attachment: Attachment { to_others: false, listed } };
    assert_eq!(daemon.answer(pair.host(0), true), [kept]);
    for (is, has) in [("b", false), ("a", true), ("c", false)] {
        name(&mut pair, 1, is);
        assert_eq!(list(pair.host(1), Cns::ACTIVE_NAMESPACES).contains(&2), has, "{is}");
        assert_eq!(read(pair.host(1), 2).is_success(), has, "{is}");
    }
    // All controllers of one host have the same namespaces.
    name(&mut pair, 0, "a");
    name(&mut pair, 1, "a");
    pair.run();
    pair.host(0).reap_all(0);
    assert_eq!(attach(&mut pair, &daemon, 2, &[2], false), Status::SUCCESS);
    assert_eq!(list(pair.host(0), Cns::ACTIVE_NAMESPACES), [1]);
}

/// Tests that a controller that comes during a detachment has the namespace, or does not, as if the
/// detachment were over.
#[test]
fn controllers_that_come_meanwhile_have_what_is_theirs() {
    let (mut pair, daemon) = pair();
    let name = |pair: &mut Pair, number, nqn| {
        let host = pair.host(number);
        host.controller.controller.set_host(&mut host.controller.subsystem, nqn, [0; 16]);
    };
    name(&mut pair, 0, "a");
    name(&mut pair, 1, "b");
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1, 2], true), Status::SUCCESS);
    event(&mut pair, 1);
    let model = daemon.disk(2);
    model.disk().hold = true;
    let buffer = pair.host(0).allocate(PAGE);
    pair.host(0).submit(1, SubmissionEntry { nsid: 2, ..io(opcode::READ, 0, 1, buffer) });
    let detach = attachment(pair.host(1), 2, &[1], false);
    pair.host(1).submit(0, detach);
    pair.run();
    // Another controller of that host does not have it either; one of another host keeps its namespaces.
    name(&mut pair, 1, "a");
    assert_eq!(read(pair.host(1), 2), Status::INVALID_FIELD);
    name(&mut pair, 1, "b");
    pair.host(0).answer(2, &model, 1);
    model.disk().hold = false;
    daemon.remember(&mut pair, 2);
    assert_eq!(pair.host(1).reap(0).map(|it| it.status()), Some(Status::SUCCESS));
    pair.host(0).reap_all(1);
    assert_eq!((read(pair.host(0), 2), read(pair.host(1), 2)), (Status::INVALID_FIELD, Status::SUCCESS));
    // Nothing can be set for a missing namespace.
    let set = SubmissionEntry { nsid: 2, cdw10: 0x83, cdw11: 1, ..entry(admin::SET_FEATURES) };
    assert_eq!(pair.host(0).admin(set).status(), Status::INVALID_FIELD);
}

/// Tests that a namespace with fewer usable bytes in larger blocks takes as much of the pool as before.
#[test]
fn no_format_makes_room_in_the_pool() {
    let (mut pair, daemon) = pair();
    assert_eq!(create(&mut pair, &daemon, &wanted(15)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1], true), Status::SUCCESS);
    let format = SubmissionEntry { nsid: 2, cdw10: 1, ..entry(admin::FORMAT_NVM) };
    assert_eq!(run(&mut pair, &daemon, 0, format).0, Status::SUCCESS);
    let page = pair.host(0).identify(Cns::NAMESPACE, 2).expect("a page");
    let page = IdentifyNamespace::read_from_bytes(&page).expect("a whole page");
    assert_eq!((page.nsze, page.flbas), (1, 1));
    assert_eq!(capacities(pair.host(0)).1, POOL - 15 * 512);
}

/// Tests that a reservation of a namespace keeps other hosts from deleting it, but not from creating another
/// one.
#[test]
fn a_reservation_keeps_nobody_from_creating() {
    let (mut pair, daemon) = pair();
    for (number, nqn) in [(0, "a"), (1, "b")] {
        let host = pair.host(number);
        host.controller.controller.set_host(&mut host.controller.subsystem, nqn, [number as u8 + 1; 16]);
    }
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1, 2], true), Status::SUCCESS);
    event(&mut pair, 1);
    let host = pair.host(1);
    let buffer = host.allocate(PAGE);
    host.write(buffer, [0u64, 7].as_bytes());
    let of = |opcode, cdw10| SubmissionEntry { nsid: 2, cdw10, ..io(opcode, 0, 1, buffer) };
    assert_eq!(host.io(of(opcode::RESERVATION_REGISTER, 0)), Status::SUCCESS);
    host.write(buffer, [7u64, 0].as_bytes());
    assert_eq!(host.io(of(opcode::RESERVATION_ACQUIRE, 1 << 8)), Status::SUCCESS);
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(3));
    assert_eq!(run(&mut pair, &daemon, 0, deletion(2)).0, Status::RESERVATION_CONFLICT);
    assert_eq!(run(&mut pair, &daemon, 1, deletion(2)).0, Status::SUCCESS);
}

/// Tests that a host that loses access to a namespace while its command waits does not delete it.
#[test]
fn a_deletion_that_waits_heeds_what_was_reserved_meanwhile() {
    let (mut pair, daemon) = pair();
    for (number, nqn) in [(0, "a"), (1, "b")] {
        let host = pair.host(number);
        host.controller.controller.set_host(&mut host.controller.subsystem, nqn, [number as u8 + 1; 16]);
    }
    assert_eq!(create(&mut pair, &daemon, &wanted(8)), Ok(2));
    assert_eq!(attach(&mut pair, &daemon, 2, &[1, 2], true), Status::SUCCESS);
    event(&mut pair, 1);
    let create = creation(pair.host(0), &wanted(8));
    pair.host(0).submit(0, create);
    pair.host(0).submit(0, deletion(2));
    pair.run();
    let host = pair.host(1);
    let buffer = host.allocate(PAGE);
    for (keys, opcode, cdw10) in
        [([0u64, 7], opcode::RESERVATION_REGISTER, 0), ([7, 0], opcode::RESERVATION_ACQUIRE, 1 << 8)]
    {
        host.write(buffer, keys.as_bytes());
        assert_eq!(host.io(SubmissionEntry { nsid: 2, cdw10, ..io(opcode, 0, 1, buffer) }), Status::SUCCESS);
    }
    daemon.remember(&mut pair, 4);
    let ended = pair.host(0).reap_all(0).into_iter().map(|it| it.status());
    assert_eq!(ended.collect::<Vec<_>>(), [Status::SUCCESS, Status::RESERVATION_CONFLICT]);
    assert_eq!(list(pair.host(1), Cns::ALLOCATED_NAMESPACES), [1, 2, 3]);
}

/// Tests that a host with many requests does not make the others wait for all of them.
#[test]
fn hosts_take_turns() {
    let (mut pair, daemon) = pair();
    for (number, sizes) in [(0, &[1, 2, 3][..]), (1, &[4, 5])] {
        for blocks in sizes {
            let create = creation(pair.host(number), &wanted(*blocks));
            pair.host(number).submit(0, create);
        }
        pair.run();
    }
    let mut made = Vec::new();
    while let [PersistentRecord::Creation(creation)] = daemon.answer(pair.host(0), true).as_slice() {
        made.push(creation.blocks);
        pair.run();
    }
    assert_eq!(made, [1, 4, 2, 5, 3]);
}
